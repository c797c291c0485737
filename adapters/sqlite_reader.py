"""The reader of one partition in its SQLite file, beside the writer: a WAL snapshot per read."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..memory.errors import Misconfigured
from . import rows
from .ledger_reader import LedgerReader
from .place import Place
from .sqlite_connection import open_for_reading, translated_errors
from .sqlite_statements import QUERIES, STATEMENTS


class SqliteReader(LedgerReader):
    """A partition opened for reading; see `Reader` in `memory/ports.py` for what is promised.

    Thread-safe: a read takes a connection that no other read is using, and puts it back.

    Args:
        path: the partition's file.
        partition: its number.
        dimension: of the vectors.
    """

    def __init__(self, path: Path, partition: int, dimension: int) -> None:
        super().__init__(Place(str(path.parent), str(path), partition), STATEMENTS, QUERIES, dimension)
        self._path = path
        self._idle: deque[sqlite3.Connection] = deque()
        self._pinned = threading.local()
        self._lock = threading.Lock()

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
