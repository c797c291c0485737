"""A state in a PostgreSQL database: all partitions in the tables of schema `raygam`.

`create_or_open` is for the one engine that writes, `join` for a cluster's processes,
`open_read_only` for everybody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sqlalchemy import Connection as CoreConnection
from sqlalchemy import insert, select, text

from ..memory.errors import Misconfigured
from ..memory.writes import StateFacts
from . import migrations, state_facts
from .postgres_connection import SCHEMA, Connection, Server
from .postgres_dialect import POSTGRES
from .postgres_lock import LOCK_METADATA, PostgresLock
from .postgres_reader import PostgresReader, ReadConnections
from .postgres_writer import PostgresWriter
from .schema import MAX_SHARED_PARTITIONS, STATE_METADATA, fact
from .state_facts import REVISION, check_partitions, other_revision

_READ_FACTS = POSTGRES.one(select(fact.c.name, fact.c.value))
_MAKING_SECONDS = 60
"""How long to wait for another process that makes or migrates the same state."""


class PostgresStore:
    """An opened state in a database; see `Store` in `memory/ports.py` for what is promised.

    Closing it closes the readers and writers that it gave, then the lock. Thread-safe.
    """

    def __init__(self, server: Server, facts: StateFacts, lock: PostgresLock | None) -> None:
        self._server = server
        self._facts = facts
        self._lock = lock
        self._connections = ReadConnections(server)
        self._guard = threading.Lock()
        self._opened: list[PostgresReader | PostgresWriter] = []

    @classmethod
    def create_or_open(cls, url: str, facts: StateFacts) -> Self:
        """Open a state for writing; make it where there is none.

        Raises:
            StateLocked: another engine writes to it.
            Misconfigured: it was made with other facts or by a newer raygam, or the server
                refuses (password, database, rights).
            Retryable: the server does not answer, or has no room.
        """
        return cls._opened_under(url, facts, PostgresLock.acquire)

    @classmethod
    def join(cls, url: str, facts: StateFacts, cluster: str) -> Self:
        """Open a state for writing as one process of a cluster; make it where there is none.

        Within the cluster the epochs rule: whoever opened a partition last writes it.

        Raises:
            StateLocked: an engine of one process writes to it, or another cluster.
            Misconfigured, Retryable: as `create_or_open`.
        """
        return cls._opened_under(url, facts, lambda server: PostgresLock.join(server, cluster))

    @classmethod
    def _opened_under(cls, url: str, facts: StateFacts, take: Callable[[Server], PostgresLock]) -> Self:
        server = Server.of(url)
        held, _ = _look(server)
        if held is None:
            _make(server, facts)
        lock = take(server)
        try:
            held, revision = _look(server)
            if held is None:
                raise Misconfigured(f"{server.where} has lost its facts; restore it from a backup")
            state_facts.compare(server.where, held, facts)
            if revision is not None and revision > REVISION:
                raise other_revision(server.where, revision)
            if revision != REVISION:
                _migrate(server)
            return cls(server, held, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open_read_only(cls, url: str) -> Self:
        """Open a state for reading, beside its writer if there is one; changes nothing. A standby will do.

        Raises:
            Misconfigured: there is no state, or the server refuses.
            Retryable: the server does not answer.
        """
        server = Server.of(url)
        held, revision = _look(server)
        if held is None:
            raise Misconfigured(f"no state at {server.where}; `raygam run SOURCE --state {server.where}` makes one")
        if revision != REVISION:
            raise other_revision(server.where, revision)
        return cls(server, held, None)

    @staticmethod
    def recorded_facts(url: str) -> StateFacts | None:
        """What a state was made with, None where there is none; opens nothing for longer.

        Raises:
            Misconfigured: there is something that is no state, or a newer one, or the server refuses.
            Retryable: the server does not answer.
        """
        return _look(Server.of(url))[0]

    @staticmethod
    def is_address(state: str) -> bool:
        """Whether a state's name means a database and not a directory."""
        return state.startswith(("postgresql://", "postgres://"))

    @staticmethod
    def portable(address: str) -> str:
        """The address with the password that this machine's password file has, for processes elsewhere.

        Raises:
            Misconfigured, Retryable: as `recorded_facts`.
        """
        return Server.of(address).with_stored_password().address

    @property
    def facts(self) -> StateFacts:
        """What the state was made with."""
        return self._facts

    @property
    def where(self) -> str:
        """The database, for people: without a password."""
        return self._server.where

    def writer(self, partition: int, opened_by: str = "") -> PostgresWriter:
        """Open for writing: bumps the epoch, so that an older writer is fenced.

        Args:
            partition: its number.
            opened_by: who opens it, for people.

        Raises:
            Misconfigured: the store was opened for reading only, or there is no such partition.
            Retryable: the server does not answer, or another transaction holds the partition.
        """
        lock = self._lock
        if lock is None:
            raise Misconfigured(f"{self.where} was opened for reading only; open it with an engine to write")
        self._check(partition)
        lock.keep()
        writer = PostgresWriter(self._server, partition, self._facts.dimension, opened_by, lock.keep)
        with self._guard:
            self._opened = [each for each in self._opened if not each.closed]
            self._opened.append(writer)
        return writer

    def reader(self, partition: int) -> PostgresReader:
        """Open for reading; needs no lock and bumps nothing.

        Raises:
            Misconfigured: there is no such partition.
        """
        self._check(partition)
        reader = PostgresReader(self._server, self._connections, partition, self._facts.dimension)
        with self._guard:
            self._opened = [each for each in self._opened if not each.closed]
            self._opened.append(reader)
        return reader

    def close(self) -> None:
        """Close what was opened, and give the lock back; twice is once."""
        with self._guard:
            opened, self._opened = self._opened, []
            lock, self._lock = self._lock, None
        for each in opened:
            each.close()
        self._connections.close()
        if lock is not None:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, partition: int) -> None:
        if not 0 <= partition < self._facts.partitions:
            raise Misconfigured(
                f"{self.where} has no partition {partition}; its partitions are 0 to {self._facts.partitions - 1}"
            )


