"""A whole engine in this process, as one host and the threads that work for it.

What follows a topic without Ray: the host's own feed reads, worker threads consolidate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Sequence

from ..memory.chat import ModelCall
from ..memory.errors import LeaseLost, NotOwner, RaygamError, Retryable
from ..memory.ports import Reader
from ..memory.proposal import Proposal
from ..memory.writes import LeasedTask, StateFacts
from .backoff import pause_after
from .host import ShardHost
from .worker import SlowPath, rotated

log = logging.getLogger("raygam.worker")
_WAIT_SECONDS = 0.5


class HostPartition:
    """One partition of a host, as a worker claims from it.

    Args:
        host: who owns it.
        partition: its number.
        holder: the worker's name.
    """

    def __init__(self, host: ShardHost, partition: int, holder: str) -> None:
        self._host = host
        self._holder = holder
        self.partition = partition

    def claim(self, limit: int, barred: Container[str] = ()) -> list[LeasedTask]:
        """Lease tasks."""
        return self._host.claim(self.partition, limit, self._holder, barred)

    def submit(self, proposals: Sequence[Proposal]) -> list[LeaseLost | None]:
        """Hand proposals back."""
        return self._host.submit(self.partition, proposals)

    def fail(self, task_id: str, token: str, error: str, *, parks: bool = False) -> None:
        """Give a task back."""
        self._host.fail(self.partition, task_id, token, error, parks=parks)

    def release(self, task_id: str, token: str, reason: str) -> None:
        """Give a task back that nobody could do now."""
        self._host.release(self.partition, task_id, token, reason)

    def remember(self, task_id: str, token: str, calls: Sequence[ModelCall]) -> None:
        """Record calls of a chat model."""
        self._host.remember(self.partition, task_id, token, calls)


class LocalEngine:
    """A host that has every partition, and its workers.

    Args:
        host: opens them all; closed with the engine.
        facts: what the state was made with.
        readers: of every partition, beside the writers.
        workers: one for each thread of the slow path; closed with the engine.
        on_close: ends what the engine shares with nobody.
    """

    def __init__(
        self,
        host: ShardHost,
        facts: StateFacts,
        readers: Sequence[Reader],
        workers: Sequence[SlowPath],
        *,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.host = host
        self.facts = facts
        self.readers = readers
        self._on_close = on_close
        self._stopping = threading.Event()
        self._obstacles: dict[str, str] = {}
        host.open(range(len(readers)))
        self._workers = workers
        self._threads = [
            threading.Thread(target=self._work, args=(f"worker-{at}", worker), name=f"raygam-worker-{at}", daemon=True)
            for at, worker in enumerate(workers)
        ]
        for thread in self._threads:
            thread.start()

    def obstacles(self) -> list[str]:
        """Errors that workers try again after."""
        return list(dict.fromkeys((*self._obstacles.values(), *filter(None, (w.obstacle() for w in self._workers)))))

    def close(self) -> None:
        """Stop reading at a batch's edge and working after the present group; tasks stay for the next opening."""
        self._stopping.set()
        self.host.stop_reading()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()
        for reader in self.readers:
            reader.close()
        self.host.close()
        self._on_close()

    def _work(self, name: str, worker: SlowPath) -> None:
        failures = 0
        rounds = 0
        while not self._stopping.is_set():
            try:
                ready = self.host.wait_for_tasks(_WAIT_SECONDS)
                did = not ready
                for partition in dict.fromkeys((*worker.in_hand(), *rotated(ready, rounds))):
                    if self._stopping.is_set():
                        return
                    did = bool(worker.work(HostPartition(self.host, partition, name), self.readers[partition])) or did
                if not did:
                    worker.rest(_WAIT_SECONDS)
                rounds += 1
                failures = 0
                self._obstacles.pop(name, None)
            except Exception as error:  # the top of the worker's thread: tried again, told, logged
                if self._stopping.is_set() and isinstance(error, NotOwner):
                    return
                failures += 1
                self._obstacles[name] = str(error)
                level = logging.WARNING if isinstance(error, Retryable) else logging.ERROR
                log.log(
                    level, "a round failed", exc_info=not isinstance(error, RaygamError), extra={"error": str(error)}
                )
                self._stopping.wait(pause_after(failures))
