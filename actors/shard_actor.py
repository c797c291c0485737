"""The shard actor: a `ShardHost` behind Ray, with the terms of who may command it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from ..memory.chat import ModelCall
from ..memory.errors import LeaseLost, Retryable
from ..memory.model import User
from ..memory.ports import Vectors
from ..memory.proposal import Proposal
from ..memory.writes import LeasedTask, TaskChange
from ..pipeline.batches import TurnBatch
from ..pipeline.host import ShardHost
from ..pipeline.host_status import HostStatus
from ..pipeline.jobs import Job
from ..pipeline.shard import Receipt
from . import logs
from .process import Process, this_process

log = logging.getLogger("raygam.shard")


class Superseded(Retryable):
    """Another supervisor commands this shard; who is told so stands by."""


@dataclass(frozen=True, slots=True)
class ShardReport:
    """A shard's status, and who commands it.

    Attributes:
        status: the host's.
        term: the highest term that a supervisor came with.
        term_age: seconds since a supervisor of that term was heard.
    """

    status: HostStatus
    term: int
    term_age: float


class ShardActor:
    """Thin: what it does is the host's; calls carry batches.

    It never raises while it is made: Ray would give the actor up for good. A host that
    cannot be made (state locked, wrong settings) raises at the first call instead.
    """

    def __init__(self, make_host: Callable[..., ShardHost], name: str, *arguments: Any) -> None:
        logs.configure(name)
        self._lock = threading.Lock()
        self._term = 0
        self._heard = time.monotonic()
        self._made: ShardHost | None = None
        self._make: Callable[[], ShardHost] = lambda: make_host(name, *arguments)

    def process(self) -> Process:
        """The process, to kill it when it does not answer."""
        return this_process()

    def open(self, term: int, partitions: Sequence[int], job: Job | None) -> None:
        """Open partitions by a supervisor's command."""
        self._obey(term)
        self._host.open(partitions, job)

    def give_up(self, term: int, partition: int, drain_seconds: float) -> None:
        """Close a partition by a supervisor's command."""
        self._obey(term)
        self._host.give_up(partition, drain_seconds)

    def read(self, term: int, job: Job) -> None:
        """Read a source for all owned partitions."""
        self._obey(term)
        self._host.read(job)

    def stop_reading(self, term: int) -> None:
        """Stop at a batch's edge."""
        self._obey(term)
        self._host.stop_reading()

    def abandon(self, term: int, holder: str) -> int:
        """A worker is gone: open its tasks again."""
        self._obey(term)
        return self._host.abandon(holder)

    def report(self, term: int) -> ShardReport:
        """The status; a heartbeat of the supervisor that asks."""
        status = self._host.status()
        with self._lock:
            if term >= self._term:
                self._term, self._heard = term, time.monotonic()
            return ShardReport(status, self._term, time.monotonic() - self._heard)

    def close(self) -> None:
        """Stop reading at a batch's edge, and close every partition."""
        self._host.close()

    def ingest(self, batch: TurnBatch) -> Receipt:
        """Apply turns that come by API."""
        return self._host.ingest(batch)

    def flush(self, partition: int, users: Sequence[User] | None) -> int:
        """Record a flush."""
        return self._host.flush(partition, users)

    def wait_for_tasks(self, seconds: float) -> list[int]:
        """Partitions with tasks to claim."""
        return self._host.wait_for_tasks(seconds)

    def claim(self, partition: int, limit: int, holder: str, barred: Container[str]) -> list[LeasedTask]:
        """Lease tasks to a worker."""
        return self._host.claim(partition, limit, holder, barred)

    def submit(self, partition: int, proposals: Sequence[Proposal]) -> list[LeaseLost | None]:
        """Apply proposals."""
        return self._host.submit(partition, proposals)

    def fail(self, partition: int, task_id: str, token: str, error: str, parks: bool) -> None:
        """Give a task back."""
        self._host.fail(partition, task_id, token, error, parks=parks)

    def release(self, partition: int, task_id: str, token: str, reason: str) -> None:
        """Give a task back that nobody could do now."""
        self._host.release(partition, task_id, token, reason)

    def remember(self, partition: int, task_id: str, token: str, calls: Sequence[ModelCall]) -> None:
        """Record calls of a chat model."""
        self._host.remember(partition, task_id, token, calls)

    def change_tasks(self, partition: int, change: TaskChange) -> list[str]:
        """Park tasks, or open parked ones again."""
        return self._host.change_tasks(partition, change)

    def search(
        self, partition: int, user: User, query: str, vector: Vectors | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Answer a query."""
        return self._host.search(partition, user, query, vector, options)

    @property
    def _host(self) -> ShardHost:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _obey(self, term: int) -> None:
        with self._lock:
            if term < self._term:
                raise Superseded(f"a supervisor of term {self._term} commands this shard, not one of term {term}")
            self._term, self._heard = term, time.monotonic()
