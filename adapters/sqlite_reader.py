"""The reader of one partition in its SQLite file, beside the writer: a WAL snapshot per read."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..memory.errors import Misconfigured
from ..memory.model import Episode, Event, EventRelation, Layer, Topic, TopicRelation, User
from ..memory.ports import LoggedTopics, Vectors
from ..memory.writes import DeadLetter, PartitionInfo, TaskRow, TaskStatus, UserRow, VectorEntries
from . import rows
from . import sqlite_queries as queries
from . import sqlite_statements as statements
from .schema import EVENT_STEP
from .sqlite_connection import open_for_reading, translated_errors

_PAGE = 1000


class SqliteReader:
    """A partition opened for reading; see `Reader` in `memory/ports.py` for what is promised.

    Thread-safe: a read takes a connection that no other read is using, and puts it back.

    Args:
        path: the partition's file.
        partition: its number.
        dimension: of the vectors.
    """

    def __init__(self, path: Path, partition: int, dimension: int) -> None:
        self._path = path
        self._partition = partition
        self._dimension = dimension
        self._idle: deque[sqlite3.Connection] = deque()
        self._pinned = threading.local()
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything that this thread reads inside the block is of one moment."""
        if getattr(self._pinned, "connection", None) is not None:
            yield
            return
        with self._connection() as connection:
            connection.execute("BEGIN")
            self._pinned.connection = connection
            try:
                yield
            finally:
                self._pinned.connection = None
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def version(self, user: User) -> tuple[int, int] | None:
        """`(last seq, tasks applied)` of the user, None if unknown; equal means unchanged."""
        found = self._read(queries.VERSION, (user.tenant, user.user_id))
        return (found[0][0], found[0][1]) if found else None

    def events(self, user: User, after_seq: int = 0, seqs: Sequence[int] | None = None) -> list[Event]:
        """Events with `seq > after_seq` by `seq`, or the named ones that are stored, in the order named."""
        if seqs is None:
            found = self._read(queries.EVENTS_AFTER, (user.tenant, user.user_id, after_seq))
        else:
            found = self._read(queries.EVENTS_NAMED, (rows.encode(list(seqs)), user.tenant, user.user_id))
        return [rows.to_event(user, row) for row in found]

    def episodes(self, user: User) -> list[Episode]:
        """The user's episodes by time."""
        return [rows.to_episode(user, row) for row in self._read(queries.EPISODES, (user.tenant, user.user_id))]

    def topics(self, user: User) -> list[Topic]:
        """The user's topics by time, superseded ones too."""
        return [rows.to_topic(user, row) for row in self._read(queries.TOPICS, (user.tenant, user.user_id))]

    def topic_relations(self, user: User) -> list[TopicRelation]:
        """The user's topic relations."""
        return [TopicRelation(*row) for row in self._read(queries.TOPIC_RELATIONS, (user.tenant, user.user_id))]

    def event_relations(self, user: User) -> list[EventRelation]:
        """The user's event relations, by the events' `seq`."""
        return [EventRelation(*row) for row in self._read(queries.EVENT_RELATIONS, (user.tenant, user.user_id))]

    def entries(self, user: User, after_seq: int = 0) -> VectorEntries:
        """The user's entries with a log number above `after_seq`, in order."""
        of_user = (user.tenant, user.user_id)
        found = self._read(queries.VECTORS_AFTER, (*of_user, after_seq // EVENT_STEP, *of_user, after_seq))
        found.sort(key=itemgetter(0))
        return rows.to_entries(found, self._dimension)

    def vectors(self, user: User, layer: Layer, refs: Sequence[str]) -> Vectors:
        """The stored vectors of the named references, in their order.

        Raises:
            KeyError: a reference has no vector.
        """
        if layer is Layer.EVENT:
            wanted = rows.encode([int(ref) for ref in refs])
            found = self._read(queries.VECTORS_OF_EVENTS, (wanted, user.tenant, user.user_id))
        else:
            found = self._read(queries.VECTORS_OF_TOPICS, (user.tenant, user.user_id, rows.encode(list(refs))))
        blobs: dict[str, bytes] = dict(found)
        return rows.to_vectors([blobs[ref] for ref in refs], self._dimension)

    def turns(self, asked: Sequence[tuple[User, Sequence[int]]]) -> list[tuple[list[Event], Vectors]]:
        """For each user the events of these `seq`s and their vectors, in the order named.

        Raises:
            KeyError: the user has no such event.
        """
        lists = rows.encode([(user.tenant, user.user_id, seqs) for user, seqs in asked])
        found = {(row[0], row[2]): row for row in self._read(queries.TURNS, (lists,))}
        placed = [[found[at, seq] for seq in seqs] for at, (_, seqs) in enumerate(asked)]
        vectors = rows.to_vectors([row[1] for mine in placed for row in mine], self._dimension)
        turns = []
        start = 0
        for (user, _), mine in zip(asked, placed, strict=True):
            events = [rows.to_event(user, row[2:]) for row in mine]
            turns.append((events, vectors[start : start + len(mine)]))
            start += len(mine)
        return turns

    def topics_logged(self, after: Mapping[User, int]) -> dict[User, LoggedTopics]:
        """Topics with a log number above what is named per user; a user without any is left out."""
        users = list(after)
        with self.snapshot():
            asked = [(user.tenant, user.user_id, after[user]) for user in users]
            found = sorted(self._read(queries.TOPICS_LOGGED, (rows.encode(asked),)), key=itemgetter(0, 1))
            newer = [(*users[at], id_) for at, _, _, id_, *_ in found if after[users[at]]]
            superseded = self._read(queries.SUPERSEDED_BY, (rows.encode(newer),)) if newer else []
        logged = {}
        for at, group in groupby(found, key=itemgetter(0)):
            mine = list(group)
            topics = [rows.to_topic(users[at], row[3:]) for row in mine]
            ids = {topic.id for topic in topics}
            logged[users[at]] = LoggedTopics(
                mine[-1][1],
                topics,
                rows.to_vectors([row[2] for row in mine], self._dimension),
                {old: new for old, new in superseded if new in ids},
            )
        return logged

    def position(self) -> int:
        """The latest `seq` that the partition gave."""
        found = self._read(queries.POSITION)
        return int(found[0][0]) - 1 if found else 0

    def users(self) -> Iterator[UserRow]:
        """Every user of the partition; read in pages, each of one moment."""
        after = 0
        while True:
            with self.snapshot():
                page = self._read(queries.USERS_PAGE, (after, _PAGE, 0))
                owners = rows.encode([row[0] for row in page])
                buffers = rows.group_buffers(self._read(statements.READ_BUFFERS, (owners,)))
            for owner, *values in page:
                yield rows.to_user_row(tuple(values), buffers.get(owner, {}))
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Records put aside, in the order in which they came."""
        after = 0
        while page := self._read(queries.DEAD_LETTERS_PAGE, (after, _PAGE, 0)):
            for _, *values in page:
                yield DeadLetter(*values)
            after = page[-1][0]

    def partition_info(self) -> PartitionInfo:
        """The partition at a glance, of one moment."""
        with self.snapshot():
            held = self._read(statements.READ_PARTITION)
            users, events = self._read(queries.COUNT_USERS)[0]
            tasks: dict[str, int] = dict(self._read(queries.COUNT_TASKS))
            sources = self._read(statements.READ_SOURCES)
            opener = self._read(statements.READ_OPENERS)
            letters: int = self._read(queries.COUNT_DEAD_LETTERS)[0][0]
        parked = tasks.get(TaskStatus.PARKED, 0)
        return PartitionInfo(
            partition=self._partition,
            epoch=held[0][1] if held else 0,
            positions={source: rows.to_position(tuple(position)) for source, _, *position in sources},
            users=users,
            events=events,
            open_tasks=sum(tasks.values()) - parked,
            parked_tasks=parked,
            dead_letters=letters,
            counts=rows.decode_counts(held[0][5]) if held else {},
            opened_by=opener[0][0] if opener else "",
        )

    def tasks(self) -> list[TaskRow]:
        """Tasks that are open, leased or parked, by `(position_seq, ordinal)`."""
        return [rows.to_task(row) for row in self._read(statements.UNFINISHED_TASKS)]

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Close every connection; twice is once. A read under way closes its own when it ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()

    def _read(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[rows.Row]:
        with self._connection() as connection:
            return connection.execute(statement, parameters).fetchall()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        pinned: sqlite3.Connection | None = getattr(self._pinned, "connection", None)
        if pinned is not None:
            yield pinned
            return
        with translated_errors(self._path):
            connection = self._take()
            try:
                yield connection
            finally:
                self._put_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise Misconfigured(f"the reader of {self._path} was closed; open the state again")
            if self._idle:
                return self._idle.pop()
        return open_for_reading(self._path)

    def _put_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()