def _look(server: Server) -> tuple[StateFacts | None, str | None]:
    """The facts of a state, None where none was made, and the migration that its tables are at."""
    connection = server.connect("raygam opening")
    try:
        with server.translated():
            if not _has(connection, "fact"):
                return None, None
            held: dict[str, str] = dict(connection.execute(_READ_FACTS).fetchall())
            found = (
                _has(connection, "alembic_version")
                and connection.execute("SELECT version_num FROM alembic_version").fetchone()
            )
    finally:
        connection.close()
    facts = state_facts.from_rows(held, server.where, f"table {SCHEMA}.fact of {server.where}")
    return facts, str(found[0]) if found else None


def _has(connection: Connection, table: str) -> bool:
    found = connection.execute("SELECT to_regclass(%s)::text", (f"{SCHEMA}.{table}",)).fetchone()
    return found is not None and found[0] is not None


def _make(server: Server, facts: StateFacts) -> None:
    """Make a state in one transaction: all of it, or nothing. Another process may do the same."""
    check_partitions(facts)
    if facts.partitions > MAX_SHARED_PARTITIONS:
        raise Misconfigured(
            f"a database holds at most {MAX_SHARED_PARTITIONS} partitions, not {facts.partitions}; make fewer"
        )
    with server.core_transaction() as connection:
        _one_at_a_time(connection)
        encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8":
            raise Misconfigured(f"{server.where} stores text as {encoding}; make a database with encoding UTF8")
        if connection.execute(text("SELECT to_regclass(:name)"), {"name": f"{SCHEMA}.fact"}).scalar_one() is not None:
            return  # the other process has made it
        if connection.execute(text("SELECT to_regnamespace(:name)"), {"name": SCHEMA}).scalar_one() is None:
            connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        LOCK_METADATA.create_all(connection)
        migrations.upgrade(connection, REVISION)
        STATE_METADATA.create_all(connection)
        connection.execute(insert(fact), state_facts.to_rows(facts))


def _migrate(server: Server) -> None:
    """Bring the tables to this form, in one transaction."""
    with server.core_transaction() as connection:
        _one_at_a_time(connection)
        migrations.upgrade(connection, REVISION)


def _one_at_a_time(connection: CoreConnection) -> None:
    """Wait until no other process makes or migrates a state in this database; ends with the transaction."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{_MAKING_SECONDS}s'"))
    connection.execute(text(f"SELECT pg_advisory_xact_lock(hashtextextended('raygam making {SCHEMA}', 0))"))
