"""The lock of a state in a database: one engine writes, and the next is told which.

As `state_lock.py` for a directory: an engine of one process holds it alone, the
processes of a Ray cluster share it under the cluster's name. The server holds it
(an advisory lock of a session) and lets go of it when the session ends, however it
ends. A row of `holder` names who took it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import msgspec
import psycopg
from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, Table, bindparam, select
from sqlalchemy.dialects.postgresql import insert

from ..memory.errors import StateLocked
from .postgres_connection import SCHEMA, Connection, Server
from .postgres_dialect import POSTGRES
from .schema import Characters, Whole
from .state_lock import Holder, alive, refusal

LOCK_METADATA = MetaData()
holder = Table(
    "holder",
    LOCK_METADATA,
    Column("place", Whole, nullable=False, autoincrement=False),
    Column("backend", Whole, nullable=False),
    Column("described", Characters, nullable=False),
    PrimaryKeyConstraint("place"),
)
"""Who took the lock last: one row, place 1. `backend` is the session's; `described` a `Holder`."""

_JOIN_SECONDS = 10.0
"""How long a cluster's process waits while the lock changes hands: a killed cluster's processes end one by one."""
_ENDING_SECONDS = 3.0
"""How long to wait for a lock whose holder may just have died: the server takes a moment to notice."""
_PAUSE_SECONDS = 0.02

_KEY = f"hashtextextended('raygam state {SCHEMA}', 0)"  # advisory locks are each database's own
_LOCK = f"SELECT pg_try_advisory_lock({_KEY})"
_LOCK_SHARED = f"SELECT pg_try_advisory_lock_shared({_KEY})"
_UNLOCK = f"SELECT pg_advisory_unlock({_KEY})"
_UNLOCK_SHARED = f"SELECT pg_advisory_unlock_shared({_KEY})"
_HELD_BY = f"""
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid::bigint = (({_KEY} >> 32) & 4294967295) AND objid::bigint = ({_KEY} & 4294967295)
"""
_READ = POSTGRES.one(select(holder.c.backend, holder.c.described))


def _write() -> str:
    statement = insert(holder).values({name: bindparam(name) for name in ("place", "backend", "described")})
    changed = {name: statement.excluded[name] for name in ("backend", "described")}
    written = statement.on_conflict_do_update(index_elements=[holder.c.place], set_=changed)
    return POSTGRES.one(written, "place", "backend", "described")


_WRITE = _write()


class PostgresLock:
    """A held lock. Take it with `acquire` or `join`, give it back with `release`. Thread-safe.

    A forked child does not keep it: it would outlive the engine.
    """

    def __init__(self, server: Server, cluster: str | None) -> None:
        self._server = server
        self._cluster = cluster
        self._one_at_a_time = threading.Lock()
        self._connection: Connection | None = None
        self._take()

    @classmethod
    def acquire(cls, server: Server) -> PostgresLock:
        """Take the lock of a state that is made.

        Raises:
            StateLocked: another engine has it, in this process or another.
            Retryable: the server does not answer.
        """
        return cls(server, None)

    @classmethod
    def join(cls, server: Server, cluster: str) -> PostgresLock:
        """Take the lock as one of a cluster's processes, all of which may have it at a time.

        Raises:
            StateLocked: an engine of one process has it, or another cluster.
            Retryable: the server does not answer.
        """
        return cls(server, cluster)

    def keep(self) -> None:
        """Take it again if its session was lost, with the server or the network.

        Raises:
            StateLocked: another engine has taken it since.
            Retryable: the server does not answer.
        """
        with self._one_at_a_time:
            if self._connection is not None:
                with contextlib.suppress(psycopg.Error):
                    self._connection.execute("SELECT 1")
                    return
                self._connection.close()
            self._take()

    def release(self) -> None:
        """Give the lock back; twice is once."""
        with self._one_at_a_time:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(psycopg.Error):  # a lost session holds nothing
                    connection.execute(_UNLOCK if self._cluster is None else _UNLOCK_SHARED)
                connection.close()

    def _take(self) -> None:
        connection = self._server.connect("raygam engine", writes=True)
        try:
            with self._server.translated():
                self._wait(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _wait(self, connection: Connection) -> None:
        started = time.monotonic()
        while not (_alone(connection) if self._cluster is None else _together(connection, self._cluster)):
            held = _holder(connection)
            waited = time.monotonic() - started
            if waited >= (_ENDING_SECONDS if self._cluster is None else _JOIN_SECONDS) or self._is_settled(held):
                raise StateLocked(refusal(self._server.where, held))
            time.sleep(_PAUSE_SECONDS)

    def _is_settled(self, held: Holder | None) -> bool:
        """Whether waiting is of no use: the holder is known to live, and is not about to share."""
        if held is None or (self._cluster is not None and held.cluster):
            return False
        return held.host == socket.gethostname() and alive(held)


def _truth(connection: Connection, question: str) -> bool:
    found = connection.execute(question).fetchone()
    return bool(found and found[0])


def _name(connection: Connection, cluster: str) -> None:
    described = msgspec.json.encode(Holder.current(cluster)).decode()
    connection.execute(_WRITE, (1, connection.info.backend_pid, described))


def _alone(connection: Connection) -> bool:
    if not _truth(connection, _LOCK):
        return False
    _name(connection, "")
    return True


def _together(connection: Connection, cluster: str) -> bool:
    """Try once to have a shared lock under the cluster's name."""
    if _truth(connection, _LOCK):
        _name(connection, cluster)
        shared = _truth(connection, _LOCK_SHARED)  # beside the other, which is the same session's: no gap between
        _truth(connection, _UNLOCK)
        return shared
    if not _truth(connection, _LOCK_SHARED):
        return False
    held = _holder(connection)
    if held is not None and held.cluster == cluster:
        return True
    _truth(connection, _UNLOCK_SHARED)
    return False


def _holder(connection: Connection) -> Holder | None:
    """Who has the lock; None between the taking and the writing of the name."""
    found = connection.execute(_READ).fetchone()
    if found is None:
        return None
    named: Holder = msgspec.json.decode(found[1], type=Holder)
    holding = {row[0] for row in connection.execute(_HELD_BY)}
    # A cluster's lock goes on under the name that its first process wrote, when that one has left.
    return named if found[0] in holding or (named.cluster and holding) else None
