"""Stores of every kind, each test with an empty one.

A store joins by a factory in `FACTORIES`.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from benchmarks.postgres_server import GivenServer
from raygam.adapters.postgres_store import PostgresStore
from raygam.adapters.schema import METADATA
from raygam.adapters.sqlite_store import SqliteStore
from raygam.memory.ports import Reader, Store, Writer
from tests.contract.store_rows import FACTS, Factory


def _sqlite(request: pytest.FixtureRequest) -> Factory:
    directory = request.getfixturevalue("tmp_path") / "state"
    code = (
        "from pathlib import Path; from raygam.adapters.sqlite_store import SqliteStore; "
        f"store = SqliteStore.create_or_open(Path({str(directory)!r}), FACTS)"
    )
    return Factory(
        lambda facts: SqliteStore.create_or_open(directory, facts), lambda: SqliteStore.open_read_only(directory), code
    )


def _postgres(request: pytest.FixtureRequest) -> Factory:
    url: str = request.getfixturevalue("made_database")
    _empty(url)
    code = (
        "from raygam.adapters.postgres_store import PostgresStore; "
        f"store = PostgresStore.create_or_open({url!r}, FACTS)"
    )
    return Factory(
        lambda facts: PostgresStore.create_or_open(url, facts), lambda: PostgresStore.open_read_only(url), code
    )


@pytest.fixture(scope="session")
def made_database(postgres_server: GivenServer) -> str:
    """A database with a state in it, emptied for each test: making one takes longer than most tests."""
    url = postgres_server.database()
    PostgresStore.create_or_open(url, FACTS).close()
    return url


def _empty(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for table in reversed(METADATA.sorted_tables):
            connection.execute(f"DELETE FROM raygam.{table.name}")


FACTORIES = {"sqlite": _sqlite, "postgres": _postgres}


@pytest.fixture(params=sorted(FACTORIES))
def factory(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param](request)


@pytest.fixture
def store(factory: Factory) -> Iterator[Store]:
    store = factory.create_or_open(FACTS)
    yield store
    store.close()


@pytest.fixture
def writer(store: Store) -> Writer:
    return store.writer(0)


@pytest.fixture
def reader(store: Store, writer: Writer) -> Reader:
    return store.reader(0)
