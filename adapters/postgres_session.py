"""A writer's connection: rows by the hundred, and transactions whose end is known or said to be unknown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from ..memory.errors import Retryable
from . import rows
from .postgres_connection import Connection, Server
from .postgres_dialect import CopyStatement
from .session import Results


class _Nothing:
    """The results of a statement that was run for no rows."""

    rowcount = 0

    def fetchone(self) -> None:
        return None

    def fetchall(self) -> list[Any]:
        return []

    def __iter__(self) -> Iterator[Any]:
        return iter(())


_NOTHING = _Nothing()


class PostgresSession:
    """A connection in the form of `Session`.

    Args:
        server: where it leads.
        name: the connection's, for those who look at the server.
    """

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._connection: Connection = server.connect(name, writes=True)
        self.backend_pid = self._connection.info.backend_pid
        self._unsure = False

    @property
    def lost(self) -> bool:
        """Whether it is of no use any more: broken, closed, or left in the middle of a COMMIT."""
        return self._unsure or self._connection.closed

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Results:
        """Run a statement with one row of parameters."""
        return self._connection.execute(statement, parameters, binary=True)

    def executemany(self, statement: str, many: Iterable[rows.Row], /) -> Results:
        """Run a statement for many rows, in one round: by COPY, or with all rows as one JSON text."""
        given = list(many)
        if not given:
            return _NOTHING
        if not isinstance(statement, CopyStatement):
            return self.execute(statement, (rows.encode(given),))
        cursor = self._connection.cursor()
        with cursor.copy(statement) as copy:
            copy.set_types(statement.types)
            write = copy.write_row
            for row in given:
                write(row)
        return cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that ends with the block: committed, or rolled back on any error.

        Raises:
            Retryable: the connection was lost at COMMIT; whether it was written is not known.
        """
        self._connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            with contextlib.suppress(psycopg.Error):  # a lost one is rolled back by the server
                self._connection.execute("ROLLBACK")
            raise
        self._unsure = True
        try:
            self._connection.execute("COMMIT")
        except psycopg.Error as error:
            if not self._connection.closed:
                self._unsure = False
                raise  # the server said no
            raise Retryable(
                f"the connection to {self._server.where} was lost at COMMIT: whether this was written is not known. "
                "Read back before it is tried again: the next call to the partition sees what is stored"
            ) from error
        self._unsure = False

    def close(self) -> None:
        """End it; what is not committed is rolled back."""
        self._connection.close()
