"""SQLite connections of the ledger: how they are opened, and what their errors mean.

SQLAlchemy Core writes the statements, once, at import; the driver runs them. Core's
own execution would cost more than the rows (see `docs/design/ledger.md`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy import event as engine_events
from sqlalchemy.exc import DBAPIError

from ..memory.errors import Misconfigured, RaygamError, Retryable

PAGE_BYTES = 8192
CHECKPOINT_PAGES = 8000
"""A checkpoint each 64 MB of write-ahead log: pages that many transactions touch are written back once."""
_BUSY_SECONDS = 5.0
_CACHE_KIB = 16384


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open a partition's file: WAL, durable at COMMIT, transactions begun by hand."""
    connection = sqlite3.connect(
        _uri(path, "rwc"), uri=True, isolation_level=None, timeout=_BUSY_SECONDS, check_same_thread=False
    )
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # tells on a new file only
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open a file that exists, for reading only; nothing is created or changed."""
    return sqlite3.connect(
        _uri(path, "ro"), uri=True, isolation_level=None, timeout=_BUSY_SECONDS, check_same_thread=False
    )


def close_writing(connection: sqlite3.Connection) -> None:
    """Close a partition and leave one plain file behind, readable without its log.

    A reader that still looks at the file keeps the log; then nothing is lost either.
    """
    try:
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # A file in WAL mode makes its first reader create `-wal` and `-shm` beside it.
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError:
        pass  # readers are there, or the disk is full: the log is replayed at the next opening
    finally:
        connection.close()


@contextmanager
def core_transaction(path: Path) -> Iterator[Connection]:
    """One transaction under SQLAlchemy, DDL included, for making and migrating tables."""
    engine = create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(_uri(path, "rwc"), uri=True, isolation_level=None),
        poolclass=NullPool,
    )

    @engine_events.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")

    @engine_events.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A write transaction that ends with the block: committed, or rolled back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, saying which file, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except DBAPIError as error:  # the same under SQLAlchemy, while tables are made
        if not isinstance(error.orig, sqlite3.Error):
            raise
        raise translate(error.orig, path) from error


def translate(error: sqlite3.Error, path: Path) -> RaygamError:
    """What an error of SQLite means to a caller."""
    name: str = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Retryable(f"{path} is busy ({error}); try again")
    if name.startswith("SQLITE_FULL"):
        return Retryable(f"the disk of {path} is full: nothing was written; free space, then go on ({error})")
    if name.startswith("SQLITE_IOERR"):
        return Retryable(
            f"reading or writing {path} failed: nothing was written; look at the disk (full, quota, faulty), "
            f"then go on ({error}, {name})"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return Misconfigured(f"{path} is damaged or not a ledger ({error}); restore it from a copy")
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_READONLY", "SQLITE_AUTH")):
        return Misconfigured(f"cannot open {path} ({error}); check that it exists and its permissions")
    if isinstance(error, sqlite3.IntegrityError):
        return RaygamError(
            f"{path} refused a write that breaks a rule of the ledger ({error}): nothing was written. "
            "This is a fault in raygam; please report it"
        )
    return RaygamError(f"{path}: {error} ({name or type(error).__name__}); nothing was written")


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.absolute()))}?mode={mode}"
