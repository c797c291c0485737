"""A restart, or a user who was not in memory, changes nothing of what is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygam import Memory


def turn(name: str, minute: int, user: str = "ana") -> dict[str, Any]:
    return {
        "message_id": name,
        "user_id": user,
        "session_id": "s",
        "speaker": "Ana",
        "role": "user",
        "text": f"and word {name}",
        "timestamp": 1_700_000_000_000 + minute * 60_000,
    }


@pytest.mark.parametrize("between", ["nothing", "restart", "eviction"])
def test_a_late_turn_stays_late_when_its_users_task_was_open(tmp_path: Path, between: str) -> None:
    """The task that follows is frozen in the very transaction that archives what the turn is late for."""
    settings: dict[str, Any] = {"embedder": "stub", "workers": 0, "partitions": 1, "max_resident_users": 1}
    memory = Memory(tmp_path / "state", **settings)
    memory.add([turn("first", 1)])
    memory._engine.flush()
    if between == "restart":
        memory.close()
        memory = Memory(tmp_path / "state", **settings)
    if between == "eviction":
        memory.add([turn("other", 1, user="bob")])
    memory.add([turn("second", 1), turn("late", 0)])
    memory.flush("ana")
    episodes = sorted((episode["events"], episode["trigger"]) for episode in memory.show("ana")["episodes"])
    memory.close()
    assert episodes == [(["first"], "flush"), (["late"], "late"), (["second"], "flush")]


def test_a_late_episode_does_not_move_the_archives_end_back(tmp_path: Path) -> None:
    """After a late turn was archived on its own, another one is still late."""

    def said(name: str, minute: int) -> dict[str, Any]:
        base = {"user_id": "u", "session_id": "s", "speaker": "Ana", "role": "user", "text": f"word{minute}"}
        return base | {"message_id": name, "timestamp": minute * 60_000}

    with Memory(tmp_path / "state", embedder="stub", partitions=1) as memory:
        for turns in ([said("m1", 0), said("m2", 5)], [said("m3", 1)], [said("m4", 3), said("m5", 6)]):
            memory.add(turns)
            memory.flush()
        episodes = {tuple(episode["events"]): episode["trigger"] for episode in memory.show("u")["episodes"]}
    assert episodes == {("m1", "m2"): "flush", ("m3",): "late", ("m4",): "late", ("m5",): "flush"}
