"""The writer of one partition in its SQLite file: the ledger, and what its shard reads back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from ..memory.errors import Fenced, LeaseLost, Misconfigured, RaygamError
from ..memory.model import Layer, User
from ..memory.progression import Progress
from ..memory.writes import CommandRow, SourcePosition, StoredUser, TaskRow, TaskStatus, UserRow, WriteSet
from . import rows
from . import sqlite_statements as statements
from .schema import EVENT_STEP
from .sqlite_connection import close_writing, open_for_writing, transaction, translated_errors
from .write_rules import check_write

_MAX_CACHED_OWNERS = 100_000
_KEPT_OPENINGS = 20


class _Draft:
    """What the writer will hold in memory once the transaction is committed."""

    __slots__ = ("counts", "next_owner", "next_vector_seq", "owners", "sessions", "sources")

    def __init__(self, writer: SqliteWriter, counts: Mapping[str, int]) -> None:
        self.next_owner = writer._next_owner
        self.next_vector_seq = writer._next_vector_seq
        self.counts = dict(writer._counts)
        for name, added in counts.items():
            self.counts[name] = self.counts.get(name, 0) + added
        self.owners: dict[User, int] = {}
        self.sources: dict[str, int] = {}
        self.sessions: dict[int, frozenset[str]] = {}


class SqliteWriter:
    """A partition opened for writing; see `Writer` in `memory/ports.py` for what is promised.

    Args:
        path: the partition's file, its tables up to date.
        partition: its number.
        dimension: of the vectors.
        opened_by: who opens it, for people.
    """

    def __init__(self, path: Path, partition: int, dimension: int, opened_by: str = "") -> None:
        self._path = path
        self._partition = partition
        self._opened_by = opened_by
        self._dimension = dimension
        self._owners: dict[User, int] = {}
        self._sessions: dict[int, frozenset[str]] = {}  # whose buffers stand in the ledger, as far as known
        self._closed = False
        with translated_errors(path):
            self._connection = open_for_writing(path)
            try:
                with transaction(self._connection):
                    held = self._take_over()
                self._sources = {row[0]: row[1] for row in self._connection.execute(statements.READ_SOURCES)}
            except BaseException:
                self._connection.close()
                raise
        self._epoch: int = held[1]
        self._next_seq: int = held[2]
        self._next_vector_seq: int = held[3]
        self._next_owner: int = held[4]
        self._counts = rows.decode_counts(held[5])

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._partition

    @property
    def epoch(self) -> int:
        """The epoch of this opening."""
        return self._epoch

    def commit(self, write: WriteSet) -> None:
        """Write everything in one transaction, or nothing."""
        check_write(write, self._dimension, self._next_seq)
        draft = _Draft(self, write.counts)
        numbers = [event.seq for event in write.events]
        numbers.extend(command.seq for command in write.commands)
        next_seq = max(self._next_seq, max(numbers, default=0) + 1)
        with translated_errors(self._path), transaction(self._connection):
            self._check_epoch()
            self._find_owners(write, draft)
            self._write_positions(write, draft)
            self._settle_leases(write)
            self._write_events(write, draft)
            self._write_tasks(write, draft)
            self._write_archives(write, draft, next_seq)
            self._write_users(write, draft)
            self._write_dead_letters(write)
            self._connection.execute(
                statements.ADVANCE_PARTITION,
                (
                    *(next_seq, draft.next_vector_seq, draft.next_owner, rows.encode(draft.counts)),
                    *(self._partition, self._epoch),
                ),
            )
        self._next_seq = next_seq
        self._next_vector_seq = draft.next_vector_seq
        self._next_owner = draft.next_owner
        self._counts = draft.counts
        self._sources.update(draft.sources)
        self._remember(draft)

    def counters(self) -> Mapping[str, int]:
        """Next free numbers; none is given twice, also after an erase."""
        return {"seq": self._next_seq, "vector_seq": self._next_vector_seq}

    def positions(self) -> Mapping[str, SourcePosition]:
        """Every source's position in this partition, by source id."""
        with translated_errors(self._path):
            found = self._connection.execute(statements.READ_SOURCES).fetchall()
        return {source: rows.to_position(position) for source, _, *position in found}

    def known_messages(self, keys: Sequence[tuple[User, str]]) -> set[tuple[User, str]]:
        """Those `(user, message_id)` pairs that are already stored."""
        with translated_errors(self._path):
            owners = self._stored_owners(dict.fromkeys(user for user, _ in keys))
            if not owners:
                return set()
            pairs = [(owner, message_id) for user, message_id in keys if (owner := owners.get(user)) is not None]
            found = self._connection.execute(statements.KNOWN_MESSAGES, (rows.encode(pairs),)).fetchall()
        if not found:
            return set()
        users = {owner: user for user, owner in owners.items()}
        return {(users[owner], message_id) for owner, message_id in found}

    def load(self, users: Sequence[User], *, whole: bool = True) -> dict[User, StoredUser]:
        """Those of the users that are stored, or their rows alone; five statements for all of them.

        Raises:
            Fenced: another engine has the partition, and these may be its writes.
        """
        pairs = rows.encode([(user.tenant, user.user_id) for user in users])
        with translated_errors(self._path):
            self._check_epoch()
            found = self._connection.execute(statements.READ_USERS, (pairs,)).fetchall()
            if not found:
                return {}
            owners = (rows.encode([row[0] for row in found]),)
            buffers = rows.group_buffers(self._connection.execute(statements.READ_BUFFERS, owners))
            reads = (statements.READ_BUFFERED, statements.READ_UNCOUNTED_COMMANDS) if whole else ()
            turns, uncounted = [self._connection.execute(read, owners).fetchall() for read in reads] or ([], [])
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
        with translated_errors(self._path):
            found: int | None = self._connection.execute(
                statements.ARCHIVED_UNTIL, (user.tenant, user.user_id, session_id)
            ).fetchone()[0]
        return found

    def unfinished_tasks(self) -> list[TaskRow]:
        """Tasks that are open, leased or parked, by `(position_seq, ordinal)`."""
        with translated_errors(self._path):
            return [rows.to_task(row) for row in self._connection.execute(statements.UNFINISHED_TASKS)]

    def unsettled_users(self) -> list[User]:
        """Users with events in buffers, commands not counted, or unfinished tasks."""
        with translated_errors(self._path):
            return [User(*row) for row in self._connection.execute(statements.UNSETTLED_USERS)]

    def close(self) -> None:
        """Checkpoint and close; twice is once."""
        if not self._closed:
            self._closed = True
            close_writing(self._connection)

    def _take_over(self) -> rows.Row:
        """Bump the epoch, so that an earlier writer is fenced, and return the partition's row.

        The first opening makes it.
        """
        if self._connection.execute(statements.BUMP_EPOCH, (self._partition,)).rowcount == 0:
            other = self._connection.execute(statements.READ_PARTITION).fetchone()
            if other is not None:
                raise Misconfigured(
                    f"{self._path} holds partition {other[0]}, not {self._partition}; give the files their names back"
                )
            self._connection.execute(statements.INSERT_PARTITION, (self._partition, 1, 1, 1, 1, rows.EMPTY_MAPPING))
        held: rows.Row = self._connection.execute(statements.READ_PARTITION).fetchone()
        self._connection.execute(statements.INSERT_OPENING, (self._partition, held[1], self._opened_by))
        self._connection.execute(statements.FORGET_OPENINGS, (self._partition, held[1] - _KEPT_OPENINGS))
        return held

    def _check_epoch(self) -> None:
        found = self._connection.execute(statements.READ_PARTITION).fetchone()
        if found is None or found[1] != self._epoch:
            raise Fenced(
                f"partition {self._partition} of {self._path.parent} was opened for writing by another engine "
                f"(epoch {found[1] if found else None}, ours is {self._epoch}); nothing was written: stop this one"
            )

    def _stored_owners(self, users: Mapping[User, object]) -> dict[User, int]:
        """Owner numbers of those users that are stored."""
        known = {user: self._owners[user] for user in users if user in self._owners}
        if len(known) < len(users):
            missing = [(user.tenant, user.user_id) for user in users if user not in known]
            for owner, tenant, user_id, *_ in self._connection.execute(
                statements.READ_USERS, (rows.encode(missing),)
            ).fetchall():
                known[User(tenant, user_id)] = owner
        return known

    def _find_owners(self, write: WriteSet, draft: _Draft) -> None:
        """Give every user of the write a number; a new one gets a row."""
        users: dict[User, UserRow | None] = dict.fromkeys(event.user for event in write.events)
        users.update(dict.fromkeys(command.user for command in write.commands))
        users.update(dict.fromkeys(task.user for task in write.tasks))
        users.update(dict.fromkeys(closed.episode.user for closed in write.closed))
        users.update((row.user, row) for row in write.users)
        draft.owners = self._stored_owners(users)
        made = []
        for user, row in users.items():
            if user not in draft.owners:
                draft.owners[user] = draft.next_owner
                draft.sessions[draft.next_owner] = frozenset()
                made.append(rows.owner_row(draft.next_owner, self._partition, row or UserRow(user, Progress())))
                draft.next_owner += 1
        if made:
            self._connection.executemany(statements.INSERT_OWNER, made)

    def _write_positions(self, write: WriteSet, draft: _Draft) -> None:
        for source in (*write.positions, *{source for source, _ in write.event_sources}):
            if source not in self._sources and source not in draft.sources:
                draft.sources[source] = len(self._sources) + len(draft.sources) + 1
                self._move_source(source, draft.sources[source], SourcePosition(0))
        for source, position in write.positions.items():
            number = self._sources.get(source) or draft.sources[source]
            self._move_source(source, number, position)

    def _move_source(self, source: str, number: int, position: SourcePosition) -> None:
        self._connection.execute(
            statements.MOVE_SOURCE,
            (
                *(self._partition, number, source),
                *(position.next_offset, position.name, position.prefix_bytes, position.prefix_hash),
            ),
        )

    def _settle_leases(self, write: WriteSet) -> None:
        for task_id, token in write.finished:
            self._settle(statements.FINISH_TASK, (task_id, token), task_id, token)
        for failure in write.failures:
            status = TaskStatus.PARKED if failure.parks else TaskStatus.OPEN
            self._settle(
                statements.GIVE_BACK_TASK,
                (status, failure.error, failure.task_id, failure.token),
                failure.task_id,
                failure.token,
            )

    def _settle(self, statement: str, parameters: rows.Row, task_id: str, token: str) -> None:
        if self._connection.execute(statement, parameters).rowcount != 1:
            raise LeaseLost(
                f"task {task_id} is not leased under token {token}: its lease expired or it was finished; "
                "nothing was written; drop the proposal and claim again"
            )

    def _write_events(self, write: WriteSet, draft: _Draft) -> None:
        if write.events:
            owners = [draft.owners[event.user] for event in write.events]
            numbers = self._sources | draft.sources if draft.sources else self._sources
            sources: Sequence[tuple[int | None, int | None]] = [
                (numbers[source], offset) for source, offset in write.event_sources
            ] or [(None, None)] * len(write.events)
            self._connection.executemany(statements.INSERT_EVENT, rows.event_rows(write.events, owners, sources))
            assert write.vectors is not None
            self._connection.executemany(
                statements.INSERT_VECTOR, rows.event_vector_rows(write.events, owners, write.vectors)
            )
            draft.next_vector_seq = write.events[-1].seq * EVENT_STEP + 1
        if write.commands:
            self._connection.executemany(
                statements.INSERT_COMMAND,
                [rows.command_row(draft.owners[command.user], command) for command in write.commands],
            )

    def _write_tasks(self, write: WriteSet, draft: _Draft) -> None:
        if write.tasks:
            self._connection.executemany(
                statements.INSERT_TASK, [rows.task_row(draft.owners[task.user], task) for task in write.tasks]
            )
        for leased in write.leases:
            parameters = (leased.token, leased.lease_until_us, leased.task.id)
            self._settle(statements.LEASE_TASK, parameters, leased.task.id, leased.token)

    def _write_archives(self, write: WriteSet, draft: _Draft, next_seq: int) -> None:
        """Episodes, then topics, then what refers to them: a relation may name a topic of the same write."""
        if not write.closed:
            return
        closed = [(draft.owners[each.episode.user], each) for each in write.closed]
        topics = [(owner, each, each.topic) for owner, each in closed if each.topic is not None]
        many = self._connection.executemany
        many(statements.INSERT_EPISODE, [rows.episode_row(owner, each) for owner, each in closed])
        archived = [
            (event.episode_id, rows.encode_dates(event.dates), rows.encode_list(event.entities), owner, event.seq)
            for owner, each in closed
            for event in each.events
        ]
        if many(statements.ARCHIVE_EVENT, archived).rowcount != len(archived):
            raise self._fault("an episode names an event that is not stored or lies in another episode")
        many(statements.RAISE_OPEN_FROM, [(next_seq, owner) for owner in {owner for owner, _ in closed}])
        relations = [rows.event_relation_row(owner, edge) for owner, each in closed for edge in each.relations]
        self._insert_event_relations(relations)
        many(statements.INSERT_TOPIC, [rows.topic_row(owner, topic) for owner, _, topic in topics])
        edges = [rows.topic_relation_row(owner, edge) for owner, each, _ in topics for edge in each.topic_relations]
        many(statements.INSERT_TOPIC_RELATION, edges)
        older = [(topic.id, old, owner) for owner, each, topic in topics for old in each.supersedes]
        if not {row[:2] for row in older} <= {row[1:3] for row in edges}:  # by these readers find it
            raise self._fault("a topic supersedes one that it does not relate to")
        if many(statements.SUPERSEDE_TOPIC, older).rowcount != len(older):
            raise self._fault("a topic supersedes one that is not stored")
        vectors = []
        for owner, each, topic in topics:
            assert each.topic_vector is not None
            (blob,) = rows.vector_blobs(each.topic_vector.reshape(1, -1))
            vectors.append((draft.next_vector_seq, owner, str(Layer.TOPIC), topic.id, 0, blob))
            draft.next_vector_seq += 1
        many(statements.INSERT_VECTOR, vectors)

    def _insert_event_relations(self, relations: list[rows.Row]) -> None:
        """Many to a statement: nearly every turn has one, and a run of a statement costs as much as its row."""
        together = statements.RELATIONS_TOGETHER
        whole = len(relations) - len(relations) % together
        for start in range(0, whole, together):
            values = tuple(chain.from_iterable(relations[start : start + together]))
            self._connection.execute(statements.INSERT_EVENT_RELATIONS, values)
        self._connection.executemany(statements.INSERT_EVENT_RELATION, relations[whole:])

    def _fault(self, what: str) -> RaygamError:
        return RaygamError(
            f"partition {self._partition} of {self._path.parent}: {what}; nothing was written. "
            "This is a fault in raygam; please report it"
        )

    def _write_users(self, write: WriteSet, draft: _Draft) -> None:
        if not write.users:
            return
        owners: list[rows.Row] = []
        upserts: list[rows.Row] = []
        unknown: list[rows.Row] = []
        dropped: list[rows.Row] = []
        for row in write.users:
            owner = draft.owners[row.user]
            owners.append(rows.owner_row(owner, self._partition, row))
            buffers = row.progress.buffers
            present = frozenset(buffers)
            stored = draft.sessions.get(owner)
            if stored is None:
                stored = self._sessions.get(owner)
            if stored is None:
                unknown.append((owner,))
            elif stored != present:
                dropped.extend((owner, session_id) for session_id in stored - present)
            draft.sessions[owner] = present
            upserts.extend(rows.buffer_row(owner, session_id, buffer) for session_id, buffer in buffers.items())
        self._connection.executemany(statements.UPSERT_OWNER, owners)
        if unknown:
            self._connection.executemany(statements.DELETE_BUFFERS, unknown)
        if dropped:
            self._connection.executemany(statements.DELETE_BUFFER, dropped)
        self._connection.executemany(statements.UPSERT_BUFFER, upserts)

    def _write_dead_letters(self, write: WriteSet) -> None:
        if write.dead_letters:
            self._connection.executemany(
                statements.INSERT_DEAD_LETTER,
                [
                    (self._partition, letter.source, letter.offset, letter.reason, letter.detail, letter.payload)
                    for letter in write.dead_letters
                ],
            )

    def _remember(self, draft: _Draft) -> None:
        if len(self._owners) + len(draft.owners) > _MAX_CACHED_OWNERS:
            self._owners.clear()
            self._sessions.clear()
        self._owners.update(draft.owners)
        self._sessions.update(draft.sessions)
