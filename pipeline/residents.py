"""Users in a shard's hands: their buffers and what is not counted yet.

A resident is a working copy of ledger rows. It changes before its transaction
commits, so after a failed commit the shard drops it and loads it again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..memory import identity
from ..memory.model import Trigger, User
from ..memory.ports import ShardReader
from ..memory.progression import (
    Arrival,
    Flush,
    Limits,
    Progress,
    SessionEnd,
    Stimulus,
    TaskRequest,
    applied,
    decide,
)
from ..memory.writes import BufferedEvent, CommandRow, StoredUser, TaskRow, UserRow

FLUSH = "flush"
SESSION_END = "session_end"


@dataclass(slots=True)
class Resident:
    """One user's live buffers (its event progression graphs' nodes) and pending stimuli.

    `row` is the row as the ledger has it; `changed_row` makes the next one. `archived_until_us`
    holds the ends of the archives of sessions with a live buffer. One that is `on_disk` holds
    no turns: its gate stays closed, so that its turns are written and not looked at.
    """

    row: UserRow
    progress: Progress
    last_seq: int
    events: int
    topics: int
    tasks_applied: int
    buffers: dict[str, dict[int, BufferedEvent]] = field(default_factory=dict)
    uncounted: deque[tuple[Stimulus, BufferedEvent | None]] = field(default_factory=deque)
    archived_until_us: dict[str, int | None] = field(default_factory=dict)
    on_disk: bool = False

    @classmethod
    def load(cls, stored: StoredUser, *, on_disk: bool = False) -> Resident:
        """Build the working copy of a stored user."""
        resident = cls.of(stored.row)
        resident.on_disk = on_disk
        counted = stored.row.progress.counted_seq
        pending: list[tuple[Stimulus, BufferedEvent | None]] = [(_command(row), None) for row in stored.commands]
        for event in stored.buffered:
            if event.seq <= counted:
                resident.buffers.setdefault(event.session_id, {})[event.seq] = event
            else:
                pending.append((_arrival(event), event))
        resident.uncounted.extend(sorted(pending, key=lambda item: item[0].seq))
        return resident

    @classmethod
    def of(cls, row: UserRow) -> Resident:
        """A resident with nothing live."""
        return cls(row, row.progress, row.last_seq, row.events, row.topics, row.tasks_applied)

    def changed_row(self) -> UserRow | None:
        """The row to save now, None if it is as saved."""
        row = UserRow(self.row.user, self.progress, self.last_seq, self.events, self.tasks_applied, self.topics)
        if row == self.row:
            return None
        self.row = row
        return row

    def arrive(self, event: BufferedEvent) -> None:
        """Take an event that was just given its `seq`."""
        if not self.on_disk:
            self.uncounted.append((_arrival(event), event))
        self.last_seq = event.seq
        self.events += 1

    def command(self, row: CommandRow) -> None:
        """Take a recorded command that was just given its `seq`."""
        if not self.on_disk:
            self.uncounted.append((_command(row), None))
        self.last_seq = row.seq

    def has_live_events(self) -> bool:
        """Whether a flush would have anything to close, now or once it is counted."""
        return bool(self.progress.buffers) or any(event is not None for _, event in self.uncounted)

    def advance(self, limits: Limits, archived_until: Callable[[User, str], int | None]) -> list[TaskRow]:
        """Count stimuli until a task is wanted or none is left; return the tasks."""
        tasks: list[TaskRow] = []
        progress = self.progress
        while self.uncounted and not progress.open_tasks:
            stimulus, event = self.uncounted[0]
            following = self.uncounted[1][0] if len(self.uncounted) > 1 else None
            decision = decide(progress, stimulus, limits, following)
            progress = decision.state
            if decision.counted:
                self.uncounted.popleft()
                if event is not None:
                    self.buffers.setdefault(event.session_id, {})[event.seq] = event
            elif not decision.tasks:
                break  # it waits for the next one
            for ordinal, request in enumerate(decision.tasks):
                tasks.append(self._freeze(request, stimulus.seq, ordinal, archived_until))
        self.progress = progress
        if len(self.archived_until_us) > len(self.buffers):
            # A user has sessions without end: of one that comes again, the ledger is asked again.
            self.archived_until_us = {
                session: until for session, until in self.archived_until_us.items() if session in self.buffers
            }
        return tasks

    def close(self, task: TaskRow, seqs: Iterable[int], last_us: int | None, limits: Limits) -> None:
        """Take an applied task's events out of their buffer.

        Args:
            task: the task.
            seqs: events that the task's episodes hold; empty if no boundary was found.
            last_us: end of the latest of these episodes, None if there is none.
            limits: the maintenance settings.
        """
        session_id = task.session_id
        buffer = self.buffers[session_id]
        taken = [buffer.pop(seq) for seq in seqs]
        if not buffer:
            del self.buffers[session_id]
        if last_us is not None and task.trigger != Trigger.AHEAD:
            # From the task, not the ledger: that has these episodes only once this transaction is committed,
            # and the session's next task may be frozen before.
            known = task.archived_until_us
            self.archived_until_us[session_id] = last_us if known is None else max(known, last_us)
        self.progress = applied(
            self.progress,
            session_id,
            events=len(taken),
            tokens=sum(event.tokens for event in taken),
            limits=limits,
        )
        self.tasks_applied += 1

    def _freeze(
        self, request: TaskRequest, seq: int, ordinal: int, archived_until: Callable[[User, str], int | None]
    ) -> TaskRow:
        session = request.session_id
        user = self.row.user
        if session not in self.archived_until_us:
            self.archived_until_us[session] = archived_until(user, session)
        held = self.buffers[session]
        events = [held[seq]] if request.alone else sorted(held.values(), key=lambda event: (event.time_us, event.seq))
        return TaskRow(
            id=identity.task_id(user, session, request.trigger, [event.message_id for event in events]),
            user=user,
            session_id=session,
            trigger=request.trigger,
            closes_tail=request.closes_tail,
            force=request.force,
            seqs=tuple(event.seq for event in events),
            position_seq=seq,
            ordinal=ordinal,
            archived_until_us=self.archived_until_us[session],
        )


class Residents:
    """The users a shard holds in memory, the least recently used leaving first.

    `capacity` bounds the users; what leaves is its rows in the ledger, nothing else. Of users
    that a parked task holds up only rows are held: their turns may wait for weeks.
    """

    def __init__(self, reader: ShardReader, capacity: int, is_parked: Callable[[User], bool]) -> None:
        self._reader = reader
        self._capacity = capacity
        self._is_parked = is_parked
        self._held: OrderedDict[User, Resident] = OrderedDict()
        self._taken: dict[User, Resident] = {}
        self._waiting: dict[User, int] = {}  # turns behind open tasks, also of users that have left

    def __len__(self) -> int:
        return len(self._held)

    def take(self, users: Sequence[User]) -> dict[User, Resident]:
        """The residents of these users, loaded or made where they are missing."""
        missing: tuple[list[User], list[User]] = ([], [])
        for user in users:
            held, parked = self._held.get(user), self._is_parked(user)
            if held is None or held.on_disk != parked:
                missing[parked].append(user)
        for on_disk, wanted in enumerate(missing):
            stored = self._reader.load(wanted, whole=not on_disk) if wanted else {}
            for user in wanted:
                found = stored.get(user)
                self._held[user] = (
                    Resident.load(found, on_disk=bool(on_disk)) if found else Resident.of(UserRow(user, Progress()))
                )
        taken = {}
        for user in users:
            self._held.move_to_end(user)
            taken[user] = self._held[user]
        self._taken |= taken
        return taken

    def waiting_turns(self) -> int:
        """Turns that are counted only once workers have applied what is before them."""
        for user in [user for user in self._waiting if self._is_parked(user)]:
            del self._waiting[user]  # no worker will
            self._held.pop(user, None)
        return sum(self._waiting.values())

    def shrink(self) -> None:
        """Evict down to the capacity; called between transactions."""
        for user, resident in self._taken.items():
            if resident.uncounted and resident.progress.open_tasks:
                self._waiting[user] = len(resident.uncounted)
            else:
                self._waiting.pop(user, None)
        self._taken = {}
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)


def _arrival(event: BufferedEvent) -> Arrival:
    return Arrival(event.seq, event.session_id, event.time_us, event.tokens)


def _command(row: CommandRow) -> SessionEnd | Flush:
    return Flush(row.seq) if row.kind == FLUSH else SessionEnd(row.seq, row.session_id)
