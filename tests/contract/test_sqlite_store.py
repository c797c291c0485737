"""What is peculiar to a state directory of SQLite files."""

from __future__ import annotations

import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import MetaData

from raygam.adapters import schema
from raygam.adapters.sqlite_connection import core_transaction
from raygam.adapters.sqlite_statements import QUERIES, STATEMENTS
from raygam.adapters.sqlite_store import SqliteStore
from raygam.memory.errors import Misconfigured, RaygamError, Retryable
from raygam.memory.model import Event, User
from raygam.memory.writes import StateFacts, WriteSet

FACTS = StateFacts(partitions=2, partitioner="murmur2", embedder="stub", dimension=4, template=1)
ANNA = User("default", "anna")


ADDED = (
    ("topic", "label"),
    ("topic", "facts"),
    ("topic", "relationships"),
    ("task", "parked_by_person"),
    ("owner", "rebuilds"),
)
"""Columns that tables of the first format do not have."""


def turns(first: int, count: int = 1, text: str = "text") -> WriteSet:
    events = [Event(ANNA, seq, f"m{seq}", "s", "Anna", "user", text, 1000 * seq) for seq in range(first, first + count)]
    return WriteSet(events=events, vectors=np.ones((count, 4), np.float32))


def listing(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed state with one turn in partition 0."""
    made = tmp_path / "state"
    with SqliteStore.create_or_open(made, FACTS) as store:
        store.writer(0).commit(turns(1))
    return made


# Files.


def test_the_layout_while_written_and_after(directory: Path) -> None:
    closed = ["partition-0000.db", "partition-0001.db", "state.db", "state.lock"]
    assert sorted(listing(directory)) == closed
    assert (directory / "state.lock").read_bytes() == b""
    with SqliteStore.create_or_open(directory, FACTS) as store:
        store.writer(0).commit(turns(2))
        assert "partition-0000.db-wal" in listing(directory)
        with closing(sqlite3.connect(directory / "partition-0000.db")) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert str(os.getpid()) in (directory / "state.lock").read_text()
    assert sorted(listing(directory)) == closed


def test_reading_creates_and_changes_nothing(directory: Path) -> None:
    before = listing(directory)
    with SqliteStore.open_read_only(directory) as reading:
        for partition in range(2):
            reader = reading.reader(partition)
            list(reader.users())
            reader.entries(ANNA)
            assert listing(directory) == before
    assert listing(directory) == before
    assert SqliteStore.recorded_facts(directory) == FACTS
    assert listing(directory) == before


def test_a_reader_that_was_there_first_sees_what_a_later_writer_writes(directory: Path) -> None:
    with SqliteStore.open_read_only(directory) as reading:
        reader = reading.reader(0)
        assert len(reader.events(ANNA)) == 1
        with SqliteStore.create_or_open(directory, FACTS) as store:
            store.writer(0).commit(turns(2))
            assert len(reader.events(ANNA)) == 2
        assert len(reader.events(ANNA)) == 2
        with SqliteStore.create_or_open(directory, FACTS) as store:
            store.writer(0).commit(turns(3))
        assert len(reader.events(ANNA)) == 3


def test_a_snapshot_is_of_one_moment(directory: Path) -> None:
    with SqliteStore.create_or_open(directory, FACTS) as store:
        writer, reader = store.writer(0), store.reader(0)
        with reader.snapshot():
            assert len(reader.events(ANNA)) == 1
            writer.commit(turns(2))
            assert len(reader.events(ANNA)) == 1
        assert len(reader.events(ANNA)) == 2


def test_no_state_is_no_state(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    for where in (absent, tmp_path):
        with pytest.raises(Misconfigured, match=f"no state at {where}; `raygam run SOURCE --state {where}` makes one"):
            SqliteStore.open_read_only(where)
        assert SqliteStore.recorded_facts(where) is None
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    for where in (file, file / "below"):
        with pytest.raises(Misconfigured, match="is a file; give a directory"):
            SqliteStore.create_or_open(where, FACTS)
    with pytest.raises(Misconfigured, match="is a file; give a directory"):
        SqliteStore.open_read_only(file)
    assert file.read_text() == "hello"


@pytest.mark.parametrize("name", ["state.db", "partition-0000.db"])
def test_a_damaged_file_is_named(directory: Path, name: str) -> None:
    (directory / name).write_bytes(b"not a database" * 1000)
    before = listing(directory)
    message = rf"{name} is damaged or not a ledger"
    with pytest.raises(Misconfigured, match=message), SqliteStore.create_or_open(directory, FACTS) as store:
        store.writer(0)
    with pytest.raises(Misconfigured, match=message), SqliteStore.open_read_only(directory) as reading:
        reading.reader(0)
    assert listing(directory) == before  # and the lock is given back


def test_a_file_that_is_gone_is_named(directory: Path) -> None:
    (directory / "partition-0000.db").unlink()
    with SqliteStore.open_read_only(directory) as reading, pytest.raises(Misconfigured, match=r"partition-0000\.db"):
        reading.reader(0)
    with (
        SqliteStore.create_or_open(directory, FACTS) as store,
        pytest.raises(Misconfigured, match=r"partition-0000\.db is missing"),
    ):
        store.writer(0)
    assert not (directory / "partition-0000.db").exists()


def test_files_whose_names_were_changed_round(directory: Path) -> None:
    with SqliteStore.create_or_open(directory, FACTS) as store:
        store.writer(1)
    (directory / "partition-0001.db").replace(directory / "partition-0000.db")
    with (
        SqliteStore.create_or_open(directory, FACTS) as store,
        pytest.raises(Misconfigured, match="holds partition 1, not 0"),
    ):
        store.writer(0)


# Making.


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Breaks off at the n-th file that is put into place, n counting down from what is set."""
    left = [0]
    replace = Path.replace

    def interrupting(self: Path, target: Path) -> Path:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupting)
    yield left
    monkeypatch.undo()


