"""One log through Ray with any number of shards: the graphs and answers of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize(("shards", "workers"), [(1, 1), (2, 2), (3, 1)])
def test_any_number_of_shards_builds_the_same(
    reference: Path, tmp_path: Path, shards: int, workers: int, state_of: Callable[[Path | str], State]
) -> None:
    builds_the_same(reference, tmp_path / "state", shards, workers, state_of)


def test_so_does_a_database(reference: Path, postgres_url: str, state_of: Callable[[Path | str], State]) -> None:
    builds_the_same(reference, postgres_url, 2, 2, state_of)


def builds_the_same(
    reference: Path, state: Path | str, shards: int, workers: int, state_of: Callable[[Path | str], State]
) -> None:
    from raygam.actors.cluster import Cluster
    from raygam.actors.driving import run_file

    cluster = Cluster.open(runtime.locate(state), read_settings(embedder="stub"), shards=shards, workers=workers)
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
                mine = [(one.event.message_id, one.score) for one in found.memories]
                assert answer(cluster, user, question["question"]) == (mine, memory.context(found))
    finally:
        cluster.close()
    assert state_of(state) == state_of(reference)


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
