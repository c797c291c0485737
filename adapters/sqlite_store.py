"""A state directory: one SQLite file per partition, the facts they were made with, and a lock.

    DIR/state.db            what the state was made with; it is written last
    DIR/partition-0003.db   everything of one partition, while written with `-wal` and `-shm` beside it
    DIR/state.lock          held by the engine that writes

`create_or_open` is for the one engine that writes, `open_read_only` for everybody else.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import insert, select

from ..memory.errors import Misconfigured, Retryable
from ..memory.writes import StateFacts
from . import migrations, state_facts
from .schema import STATE_METADATA, fact
from .sqlite_connection import core_transaction, open_for_reading, translated_errors
from .sqlite_dialect import SQLITE
from .sqlite_reader import SqliteReader
from .sqlite_writer import SqliteWriter
from .state_facts import REVISION, check_partitions, other_revision
from .state_lock import StateLock

STATE_NAME = "state.db"
_READ_FACTS = SQLITE.one(select(fact.c.name, fact.c.value))


class SqliteStore:
    """An opened state directory; see `Store` in `memory/ports.py` for what is promised.

    Closing it closes the readers and writers that it gave, then the lock.
    """

    def __init__(self, directory: Path, facts: StateFacts, lock: StateLock | None) -> None:
        self.directory = directory
        self._facts = facts
        self._lock = lock
        self._opened: list[SqliteReader | SqliteWriter] = []

    @classmethod
    def create_or_open(cls, directory: Path, facts: StateFacts) -> Self:
        """Open a state for writing; make it where there is none.

        A making that was killed half-way goes on: nothing can be in it before `state.db` is.

        Raises:
            StateLocked: another engine writes to it.
            Misconfigured: it was made with other facts or by a newer raygam, or the path
                cannot hold a state.
            Retryable: the disk is full.
        """
        with _clear_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        return cls._opened_under(StateLock.acquire(directory), directory, facts)

    @classmethod
    def join(cls, directory: Path, facts: StateFacts, cluster: str) -> Self:
        """Open a state for writing as one process of a cluster; make it where there is none.

        Within the cluster the epochs rule: whoever opened a partition last writes it.

        Raises:
            StateLocked: an engine of one process writes to it, or another cluster.
            Misconfigured, Retryable: as `create_or_open`.
        """
        with _clear_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            if _read_facts(directory) is None:
                # Made under the lock alone, so that two of the cluster's processes do not make it at once.
                cls.create_or_open(directory, facts).close()
        return cls._opened_under(StateLock.join(directory, cluster), directory, facts)

    @classmethod
    def _opened_under(cls, lock: StateLock, directory: Path, facts: StateFacts) -> Self:
        try:
            with _clear_errors(directory):
                held = _read_facts(directory)
                if held is None:
                    _make(directory, facts)
                    held = facts
                state_facts.compare(directory, held, facts)
                for partition in range(held.partitions):
                    path = _partition_path(directory, partition)
                    if path.exists():  # a missing one is told of by who asks for it
                        with translated_errors(path):
                            _migrate(path)
            return cls(directory, held, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open_read_only(cls, directory: Path) -> Self:
        """Open a state for reading, beside its writer if there is one; creates and changes nothing.

        Raises:
            Misconfigured: there is no state, or it cannot be read.
        """
        with _clear_errors(directory):
            held = _read_facts(directory)
        if held is None:
            raise Misconfigured(f"no state at {directory}; `raygam run SOURCE --state {directory}` makes one")
        return cls(directory, held, None)

    @staticmethod
    def recorded_facts(directory: Path) -> StateFacts | None:
        """What a state was made with, None where there is none; opens nothing for longer.

        Raises:
            Misconfigured: there is something that is no state, or a newer one.
        """
        with _clear_errors(directory):
            return _read_facts(directory)

    @property
    def facts(self) -> StateFacts:
        """What the state was made with."""
        return self._facts

    def writer(self, partition: int, opened_by: str = "") -> SqliteWriter:
        """Open for writing: bumps the epoch, so that an older writer is fenced.

        Args:
            partition: its number.
            opened_by: who opens it, for people.

        Raises:
            Misconfigured: the store was opened for reading only, or there is no such partition.
        """
        if self._lock is None:
            raise Misconfigured(f"{self.directory} was opened for reading only; open it with an engine to write")
        path = self._path(partition)
        if not path.exists():  # it was made with the state: making it now would hide a loss
            raise Misconfigured(f"{path} is missing; restore it from a copy")
        writer = SqliteWriter(path, partition, self._facts.dimension, opened_by)
        self._opened = [each for each in self._opened if not each.closed]  # a partition may come and go for years
        self._opened.append(writer)
        return writer

    def reader(self, partition: int) -> SqliteReader:
        """Open for reading; needs no lock and bumps nothing.

        Raises:
            Misconfigured: there is no such partition, or its form is not this raygam's.
        """
        path = self._path(partition)
        with translated_errors(path), closing(open_for_reading(path)) as connection:
            revision = _revision(connection)
        if revision != REVISION:
            raise other_revision(path, revision)
        reader = SqliteReader(path, partition, self._facts.dimension)
        self._opened.append(reader)
        return reader

    def close(self) -> None:
        """Close what was opened, and give the lock back; twice is once."""
        opened, self._opened = self._opened, []
        # Readers first: the last one to leave a partition must be its writer, which tidies up.
        for each in sorted(opened, key=lambda each: isinstance(each, SqliteWriter)):
            each.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _path(self, partition: int) -> Path:
        if not 0 <= partition < self._facts.partitions:
            raise Misconfigured(
                f"{self.directory} has no partition {partition}; its partitions are 0 to {self._facts.partitions - 1}"
            )
        return _partition_path(self.directory, partition)


def _partition_path(directory: Path, partition: int) -> Path:
    return directory / f"partition-{partition:04d}.db"


def _read_facts(directory: Path) -> StateFacts | None:
    """The facts of a state, None where none was made.

    Raises:
        Misconfigured: `state.db` is not ours, or of a newer form.
    """
    path = directory / STATE_NAME
    if not path.exists():
        if directory.exists() and not directory.is_dir():
            raise Misconfigured(f"{directory} is a file; give a directory for the state")
        return None
    with translated_errors(path), closing(open_for_reading(path)) as connection:
        held = dict(connection.execute(_READ_FACTS).fetchall())
    return state_facts.from_rows(held, directory, path)


def _make(directory: Path, facts: StateFacts) -> None:
    """Make a state: partitions first, `state.db` last, each whole or not at all."""
    check_partitions(facts)
    for leftover in sorted(directory.glob("partition-*.db")):
        _refuse_used(leftover)
    for leftover in directory.glob("partition-*.db*"):
        leftover.unlink()
    first = _partition_path(directory, 0)
    with _new_file(first) as new:
        _migrate(new)
    for partition in range(1, facts.partitions):
        with _new_file(_partition_path(directory, partition)) as new:
            shutil.copyfile(first, new)
    with _new_file(directory / STATE_NAME) as new:
        _write_facts(new, facts)


def _refuse_used(path: Path) -> None:
    """Let a file of a making that did not end pass.

    Raises:
        Misconfigured: it was in use: then it is `state.db` that is gone.
    """
    with translated_errors(path), closing(open_for_reading(path)) as connection:
        made = _revision(connection) is not None
        used = made and connection.execute("SELECT count(*) FROM partition").fetchone()[0]
    if used:
        raise Misconfigured(
            f"{path.parent} has {path.name}, which holds data, but no {STATE_NAME}; restore {STATE_NAME} from a "
            "copy, or choose another directory"
        )


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """A path to write to; what was written appears at `path` at once, or never."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    yield new
    _sync(new)
    new.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_facts(path: Path, facts: StateFacts) -> None:
    with translated_errors(path), core_transaction(path) as connection:
        STATE_METADATA.create_all(connection)
        connection.execute(insert(fact), state_facts.to_rows(facts))


def _migrate(path: Path) -> None:
    """Bring a partition's tables to this form; an empty or absent file gets them all."""
    if path.exists():
        with closing(open_for_reading(path)) as connection:
            revision = _revision(connection)
        if revision == REVISION:
            return
        if revision is not None and revision > REVISION:
            raise other_revision(path, revision)
    with core_transaction(path) as connection:
        migrations.upgrade(connection, REVISION)


def _revision(connection: sqlite3.Connection) -> str | None:
    """The migration that a partition's tables are at; None where it has none."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        return None
    found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(found[0]) if found else None


@contextmanager
def _clear_errors(directory: Path) -> Iterator[None]:
    """Errors of SQLite, SQLAlchemy and the file system while a state is made or looked at, as ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Retryable(f"the disk of {directory} is full; free space, then go on") from error
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise Misconfigured(f"{error.filename or directory} is a file; give a directory for the state") from error
        raise Misconfigured(
            f"cannot use {error.filename or directory} for the state: {error.strerror}; check the path and its permissions"
        ) from error
