"""The part of `benchmarks.ingest` that runs on Ray: what shards add, and where the time goes.

For each number of shards a fresh engine takes the same file: first without workers (the
fast path), then one worker drains what is left. The CPU time of every process of the
engine, by role, says where the time goes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from raygam.actors.cluster import Cluster, connect, remote_embedder
from raygam.actors.driving import run_file
from raygam.pipeline.config import Settings


@dataclass(frozen=True, slots=True)
class OnRay:
    """One run of the engine on Ray.

    Attributes:
        fast_seconds: from the command to the last partition's flush.
        slow_seconds: from the first worker's start to the last task.
        cpu: CPU microseconds a turn of the fast path, by role.
    """

    fast_seconds: float
    slow_seconds: float
    cpu: dict[str, float]


@contextmanager
def ray_running() -> Iterator[None]:
    """One local Ray for all runs."""
    import ray

    connect(None)
    try:
        yield
    finally:
        ray.shutdown()


def stream_on_ray(source: Path, settings: Settings, turns: int, shards: int) -> OnRay:
    """Take the file with so many shards, then drain with one worker."""
    with tempfile.TemporaryDirectory(prefix="raygam-ingest-ray-") as folder:
        cluster = Cluster.open(Path(folder) / "state", settings, shards=shards, workers=0)
        try:
            remote_embedder(cluster.spec, cluster.routes).embed(["warm"])  # waits until a replica has its model
            before = _cpu(cluster)
            started = time.perf_counter()
            report = run_file(cluster, source, drain=False)
            fast = time.perf_counter() - started
            after = _cpu(cluster)
            assert report.accepted == turns, f"{report.accepted} of {turns} turns were accepted"
            cluster.ask("resize", "worker", 1)
            while "worker-0" not in cluster.ask("progress").pids:
                time.sleep(0.05)
            started = time.perf_counter()
            while cluster.ask("progress").open_tasks:
                time.sleep(0.05)
            slow = time.perf_counter() - started
            cpu = {role: (after[role] - before.get(role, 0.0)) / turns * 1e6 for role in after}
            return OnRay(fast, slow, cpu)
        finally:
            cluster.close()


def _cpu(cluster: Cluster) -> dict[str, float]:
    """CPU seconds so far, by role; what is no actor of ours is Ray's own."""
    spent: dict[str, float] = {}
    roles = {pid: place.rpartition("-")[0] for place, pid in cluster.ask("progress").pids.items()}
    roles[cluster.ask("process").pid] = "supervisor"
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        role = roles.get(process.pid, "ray")
        spent[role] = spent.get(role, 0.0) + times.user + times.system
    own = psutil.Process().cpu_times()
    spent["driver"] = own.user + own.system
    return spent
