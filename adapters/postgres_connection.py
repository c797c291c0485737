"""PostgreSQL connections of the ledger: how they are made, and what their errors mean.

No message shows a password: `Server.where` names a database without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, cast

import psycopg
from psycopg import conninfo, errors
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from sqlalchemy import Connection as CoreConnection
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from ..memory.errors import Misconfigured, RaygamError, Retryable

SCHEMA = "raygam"
"""Where the tables lie, so that a database may hold other things beside them."""
LOCK_SECONDS = 5.0
"""How long a statement waits for another transaction's row."""
OPENING_SECONDS = 1.0
"""How long an opener waits for an earlier writer's transaction before it ends it: that one is fenced anyway."""
IDLE_SECONDS = 60.0
"""After this long a transaction whose client is silent (stopped, cut off) is ended by the server."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

Connection = psycopg.Connection[tuple[Any, ...]]

_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SETTINGS = f"""
SET client_encoding = 'UTF8'; SET client_min_messages = 'warning'; SET search_path = {SCHEMA};
SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3;
"""
_WRITING = f"""
SET idle_in_transaction_session_timeout = '{IDLE_SECONDS:g}s';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""


class RowHeld(Retryable):
    """Another transaction holds a row for longer than `LOCK_SECONDS`; nothing was written."""


