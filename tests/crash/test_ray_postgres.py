"""The engine on Ray over a database: shards killed, stopped and woken, the server killed; the state ends as without it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.postgres_server import GivenServer, PostgresServer
from raygam.adapters.postgres_store import PostgresStore
from raygam.pipeline import cli_run, runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.location import StateLocation
from raygam.pipeline.metrics import NoMetrics

pytestmark = pytest.mark.usefixtures("ray_session")

State = dict[str, Any]
StateOf = Callable[[Path | str], State]
FAULTS = 4
TURNS = 600
"""Of each fault's own file."""
WORDS = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()
ELSEWHERE = "f" * 56
"""A node that there is not: what is said to run there is not killed, as on a machine that is out of reach."""


def settings(chunk_bytes: int = 1024) -> Settings:
    """Many small chunks and tasks, so that a fault falls into the middle of everything."""
    return read_settings(
        **{
            "embedder": "stub",
            "partitions": 4,
            "chunk_bytes": chunk_bytes,
            "worker_group": 4,
            "max_buffer_tokens": 200,
        },
        **{"ray_heartbeat_seconds": 0.2},
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A file for each fault: turns of 40 users, with late turns, duplicates and bad lines."""
    chance = random.Random(11)
    folder = tmp_path_factory.mktemp("sources")
    paths = [folder / f"{at}.jsonl" for at in range(FAULTS)]
    for at, path in enumerate(paths):
        with path.open("w", encoding="utf-8") as file:
            for number in range(at * TURNS, (at + 1) * TURNS):
                turn = {
                    "message_id": f"m{number - (1 if number % 41 == 0 else 0)}",
                    "user_id": f"u{chance.randrange(40)}",
                    "session_id": f"s{number // 400}",
                    "speaker": "Ana" if number % 2 else "Bo",
                    "role": "user",
                    "text": " ".join(chance.choices(WORDS, k=12)) + (" yesterday?" if number % 7 == 0 else "."),
                    "timestamp": 1_700_000_000_000 + (number * 2 - (50 if number % 29 == 0 else 0)) * 60_000,
                }
                file.write(json.dumps(turn) + "\n" + ('{"message_id": \n' if number % 97 == 0 else ""))
    return paths


@pytest.fixture(scope="module")
def undisturbed(sources: list[Path], tmp_path_factory: pytest.TempPathFactory, state_of: StateOf) -> State:
    """What runs over a directory end with: a database must hold the same."""
    state = tmp_path_factory.mktemp("undisturbed") / "state"
    for source in sources:
        cli_run.run(source, state, settings(64 * 1024), quiet=True)
    return state_of(state)


class Engine:
    """An engine on Ray over a database, to be disturbed."""

    def __init__(self, cluster: Any, url: str) -> None:
        self.cluster = cluster
        self.url = url

    def progress(self) -> Any:
        return self.cluster.ask("progress")

    def of(self, place: str) -> list[int]:
        """The partitions of a shard."""
        return [at for at, shard in self.progress().owned.items() if shard == place]

    def stored(self) -> int:
        """How many numbers the partitions have given to turns and commands."""
        with psycopg.connect(self.url) as connection:
            found = connection.execute("SELECT sum(next_seq - 1) FROM raygam.partition").fetchone()
        return int(found[0]) if found else 0

    @contextmanager
    def streaming(self, source: Path) -> Iterator[None]:
        """Stream a file; the block disturbs it in its first part, and its end is waited for behind the block."""
        from raygam.actors.driving import run_file

        begun = self.stored()
        with ThreadPoolExecutor(1) as threads:
            streamed = threads.submit(run_file, self.cluster, source)
            wait_for(lambda: streamed.done() or self.stored() >= begun + TURNS // 8)
            assert not streamed.done(), f"the run was over before it could be disturbed: {streamed}"
            yield
            assert not streamed.result(timeout=120).interrupted


def wait_for(met: Callable[[], bool], seconds: float = 30.0) -> float:
    """Wait, and return for how long."""
    started = time.monotonic()
    while not met():
        assert time.monotonic() < started + seconds, "it did not come"
        time.sleep(0.02)
    return time.monotonic() - started


@pytest.fixture
def engine(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Two shards and a worker, placed as over a database that every node reaches, the shards as if out of reach."""
    from ray import cloudpickle

    from raygam.actors import cluster
    from raygam.actors.process import Process, this_process
    from raygam.actors.shard_actor import ShardActor

    class OutOfReach(ShardActor):
        def process(self) -> Process:
            return replace(this_process(), node=ELSEWHERE)

    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(sys.modules[__name__])  # actors cannot import a test
    monkeypatch.setitem(cluster.KINDS, "shard", replace(cluster.KINDS["shard"], actor=OutOfReach))
    everywhere: StateLocation = replace(runtime.locate(postgres_url), one_node=False)
    opened = cluster.Cluster.open(everywhere, settings(), shards=2, workers=1)
    try:
        yield Engine(opened, postgres_url)
    finally:
        opened.close()


def test_faults_of_shards_and_of_the_server(
    engine: Engine, sources: list[Path], undisturbed: State, postgres_server: GivenServer, state_of: StateOf
) -> None:
    """One engine goes through all of them, one after another, each in the middle of a file."""
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("the server is somebody else's, and is not killed")
    faults: list[Callable[[Engine], None]] = [
        a_shard_is_killed,
        a_stopped_shard_is_fenced,
        lambda engine: the_server_is_killed(engine, postgres_server),
        a_stopped_shard_is_replaced,
    ]
    for fault, source in zip(faults, sources, strict=True):
        with engine.streaming(source):
            fault(engine)
    assert engine.progress().replaced == {"shard-0": 1, "shard-1": 1}
    assert state_of(engine.url) == undisturbed


def a_shard_is_killed(engine: Engine) -> None:
    """Its sessions end with it: its partitions are open again at once."""
    pid = engine.progress().pids["shard-1"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: engine.progress().pids.get("shard-1", pid) != pid and engine.progress().ready)


def a_stopped_shard_is_fenced(engine: Engine) -> None:
    """Stopped inside a transaction, it does not hold up who opens its partition; it wakes, and writes no more of it."""
    mine, pid = engine.of("shard-0"), engine.progress().pids["shard-0"]
    before = engine.progress().epochs
    stop_inside_a_transaction(pid, engine.url, mine)
    spec = engine.cluster.spec
    with PostgresStore.join(spec.state.address, spec.facts, spec.lock_name) as elsewhere:
        started = time.monotonic()
        for partition in mine:
            elsewhere.writer(partition).close()  # the epoch is one higher
        assert time.monotonic() - started < 4.0
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: all(engine.progress().epochs.get(at, 0) >= before[at] + 2 for at in mine))
    assert engine.progress().pids["shard-0"] == pid, "it was to go on by itself"


