"""The writer of one partition in a database that holds them all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from ..memory.errors import Misconfigured, Retryable
from .ledger_writer import LedgerWriter
from .place import Place
from .postgres_connection import LOCK_SECONDS, RowHeld, Server, wait_for_rows
from .postgres_session import PostgresSession
from .postgres_statements import STATEMENTS

_HOLDING = """
SELECT l.pid, coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'this machine')
FROM partition p JOIN pg_locks l ON l.transactionid = p.xmax LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE p.partition = %s AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
"""
"""Who holds the partition's row: whoever's transaction locked or changed it last, and has not ended."""


class PostgresWriter(LedgerWriter):
    """A partition opened for writing; see `Writer` in `memory/ports.py` for what is promised.

    A lost connection is made again by the next call, which reads back what was stored: so a
    commit whose answer was lost is neither forgotten nor written twice. An opener ends the
    transaction of an earlier writer that holds the partition and does not go on.

    Args:
        server: the database.
        partition: the partition's number.
        dimension: of the vectors.
        opened_by: who opens it, for people.
        keep_lock: called before a lost connection is made again; raises if the state is another's.
    """

    def __init__(
        self, server: Server, partition: int, dimension: int, opened_by: str, keep_lock: Callable[[], None]
    ) -> None:
        super().__init__(Place.shared(server.where, partition), STATEMENTS, dimension, opened_by)
        self._server = server
        self._keep_lock = keep_lock
        self._name = f"raygam partition {partition}"
        self._session = self._connection = PostgresSession(server, self._name)
        try:
            self._wait_for_rows(opening=True)
            self._past_a_stopped_writer(self._open, self._is_earlier_writer)
            self._wait_for_rows()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """End the connection; twice is once."""
        self._closed = True
        self._connection.close()

    def _errors(self) -> AbstractContextManager[None]:
        return self._server.translated()

    def _transaction(self) -> AbstractContextManager[None]:
        return self._connection.transaction()

    def _ready(self) -> None:
        if self._closed:
            raise Misconfigured(f"the writer of partition {self.partition} was closed; open it again")
        if self._connection.lost:
            left_behind = self._connection.backend_pid
            self._connection.close()
            self._keep_lock()
            self._session = self._connection = PostgresSession(self._server, self._name)
            try:  # another process than our own may be a later writer's
                self._past_a_stopped_writer(self._read_back, lambda pid, name: pid == left_behind)
            except BaseException:
                self._connection.close()
                raise

    def _read_back(self) -> None:
        """Hold what the ledger says, once the transaction of the lost connection has ended, either way."""
        with self._errors(), self._transaction():
            held = self._partition_row(STATEMENTS.HOLD_PARTITION)
            self._compare_epoch(held)
            self._hold(held)

    def _past_a_stopped_writer(self, take: Callable[[], None], may_end: Callable[[int, str], bool]) -> None:
        """Take the partition's row; end the transaction of a writer that keeps it and does not go on.

        What that one wrote was acknowledged to nobody, and it will find itself fenced.

        Args:
            take: raises `RowHeld` if another has the row.
            may_end: whether a server process, by its number and name, may be ended.

        Raises:
            Retryable: it cannot be ended; the message names it.
        """
        try:
            take()
        except RowHeld:
            found = self._holding()
            if found is not None and may_end(*found[:2]):
                self._end(found[0])
            self._wait_for_rows()
            try:
                take()
            except RowHeld as error:
                pid, name, host = self._holding() or found or ("unknown", "unknown", "unknown")
                raise Retryable(
                    f"partition {self.partition} of {self._place.state} is held by the server process {pid} "
                    f"({name}, from {host}) for more than {LOCK_SECONDS:g} s; end it with "
                    f"SELECT pg_terminate_backend({pid}), then try again"
                ) from error

    def _wait_for_rows(self, *, opening: bool = False) -> None:
        with self._errors():
            self._connection.execute(wait_for_rows(opening=opening))

    def _holding(self) -> tuple[Any, ...] | None:
        with self._errors():
            found: tuple[Any, ...] | None = self._connection.execute(_HOLDING, (self.partition,)).fetchone()
        return found

    def _is_earlier_writer(self, pid: int, name: str) -> bool:
        return name == self._name  # a person's transaction is left alone

    def _end(self, pid: int) -> None:
        """End a server process, if this user may; else its name goes to a person."""
        with self._errors(), contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self._connection.execute("SELECT pg_terminate_backend(%s::int)", (pid,))
