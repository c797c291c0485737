"""What waits for workers is bounded: as turns, not only as tasks, and without waiting for a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygam import Memory

LIMIT = 20


def said(number: int) -> dict[str, Any]:
    """Turns of one user, two to a session; sessions an hour apart."""
    base = {"user_id": "ana", "speaker": "Ana", "role": "user", "text": f"and word {number}"}
    minutes = number // 2 * 60 + number % 2
    return base | {"message_id": f"m{number}", "session_id": f"s{number // 2}", "timestamp": minutes * 60_000}


def in_memory(memory: Memory) -> int:
    """Turns that the writers hold uncounted."""
    shards = memory._engine.shards
    return sum(len(user.uncounted) for shard in shards for user in shard._residents._held.values())


def archived(memory: Memory) -> list[list[str]]:
    return sorted(episode["events"] for episode in memory.show("ana")["episodes"])


SESSIONS = sorted([f"m{at}", f"m{at + 1}"] for at in range(0, 200, 2))


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_waits_while_many_turns_are_behind_one_open_task(tmp_path: Path, workers: int) -> None:
    most = 0
    with Memory(tmp_path / "state", embedder="stub", partitions=1, workers=workers, max_waiting_turns=LIMIT) as memory:
        for start in range(0, 200, 5):
            memory.add([said(number) for number in range(start, start + 5)])
            most = max(most, in_memory(memory))
        memory.flush()
        assert archived(memory) == SESSIONS
    assert most <= LIMIT + 5


@pytest.mark.parametrize("workers", [0, 1])
def test_a_parked_task_keeps_its_turns_on_disk_and_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    settings: dict[str, Any] = {"workers": workers, "max_waiting_turns": LIMIT}

    def broken(self: object, events: object, vectors: object) -> None:
        raise RuntimeError("the model is broken")

    with (
        monkeypatch.context() as patch,
        Memory(tmp_path / "state", embedder="stub", partitions=1, max_attempts=2, **settings) as memory,
    ):
        patch.setattr("raygam.memory.summary.ExtractiveSummarizer.notes", broken)
        for start in range(0, 200, 5):
            memory.add([said(number) for number in range(start, start + 5)])
            if start == 100:
                memory._engine.drain()  # parked by now
                memory.flush()
        assert in_memory(memory) == 0
        assert memory._engine.shards[0].task_counts() == (0, 1)
        assert len(memory.search("ana", "word", k=1000, mode="flat").memories) == 200
    with Memory(tmp_path / "state", **settings) as memory:
        memory.flush()
        flushed = [["m104"], ["m105"]]  # the recorded flush came between them
        assert archived(memory) == sorted([*(names for names in SESSIONS if "m104" not in names), *flushed])