def a_stopped_shard_is_replaced(engine: Engine) -> None:
    """It cannot be killed and holds a row: whoever replaces it ends its session."""
    mine, pid = engine.of("shard-0"), engine.progress().pids["shard-0"]
    before = engine.progress().epochs
    stop_inside_a_transaction(pid, engine.url, mine)
    try:
        seconds = wait_for(lambda: all(engine.progress().epochs.get(at, 0) > before[at] for at in mine))
        assert seconds < 15.0  # silence for five, then a new process, which takes some here
        assert engine.progress().pids["shard-0"] != pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def the_server_is_killed(engine: Engine, server: PostgresServer) -> None:
    """Every layer waits, says why, and goes on; a request meanwhile is answered with 503."""
    from raygam.serving.api import make_app
    from raygam.serving.service import make_service

    spec = engine.cluster.spec
    app = make_app(make_service(spec), spec.settings, NoMetrics(), "test")
    assert asyncio.run(search(app))[0] == 200
    before = engine.progress().replaced
    server.kill()
    try:
        wait_for(lambda: any(spec.state.name in why for why in engine.progress().obstacles))
        status, headers, body = asyncio.run(search(app))
        assert (status, headers.get("retry-after")) == (503, "1")
        assert "try again" in body["error"]["message"]
        time.sleep(2 * spec.settings.ray_heartbeat_seconds)  # long enough for a hasty supervisor
    finally:
        server.start()
    wait_for(lambda: not engine.progress().obstacles)
    assert engine.progress().replaced == before
    status, _, body = asyncio.run(search(make_app(make_service(spec), spec.settings, NoMetrics(), "test")))
    assert (status, body["known_user"]) == (200, True)


async def search(app: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Ask as an HTTP client does; return status, headers and document."""
    sent: list[dict[str, Any]] = []
    body = json.dumps({"query": "garden", "mode": "flat"}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path = "/v1/users/u1/search"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await app(scope | {"headers": [(b"content-type", b"application/json")], "http_version": "1.1"}, receive, send)
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, json.loads(b"".join(message.get("body", b"") for message in sent))


def stop_inside_a_transaction(pid: int, url: str, partitions: list[int]) -> None:
    """Stop a shard's process while it holds the row of one of its partitions."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(2000):
            os.kill(pid, signal.SIGSTOP)
            wait_until_stopped(pid)
            time.sleep(0.01)  # what the server is doing for it comes to its end
            if any(is_held(connection, at) for at in partitions):
                return
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.002)
    raise AssertionError("the process was never met inside a transaction")


def wait_until_stopped(pid: int) -> None:
    """Its threads stop one by one, and on a busy machine one may run on into a transaction meanwhile."""

    def state(thread: Path) -> str:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            return (thread / "stat").read_text().rpartition(")")[2].split()[0]
        return "T"

    wait_for(lambda: all(state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir()))


def is_held(connection: psycopg.Connection[Any], partition: int) -> bool:
    try:
        connection.execute("SELECT 1 FROM raygam.partition WHERE partition = %s FOR UPDATE NOWAIT", (partition,))
    except psycopg.errors.LockNotAvailable:
        return True
    return False