@pytest.mark.parametrize("placed", [0, 1, 2])
def test_a_making_that_broke_off_goes_on(tmp_path: Path, interrupted: list[int], placed: int) -> None:
    interrupted[0] = placed
    with pytest.raises(KeyboardInterrupt):
        SqliteStore.create_or_open(tmp_path, FACTS)
    with pytest.raises(Misconfigured, match="no state at"):
        SqliteStore.open_read_only(tmp_path)
    interrupted[0] = 99
    other = StateFacts(partitions=1, partitioner="crc32", embedder="x", dimension=4, template=1)
    with SqliteStore.create_or_open(tmp_path, other) as store:  # nothing was in it: other facts are fine
        store.writer(0).commit(turns(1))
    assert sorted(listing(tmp_path)) == ["partition-0000.db", "state.db", "state.lock"]


def test_a_kill_while_it_is_made(tmp_path: Path) -> None:
    source = f"""
import os, signal
from pathlib import Path
from raygam.adapters import sqlite_store
from raygam.memory.writes import StateFacts
sqlite_store._write_facts = lambda path, facts: os.kill(os.getpid(), signal.SIGKILL)
sqlite_store.SqliteStore.create_or_open(Path({str(tmp_path)!r}), {FACTS!r})
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "partition-0001.db" in listing(tmp_path)
    with SqliteStore.create_or_open(tmp_path, FACTS) as store:
        store.writer(1).commit(turns(1))


def test_data_without_its_facts_is_not_made_anew(directory: Path) -> None:
    (directory / "state.db").unlink()
    (directory / "partition-0000.db").replace(directory / "partition-0002.db")  # one without data comes first
    before = listing(directory)
    with pytest.raises(Misconfigured, match=r"partition-0002\.db, which holds data, but no state\.db"):
        SqliteStore.create_or_open(directory, FACTS)
    assert listing(directory) == before


def test_an_empty_file_is_migrated(directory: Path) -> None:
    (directory / "partition-0001.db").write_bytes(b"")
    with pytest.raises(Misconfigured, match="brings it up to date"):
        SqliteStore.open_read_only(directory).reader(1)
    with SqliteStore.create_or_open(directory, FACTS) as store:
        store.writer(1).commit(turns(1))
        assert len(store.reader(1).events(ANNA)) == 1


def test_the_migrations_make_the_schema(tmp_path: Path, directory: Path) -> None:
    def tables(path: Path) -> list[tuple[str, str, str]]:
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute(
                "SELECT type, name, sql FROM sqlite_master WHERE tbl_name <> 'alembic_version' ORDER BY name"
            ).fetchall()
        # An added column stands on the line of the one before it.
        return [(kind, name, re.sub(r"\s+", " ", text)) for kind, name, text in found if text]

    for metadata, made in ((schema.METADATA, "partition-0000.db"), (schema.STATE_METADATA, "state.db")):
        assert isinstance(metadata, MetaData)
        direct = tmp_path / f"direct-{made}"
        with core_transaction(direct) as connection:
            metadata.create_all(connection)
        assert tables(direct) == tables(directory / made)


def test_a_state_of_the_first_format_is_brought_up(directory: Path) -> None:
    """As the first raygam left it: its tables, and turns in them."""
    with SqliteStore.create_or_open(directory, FACTS) as store:
        store.writer(0).commit(turns(3))
    for path in directory.glob("partition-*.db"):
        with closing(sqlite3.connect(path)) as connection, connection:
            for table in ("opening", "outbox", "replay_letter", "replay", "model_call", "shadow"):
                connection.execute(f"DROP TABLE {table}")
            for table, column in ADDED:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
            connection.execute("UPDATE alembic_version SET version_num = '0001'")
    with closing(sqlite3.connect(directory / "state.db")) as connection, connection:
        connection.execute("UPDATE fact SET value = '1' WHERE name = 'format'")
    with pytest.raises(Misconfigured, match=r"format 0001.*brings it up to date"):
        SqliteStore.open_read_only(directory).reader(0)
    with SqliteStore.create_or_open(directory, FACTS) as store:
        store.writer(0, "the next raygam")
        reader = store.reader(0)
        assert len(reader.events(ANNA)) == 2  # the third is another user's
        assert reader.partition_info().opened_by == "the next raygam"


@pytest.mark.parametrize("file", ["state.db", "partition-0000.db"])
def test_a_newer_format_is_refused(directory: Path, file: str) -> None:
    with closing(sqlite3.connect(directory / file)) as connection, connection:
        if file == "state.db":
            connection.execute("UPDATE fact SET value = '99' WHERE name = 'format'")
        else:
            connection.execute("UPDATE alembic_version SET version_num = '0099'")
    before = listing(directory)
    with pytest.raises(Misconfigured, match=r"99.*newer raygam"), SqliteStore.open_read_only(directory) as reading:
        reading.reader(0)
    with pytest.raises(Misconfigured, match=r"99.*newer raygam"), SqliteStore.create_or_open(directory, FACTS) as store:
        store.writer(0)
    assert listing(directory) == before


# Faults.


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 1 MB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_is_retryable_and_changes_nothing(directory: Path, request: pytest.FixtureRequest) -> None:
    with SqliteStore.create_or_open(directory, FACTS) as store:
        writer, reader = store.writer(0), store.reader(0)
        request.getfixturevalue("full_disk")
        with pytest.raises(Retryable, match=r"partition-0000\.db.*nothing was written"):
            writer.commit(turns(2, 2000, "x" * 1000))
        assert len(reader.events(ANNA)) == 1
        assert writer.counters()["seq"] == 2
        writer.commit(turns(2))  # a smaller one has room
        assert len(reader.events(ANNA)) == 2


def test_a_busy_file_is_retryable(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygam.adapters.sqlite_connection._BUSY_SECONDS", 0.01)
    with SqliteStore.create_or_open(directory, FACTS) as store:
        writer = store.writer(0)
        with closing(sqlite3.connect(directory / "partition-0000.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Retryable, match="busy"):
                writer.commit(turns(2))
            other.execute("ROLLBACK")
        writer.commit(turns(2))


def test_a_broken_rule_is_a_fault_and_leaves_no_transaction(directory: Path) -> None:
    with SqliteStore.create_or_open(directory, FACTS) as store:
        writer = store.writer(0)
        with pytest.raises(RaygamError, match=r"event\.owner, event\.message_id.*fault in raygam"):
            writer.commit(WriteSet(events=turns(2).events + _again(), vectors=np.ones((2, 4), np.float32)))
        with closing(sqlite3.connect(directory / "partition-0000.db", timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")


def _again() -> list[Event]:
    return [Event(ANNA, 3, "m1", "s", "Anna", "user", "text", 1)]


# Plans.


def test_no_statement_looks_through_all_turns(directory: Path) -> None:
    """A plan that scans `event` or `vector_log` is slow only once there is much in it."""
    with closing(sqlite3.connect(directory / "partition-0000.db")) as connection:
        for statements in (STATEMENTS, QUERIES):
            for name, statement in vars(statements).items():
                if not name.isupper() or not isinstance(statement, str):
                    continue
                plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * statement.count("?")).fetchall()
                for step in plan:
                    assert not step[3].startswith(("SCAN event", "SCAN vector_log", "SCAN topic")), (name, step[3])