@dataclass(frozen=True, slots=True)
class Server:
    """A database and how to reach it.

    Attributes:
        where: the database for people, without a password.
        parameters: of libpq.
    """

    where: str
    parameters: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, url: str) -> Self:
        """Read `postgresql://user@host:port/database`, or libpq's `name=value` form.

        Raises:
            Misconfigured: it is neither.
        """
        try:
            given = conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            given = None
        if given is None or _is_torn(url, given):  # the text of libpq's error may hold a part of the password
            raise Misconfigured(
                "the state's address is no PostgreSQL URL; write postgresql://USER@HOST:PORT/DATABASE, characters "
                "such as @ : / in a password as %40 %3A %2F, or leave the password to PGPASSWORD or ~/.pgpass"
            ) from None
        return cls(_describe(given), _DEFAULTS | given)

    @classmethod
    def from_here(cls, url: str) -> Self:
        """The same, with what libpq's environment (PGHOST, PGPASSWORD, …) and defaults say in this process.

        Raises:
            Misconfigured: it is no URL.
        """
        plain = cls.of(url)
        if "service" in plain.parameters:  # its file may say all the rest
            return plain
        here = {
            option.keyword.decode(): option.val.decode()
            for option in psycopg.pq.Conninfo.get_defaults()
            if option.val is not None and option.val != option.compiled and option.keyword != b"service"
        }
        asked = conninfo.conninfo_to_dict(url)
        return cls(_describe(here | asked), _DEFAULTS | here | asked)

    @property
    def address(self) -> str:
        """What `of` makes this from again, in any process. It holds the password."""
        return conninfo.make_conninfo("", **self.parameters)

    @property
    def identity(self) -> str:
        """The same for all spellings of one database, users and order of hosts included; no password is in it."""
        hosts = [host.lower() for host in self._listed("hostaddr") or self._listed("host") or [""]]
        ports = self._listed("port") or ["5432"]
        ports = ports * len(hosts) if len(ports) == 1 else ports
        places = sorted(
            f"{'localhost' if host in _LOOPBACK else host}:{port or 5432}"
            for host, port in zip(hosts, ports, strict=False)
        )
        named = self.parameters.get("dbname") or self.parameters.get("user") or ""
        service = self.parameters.get("service", "")
        return f"postgresql:{f'{service}:' if service else ''}{','.join(places)}/{named}"

    @property
    def one_node(self) -> bool:
        """Whether only processes on this machine reach it: by a socket, or over the loopback interface."""
        if "service" in self.parameters:
            return False
        hosts = self._listed("hostaddr") or self._listed("host") or [""]
        return all(not host or host[0] in "/@" or host.lower() in _LOOPBACK for host in hosts)

    def with_stored_password(self) -> Self:
        """The same with the password that this machine's password file has for it, if it has one.

        Raises:
            Retryable, Misconfigured: as `connect`.
        """
        if self.parameters.get("password"):
            return self
        connection = self.connect("raygam opening")
        try:
            found = connection.info.password
        finally:
            connection.close()
        return type(self)(self.where, self.parameters | ({"password": found} if found else {}))

    def _listed(self, name: str) -> list[str]:
        """The values of a parameter that may name several hosts."""
        given = str(self.parameters.get(name) or "")
        return given.split(",") if given else []

    def connect(self, name: str, *, writes: bool = False) -> Connection:
        """Connect; each statement is a transaction of its own unless one is begun.

        Args:
            name: the connection's, for those who look at the server.
            writes: what is committed is durable, and a silent transaction does not stay for ever.

        Raises:
            Retryable: the server does not answer, or not now.
            Misconfigured: it refuses: the password, the database, the right.
        """
        # Only the names of parameters are known to the type checker one by one.
        connect = cast(Any, psycopg.connect)
        try:
            connection: Connection = connect(**(self.parameters | {"application_name": name}), autocommit=True)
        except psycopg.Error as error:
            raise self._refused(error) from None
        try:
            with self.translated():
                connection.adapters.register_dumper(int, Int8Dumper)  # else the type follows each value's size
                connection.adapters.register_dumper(int, Int8BinaryDumper)
                connection.execute(_SETTINGS + wait_for_rows())
                connection.execute(_WRITING if writes else "SET default_transaction_read_only = on")
        except BaseException:
            connection.close()
            raise
        _OPEN.add(connection)
        return connection

    @contextmanager
    def core_transaction(self) -> Iterator[CoreConnection]:
        """One transaction under SQLAlchemy, DDL included, for making and migrating tables."""
        with self.translated():
            connection = self.connect("raygam making", writes=True)
            try:
                connection.autocommit = False
                engine = create_engine("postgresql+psycopg://", creator=lambda: connection, poolclass=NullPool)
                with engine.begin() as core:
                    yield core
            finally:
                connection.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn PostgreSQL's errors into ours, saying where, and what to do."""
        try:
            yield
        except psycopg.Error as error:
            raise self.translate(error) from error
        except DBAPIError as error:  # the same under SQLAlchemy, while tables are made
            if not isinstance(error.orig, psycopg.Error):
                raise
            raise self.translate(error.orig) from error

    def translate(self, error: psycopg.Error) -> RaygamError:
        """What an error of PostgreSQL means to a caller."""
        state = error.sqlstate or ""
        text = self._clean(error)
        if isinstance(error, errors.LockNotAvailable):
            return RowHeld(f"{self.where}: another transaction holds the row ({text}): nothing was written; try again")
        if isinstance(error, psycopg.IntegrityError):
            return RaygamError(
                f"{self.where} refused a write that breaks a rule of the ledger ({_broken_rule(error) or text}): "
                "nothing was written. This is a fault in raygam; please report it"
            )
        if state.startswith("53"):
            return Retryable(
                f"{self.where} has no room ({text}): nothing was written; free disk space, memory or connections "
                "(max_connections: one for each partition and some for readers), then go on"
            )
        if state.startswith(("08", "57P")) or (isinstance(error, psycopg.OperationalError) and not state):
            return Retryable(f"the connection to {self.where} was lost ({text}); try again when the server is there")
        if state == "25006":
            return Retryable(
                f"{self.where} takes no writes ({text}), as a standby does; try again after the failover, or add "
                "target_session_attrs=read-write to the URL"
            )
        if state.startswith(("40", "55", "57", "58")):
            return Retryable(f"{self.where} could not do it now ({text}): nothing was written; try again")
        if state.startswith("42501"):
            return Misconfigured(
                f"{self.where}: {text}; the user needs to own schema {SCHEMA}, or CREATE on the database"
            )
        if state.startswith("XX00") and state != "XX000":
            return Misconfigured(f"{self.where} is damaged ({text}); restore it from a backup")
        if state.startswith(("42P01", "3F000", "42703")):
            return Misconfigured(f"{self.where} has not the ledger's tables ({text}); restore it from a backup")
        return RaygamError(f"{self.where}: {text} ({state or type(error).__name__}); nothing was written")

    def _refused(self, error: psycopg.Error) -> RaygamError:
        """What a connection that was not made means: libpq tells it in words only."""
        text = self._clean(error)
        if re.search(r"starting up|shutting down|recovery mode|too many|remaining connection slots", text):
            return Retryable(f"{self.where} takes no connection now ({text}); try again, or raise max_connections")
        if re.search(r"password|authentication|role .* does not exist|certificate|pg_hba\.conf", text):
            return Misconfigured(
                f"{self.where} does not let this user in ({text}); check the user, the password (in the URL, "
                "PGPASSWORD or ~/.pgpass) and the server's pg_hba.conf"
            )
        if re.search(r"database .* does not exist", text):
            return Misconfigured(f"{self.where} is not there ({text}); make it with `createdb`, or name another")
        if re.search(r"permission denied", text) and "FATAL" in text:
            return Misconfigured(f"{self.where}: {text}; grant the user CONNECT on the database")
        if re.search(r"invalid .* value|does not support|unrecognized|no such option", text):
            return Misconfigured(f"{self.where}: {text}; mend the URL")
        return Retryable(
            f"cannot reach PostgreSQL at {self.where} ({text}); check that it runs and that host and port are right, "
            "then try again"
        )

    def _clean(self, error: psycopg.Error) -> str:
        diagnosed = error.diag.message_primary
        text = " ".join((diagnosed or str(error)).split())
        password = self.parameters.get("password")
        return text.replace(str(password), "***") if password else text


