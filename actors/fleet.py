"""Starting, finding and ending the actors of one engine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from ..pipeline.config import Settings
from . import calls, process
from .process import Process
from .spec import NAMESPACE, ActorName, ClusterSpec

log = logging.getLogger("raygam.supervisor")
CONTROL = "control"
"""The concurrency group of the supervisor's calls."""


def _none(settings: Settings) -> float:
    return 0


@dataclass(frozen=True, slots=True)
class ActorKind:
    """How actors of one kind are made.

    Attributes:
        actor: the class, decorated late.
        make: builds what the actor holds, in the actor's process; gets the name and the spec.
        concurrency: calls served at a time.
        anywhere: it does not use the state, so that any node may have it.
        gpus: that each of them takes, or the share of one.
    """

    actor: type[Any]
    make: Callable[..., Any]
    concurrency: int
    anywhere: bool = False
    gpus: Callable[[Settings], float] = _none


class Fleet:
    """The named actors of one engine. All are detached: they outlive whoever starts them.

    Args:
        spec: what they are made from.
        kinds: by name.
    """

    def __init__(self, spec: ClusterSpec, kinds: dict[str, ActorKind]) -> None:
        self._spec = spec
        self._kinds = kinds
        self._handles: dict[ActorName, Any] = {}

    def living(self) -> list[ActorName]:
        """The engine's actors that Ray holds for alive."""
        found = []
        for entry in ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] == NAMESPACE:
                name = ActorName.parse(self._spec.prefix, entry["name"])
                if name is not None:
                    found.append(name)
        return sorted(found)

    def full(self, name: ActorName) -> str:
        """The name that Ray knows."""
        return name.full(self._spec.prefix)

    def start(self, name: ActorName) -> None:
        """Start an actor; one that another supervisor just started under the name is taken instead."""
        kind = self._kinds[name.kind]
        # The supervisor's calls have threads of their own: a queue of searches must not look like a stuck actor.
        decorate: Any = ray.remote
        remote = decorate(concurrency_groups={CONTROL: 4})(kind.actor).options(
            name=self.full(name),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=kind.concurrency,
            num_cpus=0,
            num_gpus=kind.gpus(self._spec.settings),
            # A state directory is on one node's disk. A database is reached from all.
            scheduling_strategy=process.placed("" if kind.anywhere else self._spec.node),
        )
        self._handles[name] = remote.remote(kind.make, f"{name.place}:{name.incarnation}", self._spec)
        log.info("actor started", extra={"name_of": self.full(name)})

    def handle(self, name: ActorName) -> Any:
        """The handle.

        Raises:
            Dead: Ray has no such actor.
        """
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = calls.find(self.full(name))
        return handle

    def control(self, name: ActorName, method: str, *arguments: Any) -> Any:
        """Begin a call on the supervisor's threads of an actor; returns its reference.

        Raises:
            Dead: Ray has no such actor.
        """
        called = getattr(self.handle(name), method)
        return called.options(concurrency_group=CONTROL).remote(*arguments)

    def end(self, name: ActorName, running: Process | None) -> None:
        """End an actor at once, and its process, if given: a stopped one stays when Ray alone is told."""
        with contextlib.suppress(calls.Dead):
            ray.kill(self.handle(name), no_restart=True)
        self._handles.pop(name, None)
        if running is not None:
            process.kill(running)
        log.info("actor ended", extra={"name_of": self.full(name)})
