"""The single writer of one partition: turns in, tasks out, proposals applied.

Every change is one transaction (invariant 1). What the shard holds in memory is a
copy of the ledger: when a commit fails it is thrown away and read again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..memory.chat import ModelCall
from ..memory.errors import LeaseLost
from ..memory.model import User
from ..memory.ports import Writer
from ..memory.progression import Limits
from ..memory.proposal import Proposal
from ..memory.writes import (
    CommandRow,
    LeasedTask,
    OutboxMessage,
    ReplayRun,
    SourcePosition,
    TaskChange,
    TaskRow,
    WriteSet,
)
from .archiving import closed_episode, links_of
from .arriving import take_rows
from .batches import TurnBatch
from .leasing import LeaseRules, Leasing
from .outbox import Outbox, OutboxRules
from .residents import FLUSH, Resident, Residents
from .task_queue import TaskQueue

API_SOURCE = "api"
_FLUSHED_TOGETHER = 1024
"""Users of one transaction of a flush; other calls get in between two."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Settings of a shard.

    Attributes:
        limits: when buffers are looked at.
        lease_seconds: how long a worker may take for a task.
        max_attempts: leases of a task before it is parked.
        max_resident_users: users held in memory; the rest are rows on disk.
        outbox: what is told to other systems.
    """

    limits: Limits = field(default_factory=Limits)
    lease_seconds: float = 300.0
    max_attempts: int = 5
    max_resident_users: int = 4096
    outbox: OutboxRules = field(default_factory=OutboxRules)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a batch: durable and searchable.

    Attributes:
        partition: where it was applied.
        position: the partition's latest `seq`; a query may ask to see at least this.
        accepted: turns that are new.
        duplicates: turns that were stored before, or earlier in the batch.
        dead_letters: records put aside.
    """

    partition: int
    position: int
    accepted: int = 0
    duplicates: int = 0
    dead_letters: int = 0