def wait_for_rows(*, opening: bool = False) -> str:
    """The statement that sets how long a connection waits for another transaction's row."""
    seconds = min(OPENING_SECONDS, LOCK_SECONDS) if opening else LOCK_SECONDS
    return f"SET lock_timeout = '{seconds:g}s'"


def _describe(given: dict[str, Any]) -> str:
    user = f"{given['user']}@" if given.get("user") else ""
    host, port = str(given.get("host") or ""), given.get("port")
    database = given.get("dbname") or given.get("user") or ""
    if host.startswith("/"):
        return f"postgresql://{user}/{database}?host={host}" + (f"&port={port}" if port else "")
    return f"postgresql://{user}{host}{f':{port}' if port else ''}/{database}"


def _is_torn(url: str, given: dict[str, Any]) -> bool:
    """Whether a character of a password that is not written as %40, %3A, %2F ended the place it stood in."""
    _, slashes, after = url.partition("://")
    path = after.partition("?")[0].partition("/")[2] if slashes else ""
    ports = str(given.get("port") or "").split(",")
    hosts = str(given.get("host") or "").split(",")
    return (
        "@" in path or any("@" in host[1:] for host in hosts) or not all(port.isdecimal() or not port for port in ports)
    )


def _broken_rule(error: psycopg.Error) -> str:
    """The columns or the rule that a write broke, without the values."""
    diag = error.diag
    columns = re.match(r"Key \((.+?)\)=", diag.message_detail or "")
    if columns and diag.table_name:
        return f"{diag.constraint_name}: " + ", ".join(
            f"{diag.table_name}.{column.strip()}" for column in columns[1].split(",")
        )
    if diag.column_name:
        return f"{diag.table_name}.{diag.column_name}: {diag.message_primary}"
    return f"{diag.table_name}: {diag.constraint_name}" if diag.constraint_name else ""


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_all() -> None:
    """Close a forked child's copies, without a word to the server: they would outlive the engine."""
    for connection in list(_OPEN):
        with contextlib.suppress(OSError, psycopg.Error):
            os.close(connection.fileno())
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget_all)
