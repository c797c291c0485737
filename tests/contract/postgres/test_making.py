"""How a state in a database is made, and what stands in the way."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import MetaData

from benchmarks.postgres_server import GivenServer, PostgresServer
from raygam.adapters import schema
from raygam.adapters.postgres_connection import Server
from raygam.adapters.postgres_lock import LOCK_METADATA
from raygam.adapters.postgres_store import PostgresStore
from raygam.memory.errors import Misconfigured, RaygamError, Retryable
from raygam.memory.writes import StateFacts
from tests.contract.postgres.database import ANNA, FACTS, ask, turns, with_parts


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
