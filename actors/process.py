"""Which process of which node an actor is, and its end by force."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the cluster: its number, and Ray's id of its node."""

    pid: int
    node: str


def this_process() -> Process:
    """The process that asks."""
    return Process(os.getpid(), ray.get_runtime_context().get_node_id())


def placed(node: str) -> Any:
    """Ray's strategy for what must run on a node; where none is named, nodes take turns."""
    return NodeAffinitySchedulingStrategy(node, soft=False) if node else "SPREAD"


def kill(process: Process) -> None:
    """End it by SIGKILL, on whatever node; nobody waits for another node, which may be out of reach."""
    if process.node == this_process().node:
        _kill(process.pid)
        return
    decorate: Any = ray.remote
    decorate(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=placed(process.node)).remote(process.pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
