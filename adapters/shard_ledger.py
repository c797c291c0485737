"""What a partition's writer holds in memory, and what its shard reads back, over any database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from ..memory.errors import Fenced
from ..memory.model import User
from ..memory.writes import CommandRow, OutboxMessage, SourcePosition, StoredUser, TaskRow
from . import rows
from .outbox_rows import first_messages
from .place import Place
from .session import Session
from .statements import Statements


class ShardLedger(ABC):
    """A partition on its writer's connection, as its shard reads it back; see `ShardReader` in `memory/ports.py`.

    Args:
        place: the partition's place; its tables are up to date.
        statements: in the SQL of the session.
        dimension: of the vectors.
        opened_by: who opens it, for people.
    """

    _session: Session
    _epoch: int

    def __init__(self, place: Place, statements: Statements, dimension: int, opened_by: str) -> None:
        self._place = place
        self._statements = statements
        self._opened_by = opened_by
        self._dimension = dimension
        self._next_seq = self._next_vector_seq = self._next_owner = 1
        self._counts: dict[str, int] = {}
        self._owners: dict[User, int] = {}
        self._sessions: dict[int, frozenset[str]] = {}  # whose buffers stand in the ledger, as far as known
        self._closed = False

    @abstractmethod
    def _errors(self) -> AbstractContextManager[None]:
        """The block's errors of the database come out as ours."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """A write transaction that ends with the block: committed, or rolled back on any error."""

    @abstractmethod
    def close(self) -> None:
        """Close; twice is once."""

    def _ready(self) -> None:  # noqa: B027 - nothing to do where a connection cannot be lost
        """Have a session to work with, and in memory what the ledger says.

        Raises:
            Fenced: another engine has the partition.
            Retryable: there is none now.
        """

    def _refuse_other(self) -> None:  # noqa: B027 - nothing to do where all partitions lie together
        """Refuse to make the partition where another one lies."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._place.partition

    @property
    def epoch(self) -> int:
        """The epoch of this opening."""
        return self._epoch

    def counters(self) -> Mapping[str, int]:
        """Next free numbers; none is given twice, also after an erase."""
        self._ready()
        return {"seq": self._next_seq, "vector_seq": self._next_vector_seq}

    def positions(self) -> Mapping[str, SourcePosition]:
        """Every source's position in this partition, by source id."""
        self._ready()
        with self._errors():
            found = self._session.execute(self._statements.READ_SOURCES, self._place.partition_here).fetchall()
        return {source: rows.to_position(position) for source, _, *position in found}

    def known_messages(self, keys: Sequence[tuple[User, str]]) -> set[tuple[User, str]]:
        """Those `(user, message_id)` pairs that are already stored."""
        self._ready()
        with self._errors():
            owners = self._stored_owners(dict.fromkeys(user for user, _ in keys))
            if not owners:
                return set()
            pairs = [(owner, message_id) for user, message_id in keys if (owner := owners.get(user)) is not None]
            found = self._session.execute(self._statements.KNOWN_MESSAGES, (rows.encode(pairs),)).fetchall()
        if not found:
            return set()
        users = {owner: user for user, owner in owners.items()}
        return {(users[owner], message_id) for owner, message_id in found}

    def load(self, users: Sequence[User], *, whole: bool = True) -> dict[User, StoredUser]:
        """Those of the users that are stored, or their rows alone; five statements for all of them.

        Raises:
            Fenced: another engine has the partition, and these may be its writes.
        """
        self._ready()
        pairs = rows.encode([(user.tenant, user.user_id) for user in users])
        with self._errors():
            self._check_epoch(self._statements.READ_PARTITION)
            found = self._session.execute(self._statements.READ_USERS, (pairs, *self._place.owners_here)).fetchall()
            if not found:
                return {}
            owners = (rows.encode([row[0] for row in found]),)
            buffers = rows.group_buffers(self._session.execute(self._statements.READ_BUFFERS, owners))
            reads = (self._statements.READ_BUFFERED, self._statements.READ_UNCOUNTED_COMMANDS) if whole else ()
            turns, uncounted = [self._session.execute(read, owners).fetchall() for read in reads] or ([], [])
        buffered = rows.group_buffered(turns)
        commands: dict[int, list[CommandRow]] = {}
        loaded: dict[User, StoredUser] = {}
        names = {row[0]: User(row[1], row[2]) for row in found}
        for owner, seq, kind, session_id, time_us in sorted(uncounted, key=lambda row: row[:2]):
            commands.setdefault(owner, []).append(CommandRow(seq, names[owner], kind, session_id, time_us))
        for owner, *values in found:
            user_row = rows.to_user_row(values, buffers.get(owner, {}))
            self._sessions[owner] = frozenset(user_row.progress.buffers)
            self._owners[user_row.user] = owner
            loaded[user_row.user] = StoredUser(user_row, tuple(buffered.get(owner, ())), tuple(commands.get(owner, ())))
        return loaded

    def archived_until_us(self, user: User, session_id: str) -> int | None:
        """End of the session's latest archived episode, None if it has none."""
        self._ready()
        with self._errors():
            found: int | None = self._session.execute(
                self._statements.ARCHIVED_UNTIL, (*user, *self._place.owners_here, session_id)
            ).fetchone()[0]
        return found

    def unfinished_tasks(self) -> list[TaskRow]:
        """Tasks that are open, leased or parked, by `(position_seq, ordinal)`."""
        self._ready()
        with self._errors():
            found = self._session.execute(self._statements.UNFINISHED_TASKS, self._place.owners_here)
            return [rows.to_task(row) for row in found]

    def unsettled_users(self) -> list[User]:
        """Users with events in buffers, commands not counted, or unfinished tasks."""
        self._ready()
        with self._errors():
            found = self._session.execute(self._statements.UNSETTLED_USERS, self._place.owners_here * 4)
            return [User(*row) for row in found]

    def messages(self, kind: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        """The first messages of a kind that are still to be sent, in order, with their values."""
        self._ready()
        with self._errors():
            return first_messages(self._fetched, self._statements, self._place, kind, limit, max_bytes)

    def unsent(self) -> dict[str, int]:
        """How many messages are still to be sent, by kind."""
        self._ready()
        with self._errors():
            return dict(self._fetched(self._statements.COUNT_MESSAGES, self._place.partition_here))

    def _fetched(self, statement: str, parameters: tuple[object, ...]) -> list[rows.Row]:
        return self._session.execute(statement, parameters).fetchall()

    def _partition_row(self, statement: str) -> rows.Row:
        found: rows.Row = self._session.execute(statement, self._place.partition_here).fetchone()
        return found

    def _check_epoch(self, statement: str) -> None:
        self._compare_epoch(self._partition_row(statement))

    def _compare_epoch(self, found: rows.Row | None) -> None:
        if found is None or found[1] != self._epoch:
            raise Fenced(
                f"partition {self._place.partition} of {self._place.state} was opened for writing by another engine "
                f"(epoch {found[1] if found else None}, ours is {self._epoch}); nothing was written: stop this one"
            )

    def _stored_owners(self, users: Mapping[User, object]) -> dict[User, int]:
        """Owner numbers of those users that are stored."""
        known = {user: self._owners[user] for user in users if user in self._owners}
        if len(known) < len(users):
            missing = [(user.tenant, user.user_id) for user in users if user not in known]
            for owner, tenant, user_id, *_ in self._session.execute(
                self._statements.READ_USERS, (rows.encode(missing), *self._place.owners_here)
            ).fetchall():
                known[User(tenant, user_id)] = owner
        return known
