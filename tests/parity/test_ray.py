"""One log through Ray with any number of shards: the graphs and answers of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scripted_model import ScriptedModel
from raygam import Memory
from raygam.memory import identity
from raygam.memory.model import User
from raygam.pipeline import cli_run, runtime
from raygam.pipeline.config import read_settings

pytestmark = pytest.mark.usefixtures("ray_session")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
State = dict[str, Any]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("reference") / "state"
    cli_run.run(EXAMPLES / "dialogues.jsonl", state, read_settings(embedder="stub"), quiet=True)
    return state


@pytest.mark.parametrize(("shards", "workers"), [(1, 1), (2, 2)])
def test_any_number_of_shards_builds_the_same(
    reference: Path, tmp_path: Path, shards: int, workers: int, state_of: Callable[[Path | str], State]
) -> None:
    with builds_the_same(reference, tmp_path / "state", shards, workers, state_of):
        pass


def test_a_chat_model_that_cannot_be_had_is_told_and_holds_up_no_rules(
    reference: Path, tmp_path: Path, state_of: Callable[[Path | str], State]
) -> None:
    rules = {"boundaries": "embedding", "consolidation": "extractive", "relations": "rules"}
    chat = {"vllm_model": str(tmp_path / "no-model"), **rules}
    with builds_the_same(reference, tmp_path / "state", 3, 1, state_of, **chat) as cluster:
        deadline = time.monotonic() + 30
        while not (said := [one for one in cluster.ask("progress").obstacles if one.startswith("chat-0: ")]):
            assert time.monotonic() < deadline, "nobody says that the replica has no model"
            time.sleep(0.1)
        assert "no-model has no config.json here" in said[0]
        assert cluster.routes.chats() == {}


def test_so_does_a_database(
    reference: Path, secretive: Any, state_of: Callable[[Path | str], State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is in the environment of this process alone: the actors must be given it."""
    monkeypatch.setenv("PGPASSWORD", secretive.password)
    with builds_the_same(reference, secretive.url, 2, 2, state_of) as cluster:
        other = secretive.url.replace("secretive@127.0.0.1", "somebody@localhost").replace("postgresql:", "postgres:")
        shown = engine_command("show", "--state", other)  # another spelling, and no password
        owned = {int(at): shard for at, shard in shown["owned"].items()}
        assert owned == cluster.ask("progress").owned
        moved = engine_command("move", "0", str(1 - int(owned[0][-1])), "--state", other)
        assert moved["shard"] != owned[0]
        assert secretive.password not in f"{cluster.spec} {shown} {moved}"


def test_so_does_a_chat_model_whose_worker_is_killed(tmp_path: Path, state_of: Callable[[Path | str], State]) -> None:
    """Its answers are asked for once: the next worker finds those that the killed one was given."""
    from raygam.actors.cluster import Cluster
    from raygam.actors.driving import run_file

    with ScriptedModel() as model:
        settings = read_settings(embedder="stub", chat_url=model.url, chat_model=model.name, chat_concurrency=8)
        cli_run.run(EXAMPLES / "dialogues.jsonl", tmp_path / "reference", settings, quiet=True)
        undisturbed = model.calls()
        model.seconds = 0.05
        cluster = Cluster.open(tmp_path / "state", settings, shards=2, workers=1)
        try:
            pid = cluster.ask("progress").pids["worker-0"]

            def kill() -> None:
                model.wait_for_calls(sum(undisturbed.values()) + 20, 60)
                os.kill(pid, signal.SIGKILL)

            killing = threading.Thread(target=kill)
            killing.start()
            report = run_file(cluster, EXAMPLES / "dialogues.jsonl")
            killing.join()
            assert (report.accepted, report.interrupted) == (469, False)
            assert cluster.ask("progress").replaced == {"worker-0": 1}
        finally:
            cluster.close()
        calls = model.calls() - undisturbed
    assert sum(calls.values()) <= sum(undisturbed.values()) + settings.chat_concurrency
    assert state_of(tmp_path / "state") == state_of(tmp_path / "reference")


def engine_command(*arguments: str) -> dict[str, Any]:
    """What an operator types in another terminal."""
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "raygam", "engine", *arguments, "--address", address, "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "PGPASSWORD"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@contextmanager
def builds_the_same(
    reference: Path,
    state: Path | str,
    shards: int,
    workers: int,
    state_of: Callable[[Path | str], State],
    **settings: Any,
) -> Iterator[Any]:
    """Streams, compares answers, gives the engine to the block, ends it, and compares states."""
    from raygam.actors.cluster import Cluster
    from raygam.actors.driving import run_file

    place = runtime.locate(state)
    cluster = Cluster.open(place, read_settings(embedder="stub", **settings), shards=shards, workers=workers)
    try:
        report = run_file(cluster, EXAMPLES / "dialogues.jsonl")
        assert (report.accepted, report.duplicates, report.interrupted) == (469, 1, False)
        owned = cluster.ask("progress").owned
        assert sorted(owned) == list(range(8))
        assert len(set(owned.values())) == shards
        with Memory(reference) as memory:
            for question in questions():
                user = User(question.get("tenant", "default"), question["user_id"])
                found = memory.search(user, question["question"])
                theirs, context = answer(cluster, user, question["question"])
                mine = [(one.event.message_id, one.score) for one in found.memories]
                assert [name for name, _ in theirs] == [name for name, _ in mine], (question, theirs, mine)
                assert dict(theirs) == pytest.approx(dict(mine), abs=1e-6)  # by another process: but for last bits
                assert context == memory.context(found)
        yield cluster
    finally:
        cluster.close()
    assert state_of(place.address if place.directory is None else place.directory) == state_of(reference)


def answer(cluster: Any, user: User, query: str) -> tuple[list[tuple[str, float]], str]:
    """What the shard that owns the user answers."""
    facts = cluster.spec.facts
    partition = identity.partition_of(identity.record_key(user), facts.partitions, facts.partitioner)
    found = cluster.routes.call(
        partition, lambda shard: shard.search.remote(partition, user, query, None, {"k": 10, "mode": "gam"}), 10
    )
    return [(one["message_id"], one["score"]) for one in found["memories"]], found["context"]


def questions() -> list[dict[str, Any]]:
    with (EXAMPLES / "questions.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
