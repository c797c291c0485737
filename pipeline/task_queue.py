"""Which task a worker may have: first in first out per user, one leased at a time.

The queue mirrors the ledger's task rows; the shard writes every change of it in the
transaction that makes the change true.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, replace
from itertools import islice

from ..memory.errors import LeaseLost
from ..memory.model import User
from ..memory.writes import LeasedTask, TaskRow, TaskStatus


@dataclass(frozen=True, slots=True)
class AllBut:
    """Every tenant but these."""

    tenants: frozenset[str]

    def __contains__(self, tenant: object) -> bool:
        return tenant not in self.tenants


class TaskQueue:
    """A partition's unfinished tasks."""

    def __init__(self, tasks: Iterable[TaskRow], before: TaskQueue | None = None) -> None:
        """Start from the ledger's unfinished ones; a lease of an earlier epoch counts as open.

        Args:
            tasks: as the ledger has them.
            before: what this queue stands in for, in the same epoch; leases that the ledger knows too go on.
        """
        self._waiting: dict[User, list[TaskRow]] = {}
        self._ready: OrderedDict[User, None] = OrderedDict()
        self._leases: dict[str, LeasedTask] = {}
        self._holders: dict[str, str] = {}
        for task in tasks:
            leased = before._leases.get(task.id) if before is not None else None
            goes_on = task.status == TaskStatus.LEASED and leased and leased.task.attempts == task.attempts
            self.add(task if task.status == TaskStatus.PARKED else replace(task, status=TaskStatus.OPEN))
            if before is not None and leased is not None and goes_on:
                self.lease(leased, before._holders[task.id])

    def __len__(self) -> int:
        return sum(len(tasks) for tasks in self._waiting.values())

    def add(self, task: TaskRow) -> None:
        """Take a new task."""
        tasks = self._waiting.setdefault(task.user, [])
        bisect.insort(tasks, task, key=lambda held: (held.position_seq, held.ordinal))
        self._refresh(task.user)

    def expired(self, now_us: int) -> list[LeasedTask]:
        """Leases that have run out; `give_back` their tasks before the next claim."""
        # As few as the workers hold at a time: looked through, none is left behind to be kept in order.
        return [leased for leased in self._leases.values() if leased.lease_until_us <= now_us]

    def claimable(self, limit: int, barred: Container[str] = ()) -> list[TaskRow]:
        """Up to `limit` tasks that may be leased, at most one of a user; whose last one ended longest ago come first.

        Args:
            limit: tasks wanted.
            barred: tenants that are passed over; their users keep their places.
        """
        ready = (user for user in self._ready if user.tenant not in barred) if barred else self._ready
        return [self._waiting[user][0] for user in islice(ready, limit)]

    def leased_count(self) -> int:
        """Tasks in workers' hands."""
        return len(self._leases)

    def holders(self) -> set[str]:
        """Who has leases."""
        return set(self._holders.values())

    def held_by(self, holder: str) -> list[LeasedTask]:
        """The leases of one worker."""
        return [self._leases[task_id] for task_id, name in self._holders.items() if name == holder]

    def lease(self, leased: LeasedTask, holder: str = "") -> None:
        """Put a claimable task into a worker's hands."""
        self._leases[leased.task.id] = leased
        self._holders[leased.task.id] = holder
        self._replace(leased.task)
        self._ready.pop(leased.task.user, None)

    def held(self, task_id: str, token: str, now_us: int) -> TaskRow:
        """The task, if it is leased under this token and the lease has not expired.

        Raises:
            LeaseLost: otherwise.
        """
        leased = self._leases.get(task_id)
        if leased is None or leased.token != token or leased.lease_until_us <= now_us:
            raise LeaseLost(
                f"task {task_id} is not leased under token {token}: its lease expired or it was finished; "
                "drop the proposal and claim again"
            )
        return leased.task

    def finish(self, task: TaskRow) -> None:
        """Remove an applied task."""
        del self._leases[task.id], self._holders[task.id]
        tasks = self._waiting[task.user]
        tasks.pop(0)
        if not tasks:
            del self._waiting[task.user]
        self._refresh(task.user)

    def give_back(self, task: TaskRow, error: str, *, parks: bool) -> None:
        """A worker could not finish a leased task, or not in time; its user comes behind the others."""
        del self._leases[task.id], self._holders[task.id]
        status = TaskStatus.PARKED if parks else TaskStatus.OPEN
        self._replace(replace(task, status=status, error=error))
        self._refresh(task.user)

    def named(self, ids: Collection[str]) -> list[TaskRow]:
        """Those of the tasks that are not done."""
        return [task for tasks in self._waiting.values() for task in tasks if task.id in ids]

    def park(self, task: TaskRow, reason: str) -> None:
        """A person puts a task aside; whoever has it in hand has it no more."""
        self._leases.pop(task.id, None)
        self._holders.pop(task.id, None)
        self._replace(replace(task, status=TaskStatus.PARKED, error=reason, parked_by_person=True))
        self._refresh(task.user)

    def reopen(self, task: TaskRow) -> None:
        """A parked task begins anew."""
        self._replace(replace(task, status=TaskStatus.OPEN, attempts=0, parked_by_person=False))
        self._refresh(task.user)

    def is_parked(self, user: User) -> bool:
        """Whether the user's first task is parked: nothing of the user goes on until it is opened again."""
        tasks = self._waiting.get(user)
        return bool(tasks) and tasks[0].status == TaskStatus.PARKED  # type: ignore[index]

    def parked_by_failure(self) -> list[TaskRow]:
        """Tasks that were parked, and not by a person."""
        return [
            task
            for tasks in self._waiting.values()
            for task in tasks
            if task.status == TaskStatus.PARKED and not task.parked_by_person
        ]

    def counts(self) -> tuple[int, int]:
        """Tasks that will be worked on, and tasks that are parked."""
        parked = sum(task.status == TaskStatus.PARKED for tasks in self._waiting.values() for task in tasks)
        return len(self) - parked, parked

    def blocked_by_parking(self) -> int:
        """Tasks of users whose first task is parked: they wait for a person."""
        return sum(len(tasks) for tasks in self._waiting.values() if tasks[0].status == TaskStatus.PARKED)

    def _replace(self, task: TaskRow) -> None:
        tasks = self._waiting[task.user]
        tasks[[held.id for held in tasks].index(task.id)] = task

    def _refresh(self, user: User) -> None:
        tasks = self._waiting.get(user)
        if tasks and tasks[0].status == TaskStatus.OPEN and not any(task.id in self._leases for task in tasks):
            self._ready.setdefault(user, None)
        else:
            self._ready.pop(user, None)
