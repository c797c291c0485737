"""What is peculiar to a state in a PostgreSQL database: one database for all partitions, and a server that can go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import conninfo
from sqlalchemy import MetaData

from benchmarks.postgres_server import GivenServer, PostgresServer
from raygam.adapters import postgres_connection, postgres_lock, schema
from raygam.adapters.postgres_connection import Server
from raygam.adapters.postgres_dialect import CopyStatement
from raygam.adapters.postgres_lock import LOCK_METADATA
from raygam.adapters.postgres_reader import PostgresReader
from raygam.adapters.postgres_session import PostgresSession
from raygam.adapters.postgres_statements import QUERIES, STATEMENTS
from raygam.adapters.postgres_store import PostgresStore
from raygam.adapters.postgres_writer import PostgresWriter
from raygam.memory.errors import Fenced, Misconfigured, RaygamError, Retryable, StateLocked
from raygam.memory.model import Event, Layer, User
from raygam.memory.progression import Progress
from raygam.memory.writes import CommandRow, DeadLetter, SourcePosition, StateFacts, TaskRow, UserRow, WriteSet

FACTS = StateFacts(partitions=2, partitioner="murmur2", embedder="stub", dimension=4, template=1)
ANNA, BEN = User("default", "anna"), User("default", "ben")


def turns(first: int, count: int = 1, user: User = ANNA, **more: Any) -> WriteSet:
    events = [
        Event(user, seq, f"m{seq}", "s", "Anna", "user", "text", 1000 * seq) for seq in range(first, first + count)
    ]
    return WriteSet(events=events, vectors=np.eye(4, dtype=np.float32)[[event.seq % 4 for event in events]], **more)


@pytest.fixture(scope="module")
def made(postgres_server: GivenServer) -> str:
    """A closed state with one turn of Anna in partition 0."""
    url = postgres_server.database()
    with PostgresStore.create_or_open(url, FACTS) as store:
        store.writer(0).commit(turns(1))
    return url


@pytest.fixture(scope="module")
def kept(made: str) -> str:
    """The same; its rows are kept aside as well."""
    ask(made, "CREATE SCHEMA kept")
    for table in schema.METADATA.sorted_tables:
        ask(made, f"CREATE TABLE kept.{table.name} AS TABLE raygam.{table.name}")
    return made


@pytest.fixture
def url(kept: str) -> str:
    """The state as it was made: putting its rows back takes less than copying the database."""
    end_sessions(kept, "raygam%")
    with psycopg.connect(kept) as connection:
        for table in reversed(schema.METADATA.sorted_tables):
            connection.execute(f"DELETE FROM raygam.{table.name}".encode())
        for table in schema.METADATA.sorted_tables:
            connection.execute(f"INSERT INTO raygam.{table.name} TABLE kept.{table.name}".encode())
    return kept


@pytest.fixture
def copy(postgres_server: GivenServer, made: str) -> str:
    """A copy of the whole database, for tests that change more than rows."""
    end_sessions(made, "raygam%")
    return postgres_server.database(like=made)


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with PostgresStore.create_or_open(url, FACTS) as store:
        yield store


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a row that another holds."""
    monkeypatch.setattr(postgres_connection, "LOCK_SECONDS", 0.2)


