"""A clock that is wrong for one turn costs that turn its place, and the user nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygam import Memory

YEAR = 365 * 24 * 60


def said(name: str, minute: int, session: str) -> dict[str, Any]:
    base = {"user_id": "u", "session_id": session, "speaker": "Ana", "role": "user", "text": f"and word {name}"}
    return base | {"message_id": name, "timestamp": 1_700_000_000_000 + minute * 60_000}


def episodes(memory: Memory) -> dict[tuple[str, ...], str]:
    return {tuple(episode["events"]): episode["trigger"] for episode in memory.show("u")["episodes"]}


FUTURE = said("future", 50 * YEAR, "s1")
TURNS = [
    *(said("m1", 0, "s1"), said("m2", 1, "s1"), said("m3", 2, "s1")),
    *(said("m4", 60, "s2"), said("m5", 61, "s2"), said("m6", 120, "s3"), said("m7", 121, "s3")),
]
SESSIONS = {("m1", "m2", "m3"): "session_end", ("m4", "m5"): "session_end"}


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("between", ["nothing", "restart"])
def test_sessions_end_as_if_a_turn_of_the_future_had_not_come(tmp_path: Path, place: int, between: str) -> None:
    settings: dict[str, Any] = {"embedder": "stub", "partitions": 1, "workers": 0}
    memory = Memory(tmp_path / "state", **settings)
    for turn in [*TURNS[:place], FUTURE, *TURNS[place:]]:
        memory.add([turn])
        if between == "restart":
            memory.close()
            memory = Memory(tmp_path / "state", **settings)
    memory._engine.drain()
    (found,) = (one.event for one in memory.search("u", "and word future", k=1).memories)
    assert (found.message_id, found.time_us) == ("future", FUTURE["timestamp"] * 1000)
    assert episodes(memory) == SESSIONS | {("future",): "ahead"}
    memory.add([said("m8", 122, "s3"), said("m9", 119, "s3")])
    memory.flush()
    assert episodes(memory) == SESSIONS | {("future",): "ahead", ("m9", "m6", "m7", "m8"): "flush"}
    memory.close()


def test_a_flush_does_not_bear_a_turn_of_the_future_out(tmp_path: Path) -> None:
    with Memory(tmp_path / "state", embedder="stub", partitions=1) as memory:
        memory.add([*TURNS[:2], FUTURE])
        memory.flush()
        assert episodes(memory) == {("m1", "m2"): "flush", ("future",): "ahead"}
        memory.add([*TURNS[2:], said("m8", 180, "s4")])
        memory._engine.drain()
        assert episodes(memory) == {
            ("m1", "m2"): "flush",
            ("future",): "ahead",
            ("m3",): "session_end",
            ("m4", "m5"): "session_end",
            ("m6", "m7"): "session_end",
        }


@pytest.mark.parametrize("session", ["s1", "s2"])
def test_who_comes_back_after_a_year_ends_the_old_session_with_the_second_turn(tmp_path: Path, session: str) -> None:
    with Memory(tmp_path / "state", embedder="stub", partitions=1) as memory:
        memory.add([*TURNS[:3], said("back", YEAR, session)])
        memory._engine.drain()
        assert episodes(memory) == {}
        memory.add([said("again", YEAR + 1, session)])
        memory.flush()
        assert episodes(memory) == {("m1", "m2", "m3"): "session_end", ("back", "again"): "flush"}


def test_a_first_turn_alone_is_an_episode_like_any_other(tmp_path: Path) -> None:
    with Memory(tmp_path / "state", embedder="stub", partitions=1) as memory:
        memory.add([TURNS[0]])
        memory.flush()
        assert episodes(memory) == {("m1",): "flush"}


def test_one_turn_a_week_is_borne_out_by_the_next(tmp_path: Path) -> None:
    with Memory(tmp_path / "state", embedder="stub", partitions=1) as memory:
        memory.add([said(f"m{week}", week * 7 * 24 * 60, "diary") for week in range(5)])
        memory.flush()
        ended = {(f"m{week}",): "session_end" for week in range(3)}
        assert episodes(memory) == ended | {("m3",): "flush", ("m4",): "ahead"}
