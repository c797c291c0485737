"""Decoding: every record is taken whole or refused with a reason and what to do."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygam.memory.model import User
from raygam.pipeline.batches import columns_of, to_record_batch
from raygam.pipeline.records import (
    MAX_METADATA_LEVELS,
    REASONS,
    BadRecord,
    EndOfSession,
    RecordLimits,
    Turn,
    check_user,
    decode,
    from_mapping,
    is_cut_off,
)

LIMITS = RecordLimits()
GOOD: dict[str, Any] = {
    "message_id": "m1",
    "user_id": "u1",
    "session_id": "s1",
    "speaker": "Ana",
    "role": "user",
    "text": "I moved to Porto.",
    "timestamp": "2025-03-04T09:00:00Z",
}


def turn(**changes: Any) -> Turn:
    record = decode(json.dumps(GOOD | changes).encode(), LIMITS)
    assert isinstance(record, Turn)
    return record


def test_a_plain_turn() -> None:
    record = turn()
    assert record.user == User("default", "u1")
    assert record.time_us == 1_741_078_800_000_000
    assert (record.kind, record.origin, record.captions, record.metadata) == ("utterance", "said", (), {})


def test_unknown_fields_are_kept_and_counted() -> None:
    record = turn(locale="pt", metadata={"a": 1})
    assert record.metadata == {"locale": "pt", "a": 1}
    assert record.unknown_fields == 1


def test_an_unknown_field_does_not_hide_metadata_of_the_same_name() -> None:
    assert turn(a="outside", metadata={"a": "inside"}).metadata == {"a": "inside"}


def test_attachments_keep_their_caption_and_the_rest_in_metadata() -> None:
    record = turn(attachments=[{"type": "image", "caption": "a kite", "url": "k.jpg"}])
    assert record.captions == ("a kite",)
    assert record.metadata["attachments"][0]["url"] == "k.jpg"


def test_an_image_without_words_is_a_turn() -> None:
    assert turn(text="", attachments=[{"type": "image", "caption": "a kite"}]).captions == ("a kite",)


def test_end_of_session() -> None:
    raw = b'{"type": "session_end", "tenant": "t", "user_id": "u", "session_id": "s", "timestamp": 5}'
    assert decode(raw, LIMITS) == EndOfSession(User("t", "u"), "s", 5000)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "blank"),
        (b"  \t", "blank"),
        (b"not json", "not_json"),
        (b'{"message_id": "m1"', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[1]", "wrong_type"),
        (b'{"message_id": "m1"}', "missing_field"),
        (b"\xff\xfe", "not_json"),
        (json.dumps(GOOD).encode().replace(b"Porto", b"\xff"), "invalid_text"),
        (json.dumps(GOOD).encode().replace(b"Porto", b"\\ud800"), "invalid_text"),
        (json.dumps(GOOD | {"text": "a\0b"}).encode(), "invalid_text"),
        (json.dumps(GOOD | {"text": "  "}).encode(), "blank"),
        (json.dumps(GOOD | {"text": ""}).encode(), "blank"),
        (json.dumps(GOOD | {"text": 7}).encode(), "wrong_type"),
        (json.dumps(GOOD | {"text": "x" * 2_000_000}).encode(), "too_large"),
        (json.dumps(GOOD | {"text": "x" * 32_769}).encode(), "too_large"),
        (json.dumps(GOOD | {"text": "é" * 16_385}, ensure_ascii=False).encode(), "too_large"),
        (json.dumps(GOOD | {"timestamp": "soon"}).encode(), "bad_time"),
        (json.dumps(GOOD | {"timestamp": 1e18}).encode(), "bad_time"),
        (json.dumps(GOOD | {"user_id": ""}).encode(), "bad_id"),
        (json.dumps(GOOD | {"user_id": "x" * 257}).encode(), "bad_id"),
        (json.dumps(GOOD | {"kind": "dream"}).encode(), "bad_value"),
        (json.dumps(GOOD | {"origin": "heard"}).encode(), "bad_value"),
        (json.dumps(GOOD | {"type": "party"}).encode(), "bad_value"),
        (json.dumps(GOOD | {"attachments": "x"}).encode(), "wrong_type"),
    ],
)
def test_bad_records_say_why(raw: bytes, reason: str) -> None:
    with pytest.raises(BadRecord) as caught:
        decode(raw, LIMITS)
    assert caught.value.reason == reason
    assert len(caught.value.detail) > 10


def test_the_limit_is_named() -> None:
    with pytest.raises(BadRecord, match=r"limit is 10 \(setting max_text_bytes\)"):
        decode(json.dumps(GOOD).encode(), RecordLimits(max_text_bytes=10))


@pytest.mark.parametrize("user_id", ["a", "550e8400-e29b-41d4-a716-446655440000", "team/one two", "名前", "o'hara;--"])
def test_any_id_is_an_id(user_id: str) -> None:
    assert turn(user_id=user_id).user.user_id == user_id


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_ever_raise_anything_else(raw: bytes) -> None:
    try:
        decode(raw, LIMITS)
    except BadRecord as bad:
        assert bad.reason in REASONS


@given(
    st.dictionaries(
        st.sampled_from([*GOOD, "tenant", "metadata", "attachments", "x"]),
        st.from_type(type(None)) | st.integers() | st.text(max_size=5) | st.lists(st.none(), max_size=2),
    )
)
def test_no_object_ever_raises_anything_else(changes: dict[str, Any]) -> None:
    try:
        decode(json.dumps(GOOD | changes).encode(), LIMITS)
    except BadRecord as bad:
        assert bad.reason in REASONS


def test_cut_off_lines_are_told_from_broken_ones() -> None:
    raw = json.dumps(GOOD).encode()
    assert all(is_cut_off(raw[:end]) for end in range(1, len(raw)))
    assert not is_cut_off(raw)
    assert not is_cut_off(b"not json")
    assert not is_cut_off(b"  ")


def test_every_beginning_of_a_record_is_cut_off() -> None:
    """Else a file that grows while it is read loses the turn that was being written."""
    whole = json.dumps(GOOD | {"text": 'é😀 \\ "', "metadata": {"n": [-1.5e-10, True, None]}}).encode()
    assert [at for at in range(1, len(whole)) if not is_cut_off(whole[:at])] == []
    assert not is_cut_off(whole)


def test_a_record_may_have_any_number_of_unknown_fields() -> None:
    record = turn(**{f"field{at}": at for at in range(40_000)})
    assert columns_of(to_record_batch([(0, record)]))["unknown_fields"] == [40_000]


def test_metadata_nested_too_deep_is_refused_before_it_breaks_a_writer() -> None:
    deep: list[Any] = []
    for _ in range(MAX_METADATA_LEVELS - 2):
        deep = [deep]
    turn(metadata={"deep": deep})
    with pytest.raises(BadRecord, match="nested deeper"):
        turn(metadata={"deep": [deep]})
    with pytest.raises(BadRecord, match="nested deeper"):
        turn(unknown=[deep])


@pytest.mark.parametrize("value", [object(), "\ud800", {(1, 2): 3}])
def test_metadata_of_a_mapping_must_be_json(value: Any) -> None:
    with pytest.raises(BadRecord, match="metadata"):
        from_mapping(GOOD | {"metadata": {"value": value}}, LIMITS)


def test_a_users_id_is_text() -> None:
    with pytest.raises(BadRecord, match="user_id is a JSON number"):
        check_user("default", 5)  # type: ignore[arg-type]


def test_a_bad_record_travels_between_processes() -> None:
    there = pickle.loads(pickle.dumps(BadRecord("blank", "the line is blank")))
    assert (type(there), there.reason, there.detail, str(there)) == (
        *(BadRecord, "blank", "the line is blank"),
        "blank: the line is blank",
    )
