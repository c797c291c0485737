"""The readers of a database's partitions, beside their writers, and the connections they share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from ..memory.errors import Misconfigured
from . import rows
from .ledger_reader import LedgerReader
from .place import Place
from .postgres_connection import Connection, Server
from .postgres_statements import QUERIES, STATEMENTS

_KEPT_IDLE = 4
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"


class ReadConnections:
    """Connections for reading. Thread-safe: one is in one read's hands at a time.

    As many are made as there are reads at once; a few are kept.

    Args:
        server: where they lead.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle: deque[Connection] = deque()
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """A connection for the block; one that breaks there is not kept."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._put_back(connection)

    def forget_idle(self) -> None:
        """Close those that nobody uses: one of them was found lost, and the others will be."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close them; twice is once. A read under way closes its own when it ends."""
        with self._lock:
            self._closed = True
        self.forget_idle()

    def _take(self) -> Connection:
        with self._lock:
            if self._closed:
                raise Misconfigured(f"the state at {self._server.where} was closed; open it again")
            if self._idle:
                return self._idle.pop()
        return self._server.connect("raygam reader")

    def _put_back(self, connection: Connection) -> None:
        in_order = connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if in_order and not self._closed and len(self._idle) < _KEPT_IDLE:
                self._idle.append(connection)
                return
        connection.close()


class PostgresReader(LedgerReader):
    """A partition opened for reading; see `Reader` in `memory/ports.py` for what is promised.

    Args:
        server: the database.
        connections: shared with the readers of other partitions.
        partition: its number.
        dimension: of the vectors.
    """

    def __init__(self, server: Server, connections: ReadConnections, partition: int, dimension: int) -> None:
        super().__init__(Place.shared(server.where, partition), STATEMENTS, QUERIES, dimension)
        self._server = server
        self._connections = connections
        self._pinned = threading.local()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything that this thread reads inside the block is of one moment."""
        if self._mine() is not None:
            yield
            return
        self._check_open()
        with self._server.translated(), self._begun() as connection:
            self._pinned.connection = connection
            try:
                yield
            finally:
                self._pinned.connection = None
                if not connection.closed:
                    connection.execute("ROLLBACK")

    def close(self) -> None:
        """Read no more; twice is once."""
        self._closed = True

    def _read(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[rows.Row]:
        pinned = self._mine()
        with self._server.translated():
            if pinned is not None:
                return _rows(pinned, statement, parameters)
            self._check_open()
            with self._connections.one() as connection:
                try:
                    return _rows(connection, statement, parameters)
                except psycopg.OperationalError:
                    if not connection.closed:
                        raise
            self._connections.forget_idle()  # the server was away while they lay idle
            with self._connections.one() as connection:
                return _rows(connection, statement, parameters)

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        """A connection that stays at one moment."""
        with self._connections.one() as connection:
            if _begins(connection):
                yield connection
                return
        self._connections.forget_idle()
        with self._connections.one() as connection:
            connection.execute(_BEGIN)
            yield connection

    def _mine(self) -> Connection | None:
        return getattr(self._pinned, "connection", None)

    def _check_open(self) -> None:
        if self._closed:
            raise Misconfigured(f"the reader of partition {self._place.partition} was closed; open the state again")


def _begins(connection: Connection) -> bool:
    """Begin; False if the connection was lost while it lay idle."""
    try:
        connection.execute(_BEGIN)
    except psycopg.OperationalError:
        if not connection.closed:
            raise
        return False
    return True


def _rows(connection: Connection, statement: str, parameters: tuple[Any, ...]) -> list[rows.Row]:
    return connection.execute(statement, parameters, binary=True).fetchall()
