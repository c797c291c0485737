"""Turns of a request: all or none, each that is wrong named by its place."""

from __future__ import annotations

from typing import Any

import pytest

from raygam.memory.errors import Rejected
from raygam.memory.model import User
from raygam.pipeline.records import EndOfSession, RecordLimits, Turn
from raygam.serving.incoming import checked_records

ANA = User("default", "ana")
LIMITS = RecordLimits(max_text_bytes=100, max_record_bytes=1000)


def turn(**fields: Any) -> dict[str, Any]:
    plain = {
        "message_id": "m1",
        "session_id": "s1",
        "speaker": "Ana",
        "role": "user",
        "text": "I moved to Porto.",
        "timestamp": "2025-03-04T09:00:00Z",
    }
    return plain | fields


def test_the_owner_is_the_paths_where_a_turn_names_none() -> None:
    end = {"type": "session_end", "session_id": "s1", "timestamp": "2025-03-04T10:00:00Z"}
    first, second, last = checked_records(ANA, [turn(), turn(user_id="ana", tenant="default"), end], LIMITS)
    assert isinstance(first, Turn)
    assert first == second
    assert isinstance(last, EndOfSession)
    assert first.user == last.user == ANA


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (turn(user_id="bob"), "user_id is 'bob', the path names 'ana'"),
        (turn(tenant="acme"), "tenant is 'acme'"),
        (turn(text="x" * 101), "text and captions have 101 bytes"),
        (turn(metadata={"a": "x" * 1000}), "the limit is 1000"),
        (turn(text=" "), "blank"),
        (turn(timestamp="yesterday"), "bad_time"),
        (turn(text="\ud800"), "invalid_text"),
        ({"message_id": "m1"}, "missing_field"),
        ("text", "give an object"),
        (None, "give an object"),
        ([turn()], "give an object"),
    ],
)
def test_a_wrong_turn_refuses_all_and_is_named(wrong: Any, said: str) -> None:
    with pytest.raises(Rejected, match="nothing was stored; turn 1: ") as refused:
        checked_records(ANA, [turn(), wrong, turn(message_id="m2")], LIMITS)
    assert said in str(refused.value)
    assert "turn 0" not in str(refused.value)
    assert "turn 2" not in str(refused.value)


def test_of_many_wrong_turns_the_first_twenty_are_named() -> None:
    with pytest.raises(Rejected, match=r"turn 19: .*; …$") as refused:
        checked_records(ANA, ["?"] * 30, LIMITS)
    assert "turn 20" not in str(refused.value)