class Shard:
    """Owns one partition. Thread-safe: calls wait for each other.

    Args:
        writer: the partition, opened for writing.
        settings: the shard's settings.
        clock_us: the engine's clock; decides leases only.
        on_tasks: called after a commit that left tasks to claim.
    """

    def __init__(
        self,
        writer: Writer,
        settings: ShardSettings,
        clock_us: Callable[[], int],
        on_tasks: Callable[[], None] = lambda: None,
    ) -> None:
        self._writer = writer
        self._settings = settings
        self._clock_us = clock_us
        self._on_tasks = on_tasks
        self._lock = threading.RLock()
        self._tokens = (f"{writer.epoch}-{number}" for number in itertools.count(1))  # none twice within an epoch
        self._stale = False
        self._next_seq = 0
        self._queue = TaskQueue(())
        self._recover()
        parked = self._queue.parked_by_failure()
        if parked:  # what stood in their way may be mended by now
            writer.commit(WriteSet(reopened=[task.id for task in parked]))
            self._recover()

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._writer.partition

    @property
    def epoch(self) -> int:
        """The epoch of this opening."""
        return self._writer.epoch

    def positions(self) -> dict[str, SourcePosition]:
        """How far each source has been taken."""
        with self._lock:
            return dict(self._positions)

    def task_counts(self) -> tuple[int, int]:
        """Unfinished tasks that workers will take, and parked ones with those behind them."""
        with self._lock:
            if self._stale:  # after a commit that failed, tasks that it would have finished are not
                self._recover()
            blocked = self._queue.blocked_by_parking()
            return len(self._queue) - blocked, blocked

    def waiting_turns(self) -> int:
        """Turns in memory behind tasks that workers will take; those behind parked ones are on disk."""
        with self._lock:
            return self._residents.waiting_turns()

    def ingest(self, batch: TurnBatch) -> Receipt:
        """Apply a batch in one transaction; what was applied before is skipped.

        Raises:
            Fenced: another writer has the partition.
            Retryable: the store is busy or full; nothing was written.
        """
        with self._lock, self._consistently():
            stored = self._positions.get(batch.source)
            applied = stored.next_offset if stored is not None else 0
            write = WriteSet()
            if batch.position is None:  # the ledger's own counter: nothing of it was seen before
                offsets = list(range(applied, applied + batch.records.num_rows))
                write.positions[batch.source] = SourcePosition(applied + len(offsets), batch.source)
            else:
                offsets = batch.records.column("offset").to_pylist()
                write.dead_letters = [letter for letter in batch.dead_letters if letter.offset >= applied]
                if batch.position.next_offset >= applied:
                    write.positions[batch.source] = batch.position
                self._outbox.tell_of_letters(batch, self.partition, write)
            duplicates = self._take_rows(batch, offsets, applied, write)
            self._commit(write)
            return Receipt(self.partition, self._next_seq - 1, len(write.events), duplicates, len(write.dead_letters))

    def flush(self, users: Iterable[User] | None = None) -> int:
        """Record a flush for users with live events (all of them if None); return how many.

        A user that was never seen has none.
        """
        with self._lock, self._consistently():
            wanted = self._writer.unsettled_users() if users is None else list(dict.fromkeys(users))
        recorded = 0
        chunk = min(self._settings.max_resident_users, _FLUSHED_TOGETHER)
        for start in range(0, len(wanted), chunk):
            recorded += self._flush(wanted[start : start + chunk])
            time.sleep(0.001)  # a lock is not fair: else who waits for it gets it at the end, after minutes maybe
        return recorded

    def has_claimable(self) -> bool:
        """Whether `claim` would find anything to do."""
        with self._lock:
            return bool(self._queue.claimable(1) or self._queue.expired(self._clock_us()))

    def leased_count(self) -> int:
        """Tasks that are in workers' hands."""
        with self._lock:
            return self._queue.leased_count()

    def lease_holders(self) -> set[str]:
        """The workers that have tasks in hand."""
        with self._lock:
            return self._queue.holders()

    def claim(self, limit: int, barred: Container[str] = (), holder: str = "") -> list[LeasedTask]:
        """Lease up to `limit` tasks, at most one of a user, first in first out; users take turns.

        A task whose last allowed lease has run out is parked: nobody would ever finish it.

        Args:
            limit: tasks wanted.
            barred: tenants that are passed over.
            holder: the worker's name, for `abandon`.
        """
        with self._lock, self._consistently():
            return self._leasing.claim(limit, barred, holder)

    def submit(self, proposals: Sequence[Proposal]) -> list[LeaseLost | None]:
        """Apply proposals in one transaction; a lost lease drops its own proposal only.

        Returns:
            For each proposal None, or why it changed nothing.
        """
        with self._lock, self._consistently():
            kept, outcomes = self._leasing.sorted_out(proposals)
            if kept:
                residents = self._residents.take([task.user for task, _ in kept])
                write = WriteSet()
                for task, proposal in kept:
                    self._apply(task, proposal, residents[task.user], write)
                for task, _ in kept:
                    self._queue.finish(task)
                self._settle(write, residents)
                self._commit(write)
            return outcomes

    def fail(self, task_id: str, token: str, error: str, *, parks: bool = False) -> None:
        """Give a leased task back; it is parked at once, or after `max_attempts` leases.

        Raises:
            LeaseLost: the task is not this worker's any more.
        """
        with self._lock, self._consistently():
            if not self._leasing.fail(task_id, token, error, parks=parks):
                self._on_tasks()

    def release(self, task_id: str, token: str, reason: str) -> None:
        """Give a leased task back as if it had not been claimed: nobody could do it now. Its user comes last.

        Raises:
            LeaseLost: the task is not this worker's any more.
        """
        with self._lock, self._consistently():
            self._leasing.release(task_id, token, reason)
            self._on_tasks()

    def remember(self, task_id: str, token: str, calls: Sequence[ModelCall]) -> None:
        """Record calls of a chat model for a leased task; answers are kept until the task is applied.

        Raises:
            LeaseLost: the task is not this worker's any more; nothing was written.
        """
        with self._lock, self._consistently():
            self._leasing.remember(task_id, token, calls)

    def change_tasks(self, change: TaskChange) -> list[str]:
        """Park tasks, or open parked ones again; return the ids of those that stand so now, others are done or not here."""
        with self._lock, self._consistently():
            changed = self._leasing.change(change)
            self._on_tasks()
            return changed

    def abandon(self, holder: str) -> int:
        """Give back every task of a worker that is gone; return how many. None waits for its lease to run out."""
        with self._lock, self._consistently():
            count = self._leasing.abandon(holder)
            if count:
                self._on_tasks()
            return count

    def unsent(self) -> dict[str, int]:
        """How many messages for other systems wait, by kind; a kind without any is left out."""
        with self._lock:
            return self._outbox.unsent()

    def messages(self, kind: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        """The first messages of a kind that wait, in order; at least one if there is any."""
        with self._lock:
            return self._outbox.messages(kind, limit, max_bytes)

    def acknowledge(self, kind: str, number: int, count: int) -> None:
        """Delete the messages of a kind up to a number, which are with their receiver; `count` is how many."""
        with self._lock, self._consistently():
            self._commit(WriteSet(acknowledged={kind: number}))
            self._outbox.forget(kind, count)

    def begin_replay(self, replay: ReplayRun) -> None:
        """Record that these letters are taken up again; from here on it goes to its end, whoever ends it."""
        with self._lock, self._consistently():
            self._commit(WriteSet(replays=[replay]))

    def end_replay(self, run: int) -> None:
        """Record that all letters of a run are with their owners."""
        with self._lock, self._consistently():
            self._commit(WriteSet(replays_done=[run]))

    def close(self) -> None:
        """Close the partition; leases end with it."""
        with self._lock:
            self._writer.close()

    def _flush(self, users: Sequence[User]) -> int:
        with self._lock, self._consistently():
            residents = self._residents.take(users)
            write = WriteSet()
            touched = [user for user, resident in residents.items() if resident.has_live_events()]
            for user in touched:
                command = CommandRow(self._take_seq(), user, FLUSH, "")
                write.commands.append(command)
                residents[user].command(command)
            self._settle(write, {user: residents[user] for user in touched})
            self._commit(write)
            return len(touched)

    def _take_rows(self, batch: TurnBatch, offsets: list[int], applied: int, write: WriteSet) -> int:
        """Put the batch's new turns and end records into the write; return the duplicates."""
        wanted = [at for at, offset in enumerate(offsets) if offset >= applied]
        if not wanted:
            return 0
        self._next_seq, duplicates, residents = take_rows(
            batch, offsets, wanted, self._next_seq, write, self._writer.known_messages, self._residents.take
        )
        self._settle(write, residents)
        return duplicates

    def _settle(self, write: WriteSet, residents: dict[User, Resident]) -> None:
        """Count what may be counted; put new tasks and changed users into the write."""
        for resident in residents.values():
            write.tasks.extend(resident.advance(self._settings.limits, self._writer.archived_until_us))
            row = resident.changed_row()
            if row is not None:
                write.users.append(row)

    def _apply(self, task: TaskRow, proposal: Proposal, resident: Resident, write: WriteSet) -> None:
        held = resident.buffers[task.session_id]
        last_us: int | None = None
        seqs: list[int] = []
        topics = 0
        for ordinal, proposed in enumerate(proposal.episodes):
            closed = closed_episode(task, ordinal, proposed, held)
            write.closed.append(closed)
            self._outbox.tell_of_episode(closed, held, write)
            seqs.extend(proposed.seqs)
            topics += closed.topic is not None
            last_us = closed.episode.last_us if last_us is None else max(last_us, closed.episode.last_us)
        resident.close(task, seqs, last_us, self._settings.limits)
        resident.topics += topics
        write.links += links_of(task, proposal)
        write.finished.append((task.id, proposal.token))

    def _commit(self, write: WriteSet) -> None:
        """Write, then let the copies in memory follow."""
        self._writer.commit(write)
        self._positions.update(write.positions)
        self._outbox.follow(write)
        for task in write.tasks:
            self._queue.add(task)
        self._residents.shrink()
        if write.tasks or write.finished:
            self._on_tasks()

    @contextmanager
    def _consistently(self) -> Iterator[None]:
        """Read the ledger back after a call that broke off: memory never outlives a failed commit."""
        if self._stale:
            self._recover()
        self._stale = True
        try:
            yield
        except LeaseLost:  # refused before anything changed
            self._stale = False
            raise
        self._stale = False

    def _recover(self) -> None:
        self._queue = TaskQueue(self._writer.unfinished_tasks(), self._queue)
        rules = LeaseRules(self._settings.lease_seconds, self._settings.max_attempts)
        self._leasing = Leasing(self._queue, rules, self._tokens, self._clock_us, self._commit)
        self._residents = Residents(self._writer, self._settings.max_resident_users, self._queue.is_parked)
        self._positions = dict(self._writer.positions())
        self._next_seq = self._writer.counters()["seq"]
        self._outbox = Outbox(self._writer, self._settings.outbox)
        self._stale = False

    def _take_seq(self) -> int:
        seq = self._next_seq
        self._next_seq += 1
        return seq
