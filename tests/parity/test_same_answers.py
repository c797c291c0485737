"""One log through every way in and every pace: equal graphs, equal answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.postgres_server import GivenServer
from raygam import Memory
from raygam.memory.text import count_tokens
from raygam.pipeline import cli_run, runtime
from raygam.pipeline.config import read_settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
State = dict[str, Any]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("reference") / "state"
    run(state)
    return state


def run(state: Path | str, **settings: Any) -> None:
    wanted = read_settings(**({"embedder": "stub"} | settings))
    cli_run.run(EXAMPLES / "dialogues.jsonl", runtime.locate(state), wanted, quiet=True)


def graphs(document: State) -> State:
    """Without source positions: another way in has other ones."""
    return {name: value for name, value in document.items() if name != "positions"}


@pytest.mark.parametrize(
    "settings",
    [{"workers": 0}, {"workers": 3}, {"chunk_bytes": 1024}, {"worker_group": 1}, {"max_resident_users": 1}],
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.items()),
)
def test_pace_and_batches_change_nothing(
    reference: Path, tmp_path: Path, settings: dict[str, Any], state_of: Callable[[Path], State]
) -> None:
    run(tmp_path / "state", **settings)
    assert state_of(tmp_path / "state") == state_of(reference)


def test_the_partition_count_moves_users_and_nothing_else(
    reference: Path, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    run(tmp_path / "state", partitions=3)
    assert graphs(state_of(tmp_path / "state")) == graphs(state_of(reference))


def test_a_database_holds_what_a_directory_holds(
    reference: Path, postgres_server: GivenServer, state_of: Callable[[Path | str], State]
) -> None:
    """By a run, and by the library in pieces."""
    by_run, by_library = postgres_server.database(), postgres_server.database()
    run(by_run)
    assert state_of(by_run) == state_of(reference)
    with (EXAMPLES / "dialogues.jsonl").open(encoding="utf-8") as file:
        turns = [json.loads(line) for line in file]
    with Memory(by_library, embedder="stub") as memory, Memory(reference) as again:
        for start in range(0, len(turns), 50):
            memory.add(turns[start : start + 50])
        memory.flush()
        for question in questions():
            assert document(memory, question) == document(again, question)
    assert graphs(state_of(by_library)) == graphs(state_of(reference))


@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_the_library_ends_where_a_run_does(
    reference: Path, tmp_path: Path, size: int, state_of: Callable[[Path], State]
) -> None:
    with (EXAMPLES / "dialogues.jsonl").open(encoding="utf-8") as file:
        turns = [json.loads(line) for line in file]
    with Memory(tmp_path / "state", embedder="stub") as memory:
        for start in range(0, len(turns), size):
            memory.add(turns[start : start + size])
        memory.flush()
        answers = [document(memory, question) for question in questions()]
    assert graphs(state_of(tmp_path / "state")) == graphs(state_of(reference))
    with Memory(reference) as again:
        assert [document(again, question) for question in questions()] == answers


def questions() -> list[dict[str, Any]]:
    with (EXAMPLES / "questions.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def document(memory: Memory, question: dict[str, Any]) -> list[tuple[str, float]]:
    found = memory.search(question["user_id"], question["question"], tenant=question.get("tenant", "default"))
    return [(one.event.message_id, one.score) for one in found.memories]


@pytest.mark.usefixtures("minilm_weights")
def test_token_counter_is_near_the_models(reference: Path) -> None:
    """The counter that decides overflow, against MiniLM's tokenizer, on English dialogue."""
    from raygam.adapters.minilm_embedder import MiniLMEmbedder

    model = MiniLMEmbedder()
    with (EXAMPLES / "dialogues.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    english = [text for text in texts if text.isascii()]
    ours = sum(count_tokens(text) for text in english)
    theirs = sum(model.count_tokens(text) for text in english)
    assert len(english) > 100
    assert 0.85 <= ours / theirs <= 1.15


@pytest.mark.usefixtures("minilm_weights")
def test_the_example_questions_find_their_evidence(tmp_path: Path) -> None:
    """With the real embedder; the floor is what plain rank fusion of BM25 and MiniLM reaches."""
    run(tmp_path / "state", embedder="minilm")
    shares = []
    with Memory(tmp_path / "state") as memory:
        for question in questions():
            found = {name for name, _ in document(memory, question)}
            evidence = set(question["evidence"])
            shares.append(len(evidence & found) / len(evidence))
    assert sum(shares) / len(shares) >= 0.9