def ask(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """As a person with psql would, beside the product."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def end_sessions(url: str, like: str) -> int:
    """End sessions as a restart of the server does; return how many."""
    ended = ask(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name LIKE %s AND datname = current_database()",
        like,
    )
    return len(ended)


def with_parts(url: str, **parts: str) -> str:
    return conninfo.make_conninfo(url, **parts)


class Pausing(list[DeadLetter]):
    """Dead letters that call back while the transaction is under way, near its end."""

    def __init__(self, callback: Callable[[], object]) -> None:
        super().__init__([DeadLetter("a", 1, "blank", "", b"")])
        self._callback = callback

    def __iter__(self) -> Iterator[DeadLetter]:
        self._callback()
        return super().__iter__()


# Making.


def test_a_state_is_made_in_a_schema_of_its_own(postgres_url: str) -> None:
    ask(postgres_url, "CREATE TABLE event (somebody_elses int)")
    assert PostgresStore.recorded_facts(postgres_url) is None
    with pytest.raises(Misconfigured, match=r"no state at postgresql://.*`raygam run SOURCE --state postgresql://"):
        PostgresStore.open_read_only(postgres_url)
    assert ask(postgres_url, "SELECT to_regnamespace('raygam')") == [(None,)]  # looking made nothing
    with PostgresStore.create_or_open(postgres_url, FACTS) as store:
        store.writer(1).commit(turns(1))
        assert len(store.reader(1).events(ANNA)) == 1
    assert PostgresStore.recorded_facts(postgres_url) == FACTS
    assert ask(postgres_url, "SELECT * FROM public.event") == []


def test_a_database_is_told_from_a_directory() -> None:
    assert PostgresStore.is_address("postgresql://host/memory")
    assert PostgresStore.is_address("postgres://anna@host/memory")
    assert not PostgresStore.is_address("postgresql")
    assert not PostgresStore.is_address("/var/lib/postgresql://state")


def test_a_making_that_broke_off_left_nothing(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(facts: StateFacts) -> list[dict[str, str]]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("raygam.adapters.state_facts.to_rows", breaking)
        with pytest.raises(KeyboardInterrupt):
            PostgresStore.create_or_open(postgres_url, FACTS)
    assert ask(postgres_url, "SELECT to_regnamespace('raygam')") == [(None,)]
    PostgresStore.create_or_open(postgres_url, replace(FACTS, partitions=1)).close()


def test_processes_of_a_cluster_make_it_once(postgres_url: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda _: PostgresStore.join(postgres_url, FACTS, "127.0.0.1:1"), range(3)))
    for each in opened:
        each.close()
    assert PostgresStore.recorded_facts(postgres_url) == FACTS


def test_a_state_that_cannot_be_made_says_why(postgres_server: GivenServer, postgres_url: str) -> None:
    for partitions, why in ((0, "at least one partition"), (5000, "at most 4096 partitions")):
        with pytest.raises(Misconfigured, match=why):
            PostgresStore.create_or_open(postgres_url, replace(FACTS, partitions=partitions))
    name = f"bytes_{os.getpid()}"
    ask(postgres_server.url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        with pytest.raises(Misconfigured, match="SQL_ASCII; make a database with encoding UTF8"):
            PostgresStore.create_or_open(with_parts(postgres_server.url, dbname=name), FACTS)
    finally:
        ask(postgres_server.url, f"DROP DATABASE {name} WITH (FORCE)")


_DESCRIBED = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, l.collname, pg_get_expr(d.adbin, d.adrelid)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_collation l ON l.oid = a.attcollation LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'raygam'::regnamespace AND c.relkind IN ('r', 'i') AND c.relname NOT LIKE 'alembic%'
UNION ALL SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), null, null, null FROM pg_constraint
WHERE connamespace = 'raygam'::regnamespace AND conname NOT LIKE 'alembic%'
UNION ALL SELECT tablename, indexname, indexdef, null, null, null FROM pg_indexes
WHERE schemaname = 'raygam' AND tablename NOT LIKE 'alembic%' ORDER BY 1, 2, 3
"""


def test_the_migrations_make_the_schema(postgres_url: str, made: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA raygam")
    with Server.of(postgres_url).core_transaction() as core:
        for metadata in (schema.METADATA, schema.STATE_METADATA, LOCK_METADATA):
            assert isinstance(metadata, MetaData)
            metadata.create_all(core)
    found = ask(made, _DESCRIBED)
    assert len(found) > 150
    assert found == ask(postgres_url, _DESCRIBED)


def test_a_state_of_the_first_format_is_brought_up_and_a_newer_one_refused(copy: str) -> None:
    for table in ("opening", "outbox", "replay_letter", "replay", "model_call", "shadow"):
        ask(copy, f"DROP TABLE raygam.{table}")
    for column in ("label", "facts", "relationships"):
        ask(copy, f"ALTER TABLE raygam.topic DROP COLUMN {column}")
    ask(copy, "ALTER TABLE raygam.task DROP COLUMN parked_by_person")
    ask(copy, "ALTER TABLE raygam.owner DROP COLUMN rebuilds")
    ask(copy, "UPDATE raygam.alembic_version SET version_num = '0001'")
    ask(copy, "UPDATE raygam.fact SET value = '1' WHERE name = 'format'")
    with pytest.raises(Misconfigured, match=r"format 0001.*brings it up to date"):
        PostgresStore.open_read_only(copy)
    with PostgresStore.create_or_open(copy, FACTS) as store:
        store.writer(0, "the next raygam")
        assert len(store.reader(0).events(ANNA)) == 1
        assert store.reader(0).partition_info().opened_by == "the next raygam"
    for change in (
        "UPDATE raygam.alembic_version SET version_num = '0099'",
        "UPDATE raygam.fact SET value = '99' WHERE name = 'format'",
    ):
        ask(copy, change)
        with pytest.raises(Misconfigured, match=r"99.*newer raygam"):
            PostgresStore.open_read_only(copy)
        with pytest.raises(Misconfigured, match=r"99.*newer raygam"):
            PostgresStore.create_or_open(copy, FACTS)


# Refusals.


def test_a_server_that_does_not_answer_is_retryable(postgres_server: GivenServer) -> None:
    with socket.socket() as taken:  # bound and not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(Retryable, match=rf"cannot reach PostgreSQL at .*127\.0\.0\.1:{port}/memory.*check") as told:
            PostgresStore.recorded_facts(f"postgresql://anna:pass%2Fword@127.0.0.1:{port}/memory")
    assert "word" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://anna:sec/ret@ho st/x", "postgresql://anna:secret@h:port/x?nothing=1", "secret", "/tmp/state"]
    + [
        f"postgresql://anna:{written}@h/x"
        for written in ("1/secret", "se/secret", "p@secret", "1@secret", "a:secret@", "s?secret")
    ],
)
def test_an_address_that_is_none_shows_no_password(url: str) -> None:
    with pytest.raises(RaygamError) as told:
        PostgresStore.open_read_only(url)
    assert "secret" not in str(told.value)
    assert "ret@" not in str(told.value)
    assert told.value.__cause__ is None


def test_whom_the_server_refuses(postgres_server: GivenServer, copy: str) -> None:
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("the server is somebody else's; who may connect is not ours to set")
    ask(copy, "CREATE ROLE secretive LOGIN PASSWORD 'correct-horse'")
    try:
        at = f"127.0.0.1:{postgres_server.port}"
        for user, why in (("secretive:guess", "password"), ("secretive", "password"), ("nobody", "does not exist")):
            with pytest.raises(
                Misconfigured, match=rf"{user.split(':')[0]}@{at}.*does not let this user in.*{why}"
            ) as told:
                PostgresStore.recorded_facts(f"postgresql://{user}@{at}/postgres")
            assert "guess" not in str(told.value)
        with pytest.raises(Misconfigured, match=r'database "nowhere" does not exist.*createdb'):
            PostgresStore.recorded_facts(f"postgresql://raygam@{at}/nowhere")
        asked = with_parts(copy, user="secretive", password="correct-horse")
        with pytest.raises(Misconfigured, match="permission denied for schema raygam") as told:
            PostgresStore.open_read_only(asked)
        assert "correct-horse" not in f"{told.value} {told.value.__cause__} {Server.of(asked)!r}"
        ask(copy, "GRANT USAGE ON SCHEMA raygam TO secretive; GRANT SELECT ON ALL TABLES IN SCHEMA raygam TO secretive")
        with PostgresStore.open_read_only(asked) as reading:  # to read, SELECT is enough
            assert len(reading.reader(0).events(ANNA)) == 1
        with pytest.raises(Misconfigured, match="permission denied"):
            PostgresStore.create_or_open(asked, FACTS)
    finally:
        ask(copy, "DROP OWNED BY secretive; DROP ROLE secretive")


# Partitions in one database.


def test_each_partition_has_its_own_numbers_and_its_own_rows(url: str, store: PostgresStore) -> None:
    first, second = store.writer(0), store.writer(1)
    assert (first.counters()["seq"], second.counters()["seq"]) == (2, 1)
    task = TaskRow("t", BEN, "s", "flush", True, False, (1,), 1, 0, None)
    second.commit(
        turns(
            *(1, 2, BEN),
            users=[UserRow(BEN, Progress(), events=2)],
            commands=[CommandRow(3, BEN, "flush", "")],
            tasks=[task],
            positions={"b": SourcePosition(7)},
            dead_letters=[DeadLetter("b", 1, "blank", "", b"\0")],
            counts={"duplicates": 1},
        )
    )
    mine, other = store.reader(0), store.reader(1)
    for reader, user, stranger in ((mine, ANNA, BEN), (other, BEN, ANNA)):
        assert len(reader.events(user)) == len(reader.entries(user).refs) > 0
        assert reader.vectors(user, Layer.EVENT, ["1"]).shape == (1, 4)
        assert (reader.events(stranger), reader.entries(stranger).refs, reader.version(stranger)) == ([], [], None)
        assert [row.user for row in reader.users()] == [user]
        with pytest.raises(KeyError):
            reader.turns([(stranger, (1,))])
        with pytest.raises(KeyError):
            reader.vectors(stranger, Layer.EVENT, ["1"])
    assert other.entries(BEN).seqs.tolist() == [1 << 20, 2 << 20]  # as if it were alone
    assert other.entries(BEN, after_seq=1 << 20).refs == ["2"]
    assert (mine.position(), other.position()) == (1, 3)
    assert (mine.tasks(), other.tasks()) == ([], [task])
    assert (list(mine.dead_letters()), len(list(other.dead_letters()))) == ([], 1)
    assert first.unsettled_users() == [ANNA]
    assert second.unsettled_users() == [BEN]
    assert (first.unfinished_tasks(), dict(first.positions())) == ([], {})
    assert first.load([ANNA, BEN]).keys() == {ANNA}
    assert first.known_messages([(BEN, "m1")]) == set()
    infos = [reader.partition_info() for reader in (mine, other)]
    assert [(info.users, info.events, info.open_tasks, info.dead_letters) for info in infos] == [
        (1, 0, 0, 0),
        (1, 2, 1, 1),
    ]
    assert [(info.epoch, dict(info.counts)) for info in infos] == [(2, {}), (1, {"duplicates": 1})]
    stored = ask(
        url,
        "SELECT owner >> 40, owner & 1023, seq >> 51, seq & ((1::bigint << 51) - 1) FROM raygam.vector_log ORDER BY seq",
    )
    assert stored == [(0, 1, 0, 1 << 20), (1, 1, 1, 1 << 20), (1, 1, 1, 2 << 20)]


def test_the_last_partition_has_room_and_numbers_end_with_a_word(postgres_server: GivenServer) -> None:
    url = postgres_server.database()
    with PostgresStore.create_or_open(url, replace(FACTS, partitions=4096)) as store:
        writer = store.writer(4095)
        last = (1 << 31) - 1
        writer.commit(turns(last - 2))
        assert store.reader(4095).entries(ANNA).refs == [str(last - 2)]
        writer.commit(turns(last - 1))
        with pytest.raises(Misconfigured, match=r"no numbers left.*more partitions"):
            writer.commit(turns(last, 2))


def test_two_partitions_commit_beside_each_other(store: PostgresStore) -> None:
    first, second = store.writer(0), store.writer(1)
    first.commit(turns(2, dead_letters=Pausing(lambda: second.commit(turns(1, user=BEN)))))
    assert len(store.reader(0).events(ANNA)) == 2
    assert len(store.reader(1).events(BEN)) == 1


def test_a_snapshot_is_of_one_moment(store: PostgresStore) -> None:
    writer, reader = store.writer(0), store.reader(0)
    with reader.snapshot():
        assert len(reader.events(ANNA)) == 1
        writer.commit(turns(2))
        assert len(reader.events(ANNA)) == 1
        with reader.snapshot():
            assert len(reader.entries(ANNA).refs) == 1
    assert len(reader.events(ANNA)) == 2


def test_what_is_committed_is_durable_whatever_the_server_is_set_to(copy: str) -> None:
    name = conninfo.conninfo_to_dict(copy)["dbname"]
    ask(copy, f"ALTER DATABASE {name} SET synchronous_commit = off")
    writing, reading = (Server.of(copy).connect("test", writes=writes) for writes in (True, False))
    try:
        assert writing.execute("SHOW synchronous_commit").fetchone() == ("on",)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            reading.execute("DELETE FROM event")
    finally:
        writing.close()
        reading.close()


# A writer that stops, and connections that break.


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


# The lock.

MEMBER = """
import sys
from raygam.adapters.postgres_connection import Server
from raygam.adapters.postgres_lock import PostgresLock
server = Server.of(sys.argv[1])
lock = PostgresLock.join(server, sys.argv[2]) if len(sys.argv) > 2 else PostgresLock.acquire(server)
print("held", flush=True)
sys.stdin.read()
"""


def member(url: str, *cluster: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MEMBER, url, *cluster]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def ways_to_write(url: str) -> list[Callable[[], PostgresStore]]:
    return [
        lambda: PostgresStore.create_or_open(url, FACTS),
        lambda: PostgresStore.join(url, FACTS, "another cluster"),
    ]


def test_a_second_engine_is_told_who_holds_the_state_and_a_kill_frees_it(url: str) -> None:
    process = member(url)
    try:
        for take in ways_to_write(url):
            with pytest.raises(StateLocked, match=rf"process {process.pid} on {socket.gethostname()}, since 20"):
                take()
        with PostgresStore.open_read_only(url) as reading:
            assert len(reading.reader(0).events(ANNA)) == 1
    finally:
        end(process)
    PostgresStore.create_or_open(url, FACTS).close()


def test_processes_of_one_cluster_share_the_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_lock, "_JOIN_SECONDS", 0.2)
    monkeypatch.setattr(postgres_lock, "_ENDING_SECONDS", 0.2)
    first = member(url, "127.0.0.1:1")
    try:
        with PostgresStore.join(url, FACTS, "127.0.0.1:1") as store:
            end(first)  # the one that wrote the name
            store.writer(0).commit(turns(2))
            for take in ways_to_write(url):
                with pytest.raises(StateLocked, match=r"the Ray cluster at 127\.0\.0\.1:1, first by process"):
                    take()
            PostgresStore.join(url, FACTS, "127.0.0.1:1").close()
    finally:
        end(first)
    PostgresStore.create_or_open(url, FACTS).close()


