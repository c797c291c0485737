"""Workers of the slow path: each claims from every shard, thinks, and hands back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from ..memory.errors import RaygamError, Retryable
from ..memory.ports import Reader
from ..pipeline.backoff import pause_after
from ..pipeline.metrics import Metrics
from ..pipeline.worker import SlowPath, rotated
from . import calls, logs
from .process import Process, this_process
from .routes import RemotePartition, Routes

log = logging.getLogger("raygam.worker")
_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker actor is made of."""

    worker: SlowPath
    routes: Routes
    readers: list[Reader]
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker says of itself.

    Attributes:
        rounds: rises with every round; one that stands still while tasks are open is slow or stuck.
        obstacle: an error that it tries again after, empty if none.
    """

    rounds: int
    obstacle: str


class WorkerActor:
    """A loop over the shards' tasks, in a thread of its own."""

    def __init__(self, make: Callable[..., WorkerParts], name: str, *arguments: Any) -> None:
        logs.configure(name)
        self._name = name
        self._make: Callable[[], WorkerParts] = lambda: make(name, *arguments)
        self._rounds = 0
        self._obstacle = ""
        self._waiting: dict[str, Any] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"raygam-{name}", daemon=True)
        self._thread.start()

    def process(self) -> Process:
        """The process, to kill it when it does not answer."""
        return this_process()

    def report(self) -> WorkerReport:
        """How it goes."""
        return WorkerReport(self._rounds, self._obstacle)

    def close(self) -> None:
        """End after the present group."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        parts: WorkerParts | None = None
        failures = 0
        while not self._stopping.is_set():
            try:
                parts = parts or self._make()
                did = self._round(parts)
                failures = failures + 1 if self._obstacle and not did else 0
                if failures:  # whoever is away has tasks, and says so at once: waiting for tasks would not wait
                    self._stopping.wait(pause_after(min(failures, 2)))
                elif not did:
                    self._wait(parts)
            except Exception as error:  # the top of the worker's thread: tried again, told, logged
                failures += 1
                self._obstacle = str(error)
                level = logging.WARNING if isinstance(error, Retryable) else logging.ERROR
                log.log(
                    level, "a round failed", exc_info=not isinstance(error, RaygamError), extra={"error": str(error)}
                )
                self._stopping.wait(pause_after(failures))
        if parts:
            parts.worker.close()
            for reader in parts.readers:
                reader.close()

    def _round(self, parts: WorkerParts) -> bool:
        """One group of every partition that has tasks; whether anything was done."""
        did = False
        troubles: list[str] = []
        for partition in parts.worker.in_hand():  # its shard may have nothing else to claim
            try:
                did = self._work(parts, parts.routes.shard(partition), partition) or did
            except Retryable as error:
                troubles.append(str(error))
        asked = {handle: handle.wait_for_tasks.remote(0.0) for handle in parts.routes.shards().values()}
        for handle, reference in asked.items():
            try:
                for partition in rotated(calls.result(reference, 10, "asking for tasks"), self._rounds):
                    if self._stopping.is_set():
                        return did
                    did = self._work(parts, handle, partition) or did
            except Retryable as error:  # this shard's trouble is not the others'
                troubles.append(str(error))
        for trouble in troubles:
            log.warning("a shard failed", extra={"error": trouble})
        self._obstacle = "; ".join(dict.fromkeys((*troubles, *filter(None, [parts.worker.obstacle()]))))
        return did

    def _work(self, parts: WorkerParts, shard: Any, partition: int) -> bool:
        source = RemotePartition(shard, partition, self._name)
        done = parts.worker.work(source, parts.readers[partition])
        self._rounds += 1
        if done.applied:
            parts.metrics.count("raygam_worker_tasks_total", done.applied, worker=self._name)
        return bool(done)

    def _wait(self, parts: WorkerParts) -> None:
        """Wait until some shard has tasks and the worker has room for them, without asking again and again."""
        self._rounds += 1
        parts.worker.rest(_WAIT_SECONDS)
        shards = parts.routes.shards()
        self._waiting = {name: asked for name, asked in self._waiting.items() if name in shards}
        for name, handle in shards.items():
            if name not in self._waiting:
                self._waiting[name] = handle.wait_for_tasks.remote(_WAIT_SECONDS)
        if not self._waiting:
            self._stopping.wait(0.1)
            return
        answered, _ = ray.wait(list(self._waiting.values()), num_returns=1, timeout=_WAIT_SECONDS)
        self._waiting = {name: asked for name, asked in self._waiting.items() if asked not in answered}
