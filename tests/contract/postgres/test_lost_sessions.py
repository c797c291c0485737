"""A writer that stops in its transaction, and connections and servers that break."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import psycopg
import pytest

from benchmarks.postgres_server import GivenServer, PostgresServer
from raygam.adapters import postgres_connection
from raygam.adapters.postgres_reader import PostgresReader
from raygam.adapters.postgres_store import PostgresStore
from raygam.adapters.postgres_writer import PostgresWriter
from raygam.memory.errors import Fenced, Retryable, StateLocked
from raygam.memory.progression import Progress
from raygam.memory.writes import SourcePosition, UserRow
from tests.contract.postgres.database import ANNA, BEN, FACTS, Pausing, ask, end_sessions, turns


def test_an_opener_ends_the_transaction_of_a_writer_that_does_not_go_on(store: PostgresStore) -> None:
    """Soon: a shard that replaces a stopped one may meet many of these."""
    stopped = store.writer(0)
    heirs: list[PostgresWriter] = []

    def open_elsewhere() -> None:
        started = time.monotonic()
        heirs.append(store.writer(0))
        assert time.monotonic() - started < postgres_connection.LOCK_SECONDS / 2

    with pytest.raises(Retryable, match=r"connection to .* was lost"):
        stopped.commit(turns(2, dead_letters=Pausing(open_elsewhere)))
    heirs[0].commit(turns(2))
    with pytest.raises(Fenced, match="partition 0"):
        stopped.commit(turns(3))
    with pytest.raises(Fenced):
        stopped.positions()
    assert [event.seq for event in store.reader(0).events(ANNA)] == [1, 2]
    waits = heirs[0]._connection.execute("SHOW lock_timeout").fetchone()
    assert waits == (f"{postgres_connection.LOCK_SECONDS:g}s",), "it goes on as patient as others"


@pytest.mark.usefixtures("impatient")
def test_a_persons_transaction_is_named_and_left_alone(url: str, store: PostgresStore) -> None:
    with psycopg.connect(url, application_name="psql") as person:
        person.execute("SELECT 1 FROM raygam.partition WHERE partition = 0 FOR UPDATE")
        with pytest.raises(
            Retryable, match=rf"held by the server process {person.info.backend_pid} \(psql, from"
        ) as told:
            store.writer(0)
        assert f"pg_terminate_backend({person.info.backend_pid})" in str(told.value)
        person.execute("SELECT 1")
    store.writer(0).commit(turns(2))


@pytest.mark.usefixtures("impatient")
def test_a_zombie_that_comes_back_ends_no_later_writer(url: str, store: PostgresStore) -> None:
    zombie = store.writer(0)
    heir = store.writer(0)
    end_sessions_of(url, zombie)
    with pytest.raises(Retryable):
        zombie.positions()
    told: list[str] = []

    def zombie_comes_back() -> None:
        with pytest.raises(Retryable, match="is held by the server process") as refused:
            zombie.positions()
        told.append(str(refused.value))

    heir.commit(turns(2, dead_letters=Pausing(zombie_comes_back)))
    assert len(told) == 1
    assert len(store.reader(0).events(ANNA)) == 2
    with pytest.raises(Fenced):
        zombie.positions()


def end_sessions_of(url: str, writer: PostgresWriter) -> None:
    ask(url, "SELECT pg_terminate_backend(%s, 5000)", writer._connection.backend_pid)


@pytest.mark.usefixtures("impatient")
def test_a_row_that_is_held_is_waited_for_and_then_retryable(url: str, store: PostgresStore) -> None:
    writer = store.writer(0)
    with psycopg.connect(url) as person:
        person.execute("SELECT 1 FROM raygam.partition WHERE partition = 0 FOR UPDATE")
        with pytest.raises(Retryable, match=r"another transaction holds the row.*nothing was written"):
            writer.commit(turns(2))
    writer.commit(turns(2))


def test_a_connection_that_breaks_in_the_middle_wrote_nothing_and_is_made_again(url: str, store: PostgresStore) -> None:
    writer = store.writer(0)
    with pytest.raises(Retryable, match="was lost"):
        writer.commit(turns(2, dead_letters=Pausing(lambda: end_sessions(url, "raygam partition 0"))))
    assert len(store.reader(0).events(ANNA)) == 1
    epoch = writer.epoch
    writer.commit(turns(2, users=[UserRow(ANNA, Progress())]))
    assert writer.epoch == epoch  # it was nobody else's meanwhile
    assert len(store.reader(0).events(ANNA)) == 2


@pytest.mark.parametrize("written", [False, True])
def test_a_commit_whose_answer_is_lost(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """The server goes before the COMMIT comes or after it: the writer says that it does not know, then knows."""
    writer = store.writer(0)
    execute = psycopg.Connection.execute

    def losing(self: Any, statement: Any, *more: Any, **options: Any) -> Any:
        if statement != "COMMIT":
            return execute(self, statement, *more, **options)
        monkeypatch.undo()
        if written:
            execute(self, statement)
        end_sessions(url, "raygam partition 0")
        return execute(self, "SELECT 1")

    monkeypatch.setattr(psycopg.Connection, "execute", losing)
    write = turns(2, user=BEN, positions={"a": SourcePosition(9)}, counts={"duplicates": 1})
    with pytest.raises(Retryable, match=r"lost at COMMIT: whether this was written is not known"):
        writer.commit(write)
    assert writer.counters()["seq"] == (3 if written else 2)
    assert writer.positions() == ({"a": SourcePosition(9)} if written else {})
    assert writer.known_messages([(BEN, "m2")]) == ({(BEN, "m2")} if written else set())
    if not written:
        writer.commit(write)
    writer.commit(turns(3, user=BEN, counts={"duplicates": 1}))
    reader = store.reader(0)
    assert [event.seq for event in reader.events(BEN)] == [2, 3]
    assert reader.partition_info().counts == {"duplicates": 2}


def test_after_a_lost_connection_the_newest_epoch_rules(url: str, store: PostgresStore) -> None:
    zombie = store.writer(0)
    end_sessions(url, "raygam partition 0")
    store.writer(0).commit(turns(2))
    with pytest.raises(Retryable):
        zombie.commit(turns(2))
    for _ in range(2):
        with pytest.raises(Fenced):
            zombie.commit(turns(2))


def test_a_reader_does_not_notice_that_its_connections_were_lost(url: str, store: PostgresStore) -> None:
    reader = store.reader(0)
    assert len(reader.events(ANNA)) == 1
    end_sessions(url, "raygam reader")
    assert len(reader.events(ANNA)) == 1
    end_sessions(url, "raygam reader")
    with reader.snapshot():
        assert len(reader.events(ANNA)) == 1
    with pytest.raises(Retryable, match="was lost"):
        _read_over_a_loss(url, reader)
    assert reader.position() == 1


def _read_over_a_loss(url: str, reader: PostgresReader) -> None:
    """One moment ends with its connection."""
    with reader.snapshot():
        reader.position()
        assert end_sessions(url, "raygam reader")
        reader.position()


def test_a_server_that_is_killed_and_comes_back(postgres_server: GivenServer, url: str) -> None:
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("the server is somebody else's, and is not killed")
    with PostgresStore.create_or_open(url, FACTS) as store:
        writer, reader = store.writer(0), store.reader(0)
        writer.commit(turns(2))
        reader.position()
        postgres_server.kill()
        try:
            for call in (lambda: writer.commit(turns(3)), writer.positions, reader.position, lambda: store.writer(1)):
                with pytest.raises(Retryable, match=rf"127\.0\.0\.1:{postgres_server.port}"):
                    call()
        finally:
            postgres_server.start()
        assert writer.counters()["seq"] == 3
        writer.commit(turns(3))
        assert reader.position() == 3
        store.writer(1)
        with pytest.raises(StateLocked):  # the lock was taken again
            PostgresStore.create_or_open(url, FACTS)


_STOPPED = """
import os, signal, sys
import numpy as np
from raygam.adapters.postgres_store import PostgresStore
from raygam.memory.errors import Fenced, Retryable
from raygam.memory.model import Event, User
from raygam.memory.writes import DeadLetter, StateFacts, WriteSet

store = PostgresStore.join(sys.argv[1], StateFacts(2, "murmur2", "stub", 4, 1), "127.0.0.1:1")
writer = store.writer(0)

class Stopping(list):
    def __iter__(self):
        print("stops", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().__iter__()

def write(letters):
    event = Event(User("default", "anna"), 2, "zombie", "s", "Anna", "user", "text", 1)
    writer.commit(WriteSet(events=[event], vectors=np.ones((1, 4), np.float32), dead_letters=letters))

for letters in (Stopping([DeadLetter("a", 1, "blank", "", b"")]), []):
    try:
        write(letters)
    except (Retryable, Fenced) as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.usefixtures("impatient")
def test_a_process_that_is_stopped_in_its_transaction_holds_nobody_up(url: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", _STOPPED, url], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"stops\n"
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        with PostgresStore.join(url, FACTS, "127.0.0.1:1") as store:
            store.writer(0).commit(turns(2))
            process.send_signal(signal.SIGCONT)
            assert process.stdout.read() == b"Retryable\nFenced\n"
            assert [event.message_id for event in store.reader(0).events(ANNA)] == ["m1", "m2"]
    finally:
        process.kill()
        process.communicate()
