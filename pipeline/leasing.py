"""A partition's tasks in workers' hands: leased, given back, parked; each step is a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace

from ..memory.chat import ModelCall
from ..memory.errors import LeaseLost
from ..memory.proposal import Proposal
from ..memory.writes import LeasedTask, TaskCalls, TaskChange, TaskFailure, TaskRow, TaskStatus, WriteSet
from .task_queue import TaskQueue


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """How long, and how often, a worker may try.

    Attributes:
        lease_seconds: how long a worker may take for a task.
        max_attempts: leases of a task before it is parked.
    """

    lease_seconds: float
    max_attempts: int


class Leasing:
    """Gives tasks to workers and takes them back. The shard serialises calls, and reads back after one that failed.

    Args:
        queue: the partition's unfinished tasks.
        rules: for how long, how often.
        tokens: names of leases, none twice in an epoch.
        clock_us: the engine's clock.
        commit: writes to the ledger; raises where nothing was written.
    """

    def __init__(
        self,
        queue: TaskQueue,
        rules: LeaseRules,
        tokens: Iterator[str],
        clock_us: Callable[[], int],
        commit: Callable[[WriteSet], None],
    ) -> None:
        self._queue = queue
        self._rules = rules
        self._tokens = tokens
        self._clock_us = clock_us
        self._commit = commit

    def claim(self, limit: int, barred: Container[str], holder: str) -> list[LeasedTask]:
        """Lease up to `limit` tasks, at most one of a user, none of the barred tenants.

        A task whose last allowed lease has run out is parked: nobody would ever finish it.
        """
        now = self._clock_us()
        spent: list[TaskFailure] = []
        for late in self._queue.expired(now):
            error = f"no worker finished it within {self._rules.lease_seconds:g} s (setting lease_seconds)"
            parks = self._is_spent(late.task)
            if parks:
                spent.append(TaskFailure(late.task.id, late.token, error, parks))
            self._queue.give_back(late.task, error, parks=parks)
        chosen = self._queue.claimable(limit, barred)
        if not chosen and not spent:
            return []
        until = now + int(self._rules.lease_seconds * 1_000_000)
        leases = [
            LeasedTask(replace(task, status=TaskStatus.LEASED, attempts=task.attempts + 1), next(self._tokens), until)
            for task in chosen
        ]
        self._commit(WriteSet(leases=leases, failures=spent))
        for leased in leases:
            self._queue.lease(leased, holder)
        return leases

    def sorted_out(
        self, proposals: Sequence[Proposal]
    ) -> tuple[list[tuple[TaskRow, Proposal]], list[LeaseLost | None]]:
        """The proposals whose leases hold, with their tasks; and for each proposal given None, or why it comes too late."""
        now = self._clock_us()
        kept: list[tuple[TaskRow, Proposal]] = []
        outcomes: list[LeaseLost | None] = []
        for proposal in proposals:
            try:
                kept.append((self._queue.held(proposal.task_id, proposal.token, now), proposal))
                outcomes.append(None)
            except LeaseLost as lost:
                outcomes.append(lost)
        return kept, outcomes

    def fail(self, task_id: str, token: str, error: str, *, parks: bool) -> bool:
        """Give a task back that could not be done; return whether it was parked.

        Raises:
            LeaseLost: the task is not this worker's any more.
        """
        task = self._queue.held(task_id, token, self._clock_us())
        parks = parks or self._is_spent(task)
        self._commit(WriteSet(failures=[TaskFailure(task_id, token, error, parks)]))
        self._queue.give_back(task, error, parks=parks)
        return parks

    def release(self, task_id: str, token: str, reason: str) -> None:
        """Give a task back as it was before the lease; its user comes behind the others.

        Raises:
            LeaseLost: the task is not this worker's any more.
        """
        task = self._queue.held(task_id, token, self._clock_us())
        self._commit(WriteSet(failures=[TaskFailure(task_id, token, reason, parks=False, counts=False)]))
        self._queue.give_back(replace(task, attempts=task.attempts - 1), reason, parks=False)

    def remember(self, task_id: str, token: str, calls: Sequence[ModelCall]) -> None:
        """Record calls of a chat model that were made for a task.

        Raises:
            LeaseLost: the task is not this worker's any more; nothing of it is written.
        """
        self._queue.held(task_id, token, self._clock_us())
        self._commit(WriteSet(calls=[TaskCalls(task_id, token, calls)]))

    def change(self, change: TaskChange) -> list[str]:
        """Park tasks, whoever has them in hand, or open parked ones again; return the ids of those that stand so now."""
        tasks = self._queue.named(change.ids)
        if change.parks is None:
            parked = [task for task in tasks if task.status == TaskStatus.PARKED]
            if parked:
                self._commit(WriteSet(reopened=[task.id for task in parked]))
            for task in parked:
                self._queue.reopen(task)
        elif tasks:
            self._commit(WriteSet(parked=[(task.id, change.parks) for task in tasks]))
            for task in tasks:
                self._queue.park(task, change.parks)
        return [task.id for task in tasks]

    def abandon(self, holder: str) -> int:
        """Give back every task of a worker that is gone; return how many."""
        error = f"worker {holder} ended with the task in its hands"
        held = self._queue.held_by(holder)
        failures = [TaskFailure(each.task.id, each.token, error, self._is_spent(each.task)) for each in held]
        if failures:
            self._commit(WriteSet(failures=failures))
            for leased, failure in zip(held, failures, strict=True):
                self._queue.give_back(leased.task, error, parks=failure.parks)
        return len(failures)

    def _is_spent(self, task: TaskRow) -> bool:
        return task.attempts >= self._rules.max_attempts
