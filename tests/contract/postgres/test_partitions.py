"""One database holds all partitions: their rows, their snapshots, and statements that find them."""

from __future__ import annotations

import threading
from dataclasses import replace

import psycopg
import pytest
from psycopg import conninfo

from benchmarks.postgres_server import GivenServer
from raygam.adapters.postgres_connection import Server
from raygam.adapters.postgres_dialect import CopyStatement
from raygam.adapters.postgres_session import PostgresSession
from raygam.adapters.postgres_statements import QUERIES, STATEMENTS
from raygam.adapters.postgres_store import PostgresStore
from raygam.memory.errors import Misconfigured, RaygamError
from raygam.memory.model import Layer
from raygam.memory.progression import Progress
from raygam.memory.writes import CommandRow, DeadLetter, SourcePosition, TaskRow, UserRow
from tests.contract.postgres.database import ANNA, BEN, FACTS, Pausing, ask, turns


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
