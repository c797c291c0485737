"""Several partitions in one process: what a Ray shard actor is made of, without Ray.

A host opens partitions and gives them up on command, reads sources for those that it
has, and answers for them. A partition that another host opened is dropped at the first
write that is refused (`Fenced`): the epoch decides, whatever anybody was told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..memory.chat import ModelCall
from ..memory.errors import Fenced, LeaseLost, NotOwner, RaygamError, Retryable
from ..memory.model import User
from ..memory.ports import Store, Vectors
from ..memory.proposal import Proposal
from ..memory.writes import LeasedTask, MessageKind, TaskChange
from .batches import TurnBatch
from .capacity import obstruction
from .changes import Changes
from .file_feed import FileFeed
from .host_feed import Feed
from .host_status import HostGauges, HostSettings, HostStatus, PartitionStatus
from .intake import Intake
from .jobs import FileJob, Job, TopicJob
from .metrics import Metrics, NoMetrics
from .publisher import MessageSink, Publisher
from .reading import Reading
from .shard import Receipt, Shard
from .topic_feed import TopicFeed, TopicReader
from .whereabouts import this_process

log = logging.getLogger("raygam.shard")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Owned:
    shard: Shard
    closing: bool = False


class ShardHost:
    """Owns some partitions of a store. Thread-safe.

    Args:
        name: the shard's name, in logs and metrics.
        pid: its process.
        store: opened for writing; closed with the host.
        reading: queries; closed with the host.
        intake: turns records into embedded batches.
        settings: the host's settings.
        clock_us: the engine's clock, for leases.
        open_source: opens a file for reading.
        state_path: where the state's disk is looked at; None for a database, which refuses by itself when it is full.
        metrics: where figures go.
        open_topic: opens a topic for reading; None where the host reads files only.
        make_sink: makes what sends messages to other systems, given the topic that was read last; None where
            they stay in the outboxes.
    """

    def __init__(
        self,
        name: str,
        pid: int,
        store: Store,
        reading: Reading,
        intake: Intake,
        settings: HostSettings,
        clock_us: Callable[[], int],
        open_source: Callable[[Path], Any],
        state_path: Path | None,
        metrics: Metrics | None = None,
        open_topic: Callable[[TopicJob], TopicReader] | None = None,
        make_sink: Callable[[TopicJob | None], MessageSink] | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.intake = intake
        self.state_path = state_path
        self.metrics: Metrics = metrics or NoMetrics()
        self._gauges = HostGauges(self.metrics)
        self.open_source = open_source
        self.open_topic = open_topic
        self._pid = pid
        self._store = store
        self._reading = reading
        self._clock_us = clock_us
        self._lock = threading.RLock()  # never held while a file is opened: one that is locked holds up nothing else
        self._opening = threading.Lock()
        self._changes = Changes()
        self._owned: dict[int, _Owned] = {}
        self._feeds: list[Feed] = []
        self._job: Job | None = None
        self._topic_job: TopicJob | None = None
        self._closed = False
        make = None if make_sink is None else lambda: make_sink(self._topic_job)
        self._publisher = Publisher(name, self.partitions, self._calling, make, self.metrics)

    # Ownership

    def open(self, partitions: Sequence[int], job: Job | None = None) -> None:
        """Open partitions, fencing whoever had them, and read the job's source for them.

        What is open here already stays as it is. One that cannot be opened keeps no other from it.

        Raises:
            Retryable: a file is locked by a process that stopped in the middle of a transaction, or the
                disk is full; the other partitions are open.
            RaygamError: the same for a partition that is missing or damaged.
        """
        failed: RaygamError | None = None
        for partition in partitions:
            try:
                self._open(partition)
            except RaygamError as error:
                log.warning("a partition did not open", extra={"partition": partition, "error": str(error)})
                failed = failed or error
        if job is not None:
            self.read(job)
        self._signal()
        if failed is not None:
            raise failed

    def give_up(self, partition: int, drain_seconds: float = 0.0) -> None:
        """Close a partition: no new tasks, reading stopped at a batch's edge, leased tasks waited for.

        Args:
            partition: the partition; nothing happens if it is not owned.
            drain_seconds: how long to wait for tasks that workers have in hand; what comes later
                is refused and worked on again.
        """
        with self._lock:
            entry = self._owned.get(partition)
            if entry is None:
                return
            entry.closing = True
            feeds = [feed for feed in self._feeds if partition in feed.partitions]
        for feed in feeds:
            feed.leave(partition)
        deadline = time.monotonic() + drain_seconds
        while entry.shard.leased_count() and (left := deadline - time.monotonic()) > 0:
            self._changes.wait(self._changes.count, min(left, 0.05))
        self._drop(partition, entry)
        log.info("partition given up", extra={"partition": partition, "epoch": entry.shard.epoch})

    def partitions(self) -> list[int]:
        """The partitions that are open here."""
        with self._lock:
            return sorted(self._owned)

    def close(self) -> None:
        """Stop reading at a batch's edge, and close everything."""
        with self._lock:
            self._closed = True
        self.stop_reading()
        self._publisher.close()
        with self._opening, self._lock:  # an opening that is under way would bump the epoch after the end
            owned = dict(self._owned)
        for partition, entry in owned.items():
            self._drop(partition, entry)
        self._reading.close()
        self._store.close()
        self._signal()

    # Sources

    def read(self, job: Job) -> None:
        """Read a source for all owned partitions that are not read for yet; an earlier job ends at a batch's edge."""
        with self._lock:
            if self._closed:
                raise NotOwner(f"shard {self.name} is closed; ask another")
            self._job = job
            self._topic_job = job if isinstance(job, TopicJob) else self._topic_job
            for feed in self._feeds:
                if feed.job != job or not feed.partitions:
                    feed.stop()
            self._feeds = [feed for feed in self._feeds if feed.job == job and feed.partitions]
            fed = {at for feed in self._feeds for at in feed.partitions}
            wanted = [at for at, entry in self._owned.items() if at not in fed and not entry.closing]
            if wanted and not any(feed.take(wanted) for feed in self._feeds):
                feed = FileFeed(self, job, wanted) if isinstance(job, FileJob) else TopicFeed(self, job, wanted)
                self._feeds.append(feed)
                feed.start()

    def stop_reading(self) -> None:
        """Stop all feeds at a batch's edge, and forget the job."""
        with self._lock:
            feeds, self._feeds, self._job = self._feeds, [], None
        for feed in feeds:
            feed.stop()
        for feed in feeds:
            feed.join()

    def shard(self, partition: int) -> Shard:
        """The writer of an owned partition.

        Raises:
            NotOwner: it is another's.
        """
        return self._entry(partition).shard

    # Calls of workers, drivers and the endpoint

    def ingest(self, batch: TurnBatch) -> Receipt:
        """Apply a batch in one transaction; durable and searchable on return."""
        started = time.perf_counter()
        with self._calling(batch.partition) as shard:
            receipt = shard.ingest(batch)
        self.metrics.observe("raygam_ingest_seconds", time.perf_counter() - started, shard=self.name)
        self.metrics.count("raygam_turns_accepted_total", receipt.accepted, shard=self.name)
        if receipt.duplicates:
            self.metrics.count("raygam_turns_duplicate_total", receipt.duplicates, shard=self.name)
        if receipt.dead_letters:
            self.metrics.count("raygam_dead_letters_total", receipt.dead_letters, shard=self.name)
            self._signal()
        return receipt

    def flush(self, partition: int, users: Sequence[User] | None = None) -> int:
        """Record a flush of users, or of all of the partition."""
        with self._calling(partition) as shard:
            return shard.flush(users)

    def wait_for_tasks(self, seconds: float) -> list[int]:
        """The partitions with tasks to claim; waits for some up to `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self._changes.count
            with self._lock:
                ready = [at for at, entry in self._owned.items() if not entry.closing and entry.shard.has_claimable()]
            left = deadline - time.monotonic()
            if ready or left <= 0 or self._closed:
                return ready
            self._changes.wait(seen, left)

    def claim(self, partition: int, limit: int, holder: str, barred: Container[str] = ()) -> list[LeasedTask]:
        """Lease tasks of a partition to a worker, none of the barred tenants; none while it is given up."""
        with self._calling(partition) as shard:
            return [] if self._entry(partition).closing else shard.claim(limit, barred, holder)

    def abandon(self, holder: str) -> int:
        """A worker is gone: open its tasks again; return how many they were."""
        return sum(self._of_each(lambda shard: shard.abandon(holder)).values())

    def submit(self, partition: int, proposals: Sequence[Proposal]) -> list[LeaseLost | None]:
        """Apply proposals in one transaction."""
        started = time.perf_counter()
        with self._calling(partition) as shard:
            outcomes = shard.submit(proposals)
        self.metrics.observe("raygam_apply_seconds", time.perf_counter() - started, shard=self.name)
        lost = sum(outcome is not None for outcome in outcomes)
        self.metrics.count("raygam_tasks_applied_total", len(outcomes) - lost, shard=self.name)
        if lost:
            self.metrics.count("raygam_leases_lost_total", lost, shard=self.name)
        self._signal()
        return outcomes

    def fail(self, partition: int, task_id: str, token: str, error: str, *, parks: bool = False) -> None:
        """Give a leased task back that could not be done."""
        log.warning("task given back", extra={"partition": partition, "task": task_id, "error": error})
        self.metrics.count("raygam_tasks_failed_total", shard=self.name)
        with self._calling(partition) as shard:
            shard.fail(task_id, token, error, parks=parks)

    def release(self, partition: int, task_id: str, token: str, reason: str) -> None:
        """Give a leased task back that nobody could do now."""
        self.metrics.count("raygam_tasks_released_total", shard=self.name)
        with self._calling(partition) as shard:
            shard.release(task_id, token, reason)

    def remember(self, partition: int, task_id: str, token: str, calls: Sequence[ModelCall]) -> None:
        """Record calls of a chat model for a leased task."""
        with self._calling(partition) as shard:
            shard.remember(task_id, token, calls)

    def change_tasks(self, partition: int, change: TaskChange) -> list[str]:
        """Park tasks, or open parked ones again."""
        with self._calling(partition) as shard:
            return shard.change_tasks(change)

    def search(
        self, partition: int, user: User, query: str, vector: Vectors | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Answer a query from an owned partition, beside its writer."""
        started = time.perf_counter()
        if self._entry(partition).closing:
            raise NotOwner(f"partition {partition} is being moved away from shard {self.name}; ask again")
        answer = self._reading.answer(user, query, vector=vector, **options)
        self.metrics.observe("raygam_search_seconds", time.perf_counter() - started, shard=self.name)
        return answer

    def status(self) -> HostStatus:
        """What this host has and does; also sets its gauges."""
        with self._lock:
            feeds = [feed.status() for feed in self._feeds]
            job = self._job
        partitions = self._of_each(lambda shard: PartitionStatus(shard.epoch, *shard.task_counts(), shard.positions()))
        holders = set().union(*self._of_each(lambda shard: shard.lease_holders()).values())
        messages = self._publisher.unsent().total(), self._publisher.obstacles()
        status = HostStatus(self.name, self._pid, partitions, feeds, job, tuple(sorted(holders)), *messages)
        self._gauges.set(status)
        return status

    def obstruction(self, *, paused: bool) -> str:
        """Why reading waits at the moment, empty if it does not; see `capacity.obstruction`."""
        open_tasks = sum(self._of_each(lambda shard: shard.task_counts()[0]).values())
        turns = sum(self._of_each(lambda shard: shard.waiting_turns()).values())
        updates = self._publisher.unsent()[MessageKind.UPDATE]  # dead letters stay in the ledger in any case
        return obstruction(self.settings, self.state_path, open_tasks, turns, updates, paused=paused)

    def wait_for_capacity(self, stopped: Callable[[], bool], paused: Callable[[str], None]) -> None:
        """Return once tasks and disk have caught up, or `stopped()`; `paused` is told why it waits."""
        why = ""
        while not stopped():
            seen = self._changes.count
            why = self.obstruction(paused=bool(why))
            paused(why)
            if not why:
                return
            self._changes.wait(seen, 0.5)

    def _open(self, partition: int) -> None:
        with self._opening:
            with self._lock:
                if self._closed:
                    raise NotOwner(f"shard {self.name} is closed; ask another")
                if partition in self._owned:
                    return
            started = time.monotonic()
            writer = self._store.writer(partition, this_process(self.name))
            try:
                shard = Shard(writer, self.settings.shard, self._clock_us, self._signal)
            except BaseException:
                writer.close()
                raise
            with self._lock:
                self._owned[partition] = _Owned(shard)
        seconds = round(time.monotonic() - started, 3)
        log.info("partition opened", extra={"partition": partition, "epoch": shard.epoch, "seconds": seconds})

    def _of_each(self, ask: Callable[[Shard], Result]) -> dict[int, Result]:
        """Ask every owned partition; one that is lost or given up meanwhile is left out."""
        answers = {}
        for partition in self.partitions():
            try:
                with self._calling(partition) as shard:
                    answers[partition] = ask(shard)
            except NotOwner:
                continue
        return answers

    @contextmanager
    def _calling(self, partition: int) -> Iterator[Shard]:
        entry = self._entry(partition)
        try:
            yield entry.shard
        except Fenced as error:
            log.warning("partition lost to a newer epoch", extra={"partition": partition, "epoch": entry.shard.epoch})
            self.metrics.count("raygam_fenced_total", shard=self.name)
            self._drop(partition, entry)
            raise NotOwner(f"partition {partition} was opened by another shard; ask who has it") from error
        except Retryable:
            raise
        except Exception as error:
            with self._lock:
                gone = self._owned.get(partition) is not entry
            if gone:  # closed in the middle of the call
                raise NotOwner(
                    f"partition {partition} was just given up by shard {self.name}; ask who has it"
                ) from error
            raise

    def _entry(self, partition: int) -> _Owned:
        with self._lock:
            entry = self._owned.get(partition)
        if entry is None:
            raise NotOwner(f"partition {partition} is not with shard {self.name}; ask who has it")
        return entry

    def _drop(self, partition: int, entry: _Owned) -> None:
        with self._lock:
            feeds: list[Feed] = []
            if self._owned.get(partition) is entry:  # else it was opened again since, and is read for
                del self._owned[partition]
                feeds = list(self._feeds)
        for feed in feeds:
            feed.forget(partition)
        entry.shard.close()

    def _signal(self) -> None:
        self._changes.tell()
        self._publisher.wake()
