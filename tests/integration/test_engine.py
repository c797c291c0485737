"""The engine with workers: what those who wait are told when nothing goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raygam import Memory, RaygamError, Rejected, Retryable, User
from raygam.adapters.sqlite_store import SqliteStore
from raygam.adapters.stub_embedder import StubEmbedder
from raygam.memory.errors import Misconfigured
from raygam.memory.model import Event
from raygam.memory.ports import Vectors
from raygam.memory.proposal import SegmentNotes
from raygam.memory.writes import StateFacts, WriteSet
from raygam.pipeline import backoff, engine, runtime
from raygam.pipeline.config import read_settings
from raygam.pipeline.intake import Intake
from raygam.pipeline.records import from_mapping
from raygam.pipeline.shard import ShardSettings
from raygam.pipeline.worker import Models, Worker

TURN = {
    "message_id": "m1",
    "user_id": "ana",
    "session_id": "s1",
    "speaker": "Ana",
    "role": "user",
    "text": "I moved to Porto.",
    "timestamp": "2025-03-04T09:00:00Z",
}
EMBEDDER = StubEmbedder(8)
FACTS = StateFacts(1, "murmur2", EMBEDDER.name, EMBEDDER.dimension, 1)


class Summarizer:
    """Waits or fails before it does what the real one does."""

    name = "held"

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def notes(self, events: Sequence[Event], vectors: Vectors) -> SegmentNotes:
        self.entered.set()
        self.may_go_on.wait(30)
        return runtime.make_models(EMBEDDER).summarizer.notes(events, vectors)


@pytest.fixture
def summarizer() -> Summarizer:
    return Summarizer()


def opened(path: Path, summarizer: Summarizer, clock_us: Any = lambda: 0, workers: int = 1) -> engine.Engine:
    plain = runtime.make_models(EMBEDDER)
    settings = read_settings(embedder="stub")
    return engine.Engine(
        SqliteStore.create_or_open(path, FACTS),
        Models(EMBEDDER, plain.detector, summarizer, plain.scorer),
        Intake(FACTS, EMBEDDER, settings.record_limits),
        ShardSettings(lease_seconds=1, max_attempts=2),
        clock_us,
        workers=workers,
    )


def feed(running: engine.Engine) -> None:
    running.add([from_mapping(TURN, read_settings().record_limits)])
    running.flush()


def test_closing_releases_whoever_waits_for_the_workers(tmp_path: Path, summarizer: Summarizer) -> None:
    running = opened(tmp_path / "state", summarizer)
    summarizer.may_go_on.clear()
    feed(running)
    assert summarizer.entered.wait(30)
    second = TURN | {"message_id": "m2", "session_id": "s2"}
    running.add([from_mapping(second, read_settings().record_limits)])
    running.flush()  # counted once the first task is applied: it leaves a task behind
    told: list[BaseException] = []

    def wait() -> None:
        try:
            running.drain()
        except RaygamError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    closing = threading.Thread(target=running.close)
    closing.start()
    while not running._stopping:
        closing.join(0.001)
    summarizer.may_go_on.set()
    closing.join(30)
    waiting.join(30)
    assert not waiting.is_alive()
    assert "was closed" in str(told[0])
    with pytest.raises(RaygamError, match="was closed"):
        running.flush()
    with pytest.raises(RaygamError, match="was closed"):
        feed(running)


def test_whoever_waits_is_told_of_a_disk_that_stays_full(
    tmp_path: Path, summarizer: Summarizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "PAUSES", (0.001, 0.5))
    running = opened(tmp_path / "state", summarizer)
    full = True
    writer = running.shards[0]._writer

    def commit(write: WriteSet, commit: Any = writer.commit) -> None:
        if full and write.finished:
            raise Retryable("the disk is full")
        commit(write)

    monkeypatch.setattr(writer, "commit", commit)
    try:
        feed(running)
        with pytest.raises(Retryable, match="full"):
            running.drain()
        full = False
        running.drain()  # the workers went on trying, and what they met before is over
        assert running.open_tasks() == 0
    finally:
        running.close()


def test_a_task_that_outlasts_every_lease_is_parked(tmp_path: Path, summarizer: Summarizer) -> None:
    """Else its models would be asked without end, and whoever drains would wait for ever."""
    moments: Iterator[int] = iter(range(0, 10**12, 2_000_000))  # each look at the clock is later than a lease
    running = opened(tmp_path / "state", summarizer, lambda: next(moments), workers=0)
    try:
        feed(running)
        running.drain()
        assert running.shards[0].task_counts() == (0, 1)
    finally:
        running.close()
    with SqliteStore.open_read_only(tmp_path / "state") as store:
        (task,) = store.reader(0).tasks()
        assert (task.status, task.attempts) == ("parked", 2)
        assert "lease_seconds" in str(task.error)


def test_what_a_worker_could_not_read_stays_in_its_hands(tmp_path: Path, summarizer: Summarizer) -> None:
    """A store that was away between claim and reading costs no lease: there may be nothing else to claim."""
    running = opened(tmp_path / "state", summarizer, workers=0)
    try:
        feed(running)
        shard, worker = running.shards[0], Worker(running.models)
        with SqliteStore.open_read_only(tmp_path / "state") as store:
            reader: Any = store.reader(0)
            with pytest.MonkeyPatch.context() as away:
                away.setattr(reader, "turns", gone)
                for _ in range(3):
                    with pytest.raises(Retryable, match="gone"):
                        worker.work(shard, reader)
            assert (worker.in_hand(), shard.leased_count(), shard.has_claimable()) == ([0], 1, False)
            assert worker.work(shard, reader).applied == 1
        assert (worker.in_hand(), running.open_tasks()) == ([], 0)
    finally:
        running.close()


def gone(*asked: object) -> None:
    raise Retryable("the server is gone")


def test_what_is_no_list_of_turns_is_rejected(tmp_path: Path) -> None:
    with Memory(tmp_path / "state", embedder="stub", workers=0) as memory:
        with pytest.raises(Rejected, match="a list of turns"):
            memory.add(TURN)  # type: ignore[arg-type]
        with pytest.raises(Rejected, match="turn 1: wrong_type"):
            memory.add([TURN, "turn"])  # type: ignore[list-item]
        with pytest.raises(Rejected, match="lone surrogate"):
            memory.search(User("default", "\udcff"), "Porto")
        assert memory.search("ana", "Porto").memories == ()


@pytest.mark.parametrize("name", ["lease_seconds", "session_gap_minutes", "pause_minutes"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300])
def test_a_time_beyond_all_reason_is_misconfigured(name: str, value: float) -> None:
    with pytest.raises(Misconfigured, match=name):
        read_settings(**{name: value})


def test_a_parked_task_is_tried_again_by_the_next_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broken model left is done once it is mended, and nothing of the user is lost meanwhile."""
    state = tmp_path / "state"

    def broken(self: object, events: object, vectors: object) -> None:
        raise RuntimeError("the model is broken")

    with monkeypatch.context() as patch, Memory(state, embedder="stub", partitions=1, max_attempts=2) as memory:
        patch.setattr("raygam.memory.summary.ExtractiveSummarizer.notes", broken)
        memory.add([TURN])
        memory.flush()
        (task,) = memory.show("ana")["tasks"]
        assert (task["status"], "the model is broken" in task["error"]) == ("parked", True)
        memory.add([TURN | {"message_id": "m2"}])
        assert len(memory.search("ana", "Porto").memories) == 2
    with Memory(state) as memory:
        memory.flush()
        shown = memory.show("ana")
        assert (shown["tasks"], shown["buffers"]) == ([], [])
        assert sorted(name for episode in shown["episodes"] for name in episode["events"]) == ["m1", "m2"]


def test_an_embedder_that_breaks_fails_the_task_and_not_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    with Memory(state, embedder="stub", partitions=1, max_attempts=2) as memory:
        memory.add([TURN])
        with monkeypatch.context() as patch:

            def broken(self: object, texts: object) -> None:
                raise RuntimeError("no vectors")

            patch.setattr("raygam.adapters.stub_embedder.StubEmbedder.embed", broken)
            memory.flush()
        (task,) = memory.show("ana")["tasks"]
        assert (task["status"], "no vectors" in task["error"]) == ("parked", True)
        memory.add([TURN | {"user_id": "bo"}])
        memory.flush()
        assert memory.show("bo")["topics"]