def test_a_lock_that_was_lost_and_taken_by_another_is_not_taken_back(url: str, store: PostgresStore) -> None:
    writer = store.writer(0)
    end_sessions(url, "raygam engine")
    process = member(url)
    try:
        end_sessions(url, "raygam partition 0")
        with pytest.raises(Retryable):
            writer.commit(turns(2))
        with pytest.raises(StateLocked, match=f"process {process.pid}"):
            writer.commit(turns(2))
        with pytest.raises(StateLocked):
            store.writer(1)
    finally:
        end(process)
    writer.commit(turns(2))


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(url: str) -> None:
    source = f"""
import os, sys
from raygam.adapters.postgres_connection import Server
from raygam.adapters.postgres_lock import PostgresLock
lock = PostgresLock.acquire(Server.of({url!r}))
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        PostgresStore.create_or_open(url, FACTS).close()
        os.kill(child, 0)  # it is still there
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


# Rules and plans.


def test_a_broken_rule_is_named_without_what_was_written(url: str, store: PostgresStore) -> None:
    writer, again = store.writer(0), turns(2)
    again.events[0] = again.events[0]._replace(message_id="m1")
    with pytest.raises(
        RaygamError, match=r"event\.owner, event\.message_id\).*nothing was written.*fault in raygam"
    ) as told:
        writer.commit(again)
    assert "m1" not in str(told.value)
    assert ask(
        url, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in tr%' AND datname = current_database()"
    ) == [(0,)]


def test_no_statement_looks_through_all_turns(url: str) -> None:
    """A plan that scans `event` or `vector_log` is slow only once there is much in it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = raygam")
        connection.execute("SET enable_seqscan = off")  # with few rows a scan would be right
        connection.execute("SET plan_cache_mode = force_generic_plan")
        looked_at = 0
        parts = (STATEMENTS, STATEMENTS.shadows, QUERIES)
        for name, statement in [each for part in parts for each in vars(part).items()]:
            if isinstance(statement, CopyStatement) or name == "shadows":
                continue
            text = statement
            for at in range(1, statement.count("%s") + 1):
                text = text.replace("%s", f"${at}", 1)
            connection.execute(f"PREPARE asked AS {text}".encode())
            nulls = ", ".join(["NULL"] * statement.count("%s"))
            plan = [
                row[0] for row in connection.execute(f"EXPLAIN EXECUTE asked{f'({nulls})' if nulls else ''}".encode())
            ]
            connection.execute("DEALLOCATE asked")
            looked_at += 1
            for step in plan:
                for table in ("event", "vector_log", "topic"):
                    assert f"Seq Scan on {table} " not in f"{step} ", (name, plan)
        assert looked_at > 30


def test_a_session_without_rows_does_nothing(url: str) -> None:
    session = PostgresSession(Server.of(url), "test")
    try:
        done = session.executemany(STATEMENTS.INSERT_EVENT, [])
        assert (done.rowcount, done.fetchone(), done.fetchall(), list(done)) == (0, None, [], [])
    finally:
        session.close()


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


def test_threads_share_the_connections(store: PostgresStore) -> None:
    readers = [store.reader(0), store.reader(1)]
    seen: list[int] = []

    def read() -> None:
        for reader in readers * 5:
            with reader.snapshot():
                seen.append(len(reader.events(ANNA)))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(seen)) == [0, 1]
    assert len(seen) == 60
