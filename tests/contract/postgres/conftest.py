"""A state in a database, as it was made for each test."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from benchmarks.postgres_server import GivenServer
from raygam.adapters import postgres_connection, schema
from raygam.adapters.postgres_store import PostgresStore
from tests.contract.postgres.database import FACTS, ask, end_sessions, turns


@pytest.fixture(scope="session")
def made(postgres_server: GivenServer) -> str:
    """A closed state with one turn of Anna in partition 0."""
    url = postgres_server.database()
    with PostgresStore.create_or_open(url, FACTS) as store:
        store.writer(0).commit(turns(1))
    return url


@pytest.fixture(scope="session")
def kept(postgres_server: GivenServer, made: str) -> str:
    """A copy of it, in which its rows are kept aside as well."""
    url = postgres_server.database(like=made)
    ask(url, "CREATE SCHEMA kept")
    for table in schema.METADATA.sorted_tables:
        ask(url, f"CREATE TABLE kept.{table.name} AS TABLE raygam.{table.name}")
    return url


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
