"""The judge of `benchmarks.faults` finds what is put into a state by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fault_verdict import (
    KINDS,
    Deviation,
    LogRecord,
    Told,
    differences,
    found_by_search,
    mark,
    verify,
    verify_messages,
)
from raygam.memory.model import User

NORTH, SOUTH = User("north", "user1"), User("south", "user1")
MESSAGES = ("m1", "m2", "m3")
Document = dict[str, Any]


def text_of(user: User, message_id: str) -> str:
    return f"{mark(user, message_id)} the garden by the river."


def user_document(user: User) -> Document:
    """Two turns in an episode with its topic, one in the buffer."""
    events = {
        name: {
            "user": tuple(user),
            "text": text_of(user, name),
            "episode_id": "e1" if name != "m3" else None,
            "vector": b"\0\1",
        }
        for name in MESSAGES
    }
    return {
        "watermark": 5,
        "open_tasks": 0,
        "counts": {"events": 3, "topics": 1, "tasks_applied": 1},
        "stored_twice": [],
        "vectors_twice": [],
        "events": events,
        "episodes": {"e1": {"session_id": "s1", "events": ("m1", "m2"), "cut": ("flush", "", 1.0, 1, 2)}},
        "topics": {"t1": {"id": "t1", "summary": text_of(user, "m1"), "keywords": ("garden",), "entities": ()}},
        "topic_relations": [],
        "event_relations": [("m1", "m2", "temporal", 1.0)],
    }


LOG = [LogRecord(0, 4, b"{no json"), LogRecord(1, 7, None), LogRecord(0, 9, b"a good one")]


@pytest.fixture
def told() -> Told:
    texts = {(user, name): text_of(user, name) for user in (NORTH, SOUTH) for name in MESSAGES}
    return Told(
        texts=texts,
        acknowledged=dict.fromkeys(texts, (0, 1)),
        aborted={(NORTH, "m4")},
        bad={b"{no json": "not_json"},
        bad_at={(0, 4): "not_json", (1, 7): "blank"},
    )


@pytest.fixture
def document() -> Document:
    return {
        "users": {"north/user1": user_document(NORTH), "south/user1": user_document(SOUTH)},
        "dead_letters": [(4, "not_json", b"{no json", 0), (7, "blank", b"", 1)],
        "positions": {"0 kafka:x": 10, "1 kafka:x": 8},
        "messages": [("d1", b"key", (("id", "d1"), ("partition", "0"), ("offset", "4")), b"{no json")],
    }


def test_a_sound_state_has_no_deviation(document: Document, told: Told) -> None:
    assert verify(document, told, LOG) == []
    assert differences(document, copy.deepcopy(document)) == []


def lose(document: Document) -> None:
    user = document["users"]["south/user1"]
    del user["events"]["m3"]
    user["counts"]["events"] -= 1


def lose_a_place(document: Document) -> None:
    document["users"]["north/user1"]["episodes"]["e1"]["events"] = ("m1",)


def lose_a_vector(document: Document) -> None:
    document["users"]["north/user1"]["events"]["m2"]["vector"] = None


def store_twice(document: Document) -> None:
    document["users"]["north/user1"]["stored_twice"] = ["m1"]


def archive_twice(document: Document) -> None:
    episodes = document["users"]["north/user1"]["episodes"]
    episodes["e2"] = episodes["e1"] | {"events": ("m2",)}


def keep_what_is_archived(document: Document) -> None:
    document["users"]["north/user1"]["events"]["m2"]["episode_id"] = None


def mix_tenants(document: Document) -> None:
    document["users"]["north/user1"]["events"]["m2"]["text"] = text_of(SOUTH, "m2")


def mix_a_topic(document: Document) -> None:
    document["users"]["north/user1"]["topics"]["t1"]["summary"] = text_of(SOUTH, "m1")


def mix_a_keyword(document: Document) -> None:
    document["users"]["north/user1"]["topics"]["t1"]["keywords"] = ("garden", "user2")


def store_what_was_aborted(document: Document) -> None:
    user = document["users"]["north/user1"]
    user["events"]["m4"] = user["events"]["m3"] | {"text": text_of(NORTH, "m4")}
    user["counts"]["events"] += 1


def alter(document: Document) -> None:
    document["users"]["north/user1"]["events"]["m3"]["text"] += "?"


def put_aside_twice(document: Document) -> None:
    document["dead_letters"].append(document["dead_letters"][0])


def put_aside_a_good_one(document: Document) -> None:
    document["dead_letters"].append((9, "not_json", b"a good one", 0))


def put_aside_elsewhere(document: Document) -> None:
    document["dead_letters"][1] = (7, "blank", b"", 0)


def forget_a_bad_one(document: Document) -> None:
    document["dead_letters"].pop()


@pytest.mark.parametrize(
    ("harm", "kinds"),
    [
        (lose, ["lost"]),
        (lose_a_place, ["lost"]),
        (lose_a_vector, ["lost"]),
        (store_twice, ["doubled"]),
        (archive_twice, ["doubled"]),
        (keep_what_is_archived, ["doubled"]),
        (mix_tenants, ["altered", "mixed"]),
        (mix_a_topic, ["mixed"]),
        (mix_a_keyword, ["mixed"]),
        (store_what_was_aborted, ["invented"]),
        (alter, ["altered"]),
        (put_aside_twice, ["doubled"]),
        (put_aside_a_good_one, ["dead_letter"]),
        (put_aside_elsewhere, ["dead_letter", "dead_letter"]),
        (forget_a_bad_one, ["dead_letter"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_is_found(
    harm: Callable[[Document], None], kinds: list[str], document: Document, told: Told
) -> None:
    sound = copy.deepcopy(document)
    harm(document)
    assert sorted(one.kind for one in verify(document, told, LOG)) == kinds
    assert {one.kind for one in differences(document, sound)} == {"unequal"}
    assert set(kinds) <= set(KINDS)


def test_a_task_that_was_applied_twice_is_told_by_the_undisturbed_run(document: Document) -> None:
    sound = copy.deepcopy(document)
    document["users"]["north/user1"]["counts"]["tasks_applied"] = 2
    assert [one.kind for one in differences(document, sound)] == ["doubled", "unequal"]


def test_a_turn_without_an_acknowledgement_may_be_there_or_not(document: Document, told: Told) -> None:
    del told.acknowledged[(NORTH, "m1")]
    del told.acknowledged[(SOUTH, "m3")]
    lose(document)
    assert verify(document, told, LOG) == []


def test_a_bad_record_that_the_topic_has_not_is_told(document: Document, told: Told) -> None:
    del document["dead_letters"][1]
    assert [one.kind for one in verify(document, told, [LOG[0], LOG[2]])] == ["lost"]
    assert verify(document, replace_bad_at(told), [LOG[0], LOG[2]]) == []


def replace_bad_at(told: Told) -> Told:
    return replace(told, bad_at={(0, 4): "not_json"})


def test_a_difference_names_where_it_is(document: Document) -> None:
    sound = copy.deepcopy(document)
    alter(document)
    document["users"]["north/user1"]["event_relations"] = []
    document["positions"]["1 kafka:x"] = 9
    del sound["users"]["south/user1"]
    said = "\n".join(one.what for one in differences(document, sound))
    assert "north/user1: events: ('m3', ('text', " in said
    assert "north/user1: event_relations: None instead of ('m1', 'm2', 'temporal', 1.0)" in said
    assert "positions: ('1 kafka:x', 9) instead of ('1 kafka:x', 8)" in said
    assert "south/user1 is not in the undisturbed run" in said


SENT = [
    LogRecord(0, 0, b"", {"id": "d2", "partition": "1", "offset": "7"}),
    LogRecord(0, 1, b"{}", {"id": "e1"}),
    LogRecord(0, 2, b"{}", {"id": "e1"}),
]


def test_other_systems_are_told_of_everything_once_or_more_and_of_nothing_else(document: Document) -> None:
    assert verify_messages(document, SENT) == []
    assert [one.what for one in verify_messages(document, SENT[1:])] == [
        "no message tells of the dead letter or episode 1 7"
    ]
    document["messages"] = []
    assert [one.kind for one in verify_messages(document, SENT)] == ["untold"]
    document["dead_letters"].clear()
    assert [one.kind for one in verify_messages(document, SENT)] == ["invented"]
    document["users"] = {}
    assert [one.kind for one in verify_messages(document, SENT)] == ["invented", "invented"]


def test_a_search_must_find_its_turn_and_nobody_elses() -> None:
    mine = {"message_id": "m1", "text": text_of(NORTH, "m1")}
    other = {"message_id": "m2", "text": text_of(SOUTH, "m2")}
    assert found_by_search(NORTH, "m1", {"memories": [mine]}) == []
    assert [one.kind for one in found_by_search(NORTH, "m2", {"memories": [mine]})] == ["lost"]
    assert found_by_search(NORTH, "m1", {"memories": [mine, other]}) == [
        Deviation("mixed", "an answer of north/user1 speaks of south/user1")
    ]
