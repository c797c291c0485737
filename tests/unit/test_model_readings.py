"""What a chat model's values say: what is kept, what is left out and counted, what is no answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygam.memory.errors import BadAnswer
from raygam.memory.model import Event, EventRelation, Relationship, ResolvedDate, User
from raygam.memory.model_readings import (
    UNSTATED_CONFIDENCE,
    mentions,
    read_boundaries,
    read_links,
    read_notes,
    read_relations,
    read_segments,
)
from raygam.memory.proposal import ScoredRelation
from raygam.memory.summary import CONFIDENCE
from raygam.memory.times import parse_timestamp

USER = User("default", "u1")


def event(seq: int, text: str = "Yes.", time: str = "2023-05-10T12:00:00Z", **more: Any) -> Event:
    return Event(USER, seq, f"m{seq}", "s1", "Ana", "user", text, parse_timestamp(time)[0] + seq, **more)


def notes(**more: Any) -> dict[str, Any]:
    return {"summary": "Ana went to Porto.", "keywords": ["Porto"]} | more


PORTO = [
    event(10, "I was in Porto yesterday."),
    event(11, "On the feast of Saint John."),
    event(12, "小林在东京Tower。"),
]


def test_a_number_in_quotes_or_with_a_point_is_a_number() -> None:
    assert read_boundaries({"boundaries": ["7", " 3 ", 4.0, 4.5, True, None, [5], "x", "７"]}, 12).value == [3, 4, 7]


@given(st.lists(st.one_of(st.integers(-5, 20), st.floats(), st.text(max_size=3), st.none(), st.booleans())))
def test_boundaries_lie_inside_and_nothing_is_uncounted(items: list[Any]) -> None:
    reading = read_boundaries({"boundaries": items}, 12)
    assert reading.value == sorted(set(reading.value))
    assert all(0 < each < 12 for each in reading.value)
    assert len(reading.value) + reading.dropped == len(items)


def test_the_whole_of_a_note() -> None:
    value = notes(
        topic="A trip",
        entities=["Porto", "东京"],
        relationships=[{"subject": "Ana", "relation": "visited", "object": "Porto"}],
        facts=["Ana has been to Porto."],
        dates=[{"event": 1, "text": "feast of Saint John", "start": "2023-06-24", "end": "2023-06-24"}],
        confidence="0.9",
    )
    reading = read_notes(value, PORTO)
    found = reading.value
    assert reading.dropped == 0
    assert (found.summary, found.keywords, found.label) == ("Ana went to Porto.", ("Porto",), "A trip")
    assert found.relationships == (Relationship("Ana", "visited", "Porto"),)
    assert (found.facts, found.confidence) == (("Ana has been to Porto.",), 0.9)
    yesterday = ResolvedDate("yesterday", "2023-05-09", "2023-05-09")
    feast = ResolvedDate("feast of Saint John", "2023-06-24", "2023-06-24")
    assert found.event_dates == ((yesterday,), (feast,), ())
    assert found.dates == (yesterday, feast)
    assert found.event_entities == (("Porto",), (), ("东京",))


def test_summary_and_keywords_are_enough() -> None:
    found = read_notes(notes(), PORTO).value
    assert (found.label, found.entities, found.facts, found.relationships) == ("", (), (), ())
    assert found.confidence == CONFIDENCE
    assert [len(dates) for dates in found.event_dates] == [1, 0, 0]  # the rules' own


@pytest.mark.parametrize(
    "value",
    [
        {"keywords": ["Porto"]},
        {"summary": "Ana went to Porto."},
        notes(summary=" \n"),
        notes(summary=None),
        notes(summary=["Ana"]),
        notes(keywords="Porto"),
        notes(keywords=None),
        notes(entities="Porto"),
        notes(dates={"text": "yesterday"}),
        ["Ana"],
        "Ana",
    ],
)
def test_a_note_without_its_form_is_no_answer(value: Any) -> None:
    with pytest.raises(BadAnswer):
        read_notes(value, PORTO)


def test_items_beyond_the_most_and_doubles_are_left_out() -> None:
    reading = read_notes(notes(keywords=[*"abcdefghij", "a", 7, "", " "]), PORTO)
    assert reading.value.keywords == tuple("abcdefgh")
    assert reading.dropped == 6


def test_what_no_store_takes_is_no_part_of_a_text() -> None:
    found = read_notes(notes(summary="Ana\x00 went\ud800.\x1b", facts=["a\x07"]), PORTO).value
    assert (found.summary, found.facts) == ("Ana  went?.", ("a",))


@pytest.mark.parametrize(
    "item",
    [
        {"event": 3, "text": "yes", "start": "2023-05-01", "end": "2023-05-01"},
        {"event": -1, "text": "yes", "start": "2023-05-01", "end": "2023-05-01"},
        {"text": "yes", "start": "2023-05-01", "end": "2023-05-01"},
        {"event": 0, "text": "", "start": "2023-05-01", "end": "2023-05-01"},
        {"event": 0, "start": "2023-05-01", "end": "2023-05-01"},
        {"event": 0, "text": "in Porto", "start": "2023-02-30", "end": "2023-03-01"},
        {"event": 0, "text": "in Porto", "start": "May 2023", "end": "2023-03-01"},
        {"event": 0, "text": "in Porto", "start": "20230501", "end": "20230501"},
        {"event": 0, "text": "in Porto", "start": "2023-05-02", "end": "2023-05-01"},
        {"event": 0, "text": "in Lisbon", "start": "2023-05-02", "end": "2023-05-02"},
        "2023-05-01",
    ],
)
def test_a_date_that_is_none_is_left_out(item: Any) -> None:
    reading = read_notes(notes(dates=[item]), PORTO)
    assert reading.dropped == 1
    assert [each.text for each in reading.value.dates] == ["yesterday"]


def test_of_one_expression_the_rules_days_are_kept() -> None:
    """Models miscount days; what the grammar reads it counts right."""
    wrong = [
        {"event": 0, "text": text, "start": "2023-05-01", "end": "2023-05-01"}
        for text in ("Yesterday", "in Porto yesterday", "in porto")
    ]
    reading = read_notes(notes(dates=wrong), PORTO)
    assert reading.value.event_dates[0] == (
        ResolvedDate("yesterday", "2023-05-09", "2023-05-09"),
        ResolvedDate("in porto", "2023-05-01", "2023-05-01"),
    )


def test_a_missing_end_is_the_start() -> None:
    value = notes(dates=[{"event": "1", "text": "Saint  John", "start": "2023-06-24"}])
    assert read_notes(value, PORTO).value.event_dates[1] == (ResolvedDate("Saint  John", "2023-06-24", "2023-06-24"),)


def test_a_caption_may_name_a_date() -> None:
    value = notes(dates=[{"event": 0, "text": "Easter", "start": "2023-04-09"}])
    assert len(read_notes(value, [event(1, "Look!", captions=("a card that says Easter",))]).value.dates) == 1


@pytest.mark.parametrize(
    ("text", "name", "there"),
    [
        ("I met Ann.", "Ann", True),
        ("I met anna and ANN", "Ann", True),
        ("I met Anna.", "Ann", False),
        ("Joann came.", "Ann", False),
        ("New York City", "New York", True),
        ("我在东京塔", "东京", True),
        ("东京Tower很高", "Tower", True),
        ("Towers", "Tower", False),
        ("C++ is hard", "C++", True),
        ("die Straße", "STRASSE", True),
        ("", "Ann", False),
    ],
)
def test_an_entity_belongs_to_the_events_that_say_it(text: str, name: str, there: bool) -> None:
    assert mentions(text, name) is there


def segment(first: Any, **more: Any) -> dict[str, Any]:
    return {"first": first, "confidence": 0.9, "reason": "why", "notes": notes()} | more


def test_segments_come_in_order_each_with_its_own_events() -> None:
    dates = [{"event": at, "text": "Saint John", "start": "2023-06-24"} for at in (0, 1, 2)]
    value = {"segments": [segment("1", notes=notes(dates=dates)), segment(0), segment(1), segment(3), segment(None)]}
    reading = read_segments(value, PORTO, closes=True)
    assert [each.first for each in reading.value] == [0, 1]
    assert [len(each.notes.event_dates) for each in reading.value if each.notes] == [1, 2]
    assert reading.value[1].notes is not None
    assert [each.text for each in reading.value[1].notes.dates] == ["Saint John"]
    assert reading.dropped == 3 + 2  # segments; dates of events outside theirs


def test_an_open_segment_needs_no_notes() -> None:
    value: dict[str, Any] = {
        "segments": [segment(0), segment(1, notes={"summary": 1}), segment(2, notes={"summary": 1})]
    }
    with pytest.raises(BadAnswer):
        read_segments(value, PORTO, closes=False)
    value["segments"][1] = segment(1, notes=None)
    assert [each.notes is None for each in read_segments(value, PORTO, closes=False).value] == [False, True, True]


def test_a_confidence_outside_is_not_believed() -> None:
    reading = read_segments({"segments": [segment(0, confidence=7), segment(1, confidence="high")]}, PORTO, closes=True)
    assert [each.confidence for each in reading.value] == [UNSTATED_CONFIDENCE] * 2
    assert reading.dropped == 2


@pytest.mark.parametrize("confidence", [-0.1, 1.1, "much", None, True, [0.9], float("inf"), float("nan")])
def test_a_relation_without_a_confidence_is_left_out(confidence: Any) -> None:
    value = {"relations": [{"topic": "a", "type": "support", "confidence": confidence}]}
    reading = read_relations(value, {"a": "A"})
    assert (reading.value, reading.dropped) == ([], 1)


def test_unrelated_is_an_answer_and_not_stored() -> None:
    items = [
        {"topic": "a", "type": "Unrelated", "confidence": 1},
        {"topic": "a", "type": "support", "confidence": 1},
        {"topic": " B ", "type": "causal", "confidence": 0},
    ]
    reading = read_relations({"relations": items}, {"a": "A", "b": "B"})
    assert (reading.value, reading.dropped) == ([ScoredRelation("B", "causal", 0.0)], 1)


def edge(source: Any, target: Any, kind: str = "causal", confidence: Any = 0.9) -> dict[str, Any]:
    return {"source": source, "target": target, "type": kind, "confidence": confidence}


def test_links_name_what_was_shown() -> None:
    """Two new events and an earlier one; two new topics, the first a candidate of the second."""
    events = [event(20), event(21), event(3)]
    pairs = {("n1", "a"): "A", ("n2", "n1"): "N1", ("n2", "a"): "A"}
    relations = [
        {"new": "n1", "topic": "a", "type": "support", "confidence": 0.7},
        {"new": "N2", "topic": "n1", "type": "causal", "confidence": 0.8},
        {"new": "n1", "topic": "n2", "type": "causal", "confidence": 0.8},
        {"new": "n3", "topic": "a", "type": "causal", "confidence": 0.8},
        {"topic": "a", "type": "causal", "confidence": 0.8},
        "n1",
    ]
    edges = [
        edge(1, "0"),
        edge(0, 2, "Entity"),
        edge(0, 1),
        edge(0, 0),
        edge(0, 3),
        edge(1, 2, "temporal"),
        edge(1, 2, "entity", 2),
        [0, 1],
    ]
    reading = read_links({"relations": relations, "events": edges}, ["n1", "n2"], pairs, events, 2)
    assert reading.value.relations == ((ScoredRelation("A", "support", 0.7),), (ScoredRelation("N1", "causal", 0.8),))
    assert reading.value.edges == (EventRelation(21, 20, "causal", 0.9), EventRelation(3, 20, "entity", 0.9))
    assert reading.dropped == 4 + 6


def test_edges_between_earlier_events_are_left_out() -> None:
    events = [event(20), event(3), event(4)]
    reading = read_links({"events": [edge(1, 2), edge(1, 0)]}, [], {}, events, 1)
    assert (reading.value.edges, reading.dropped) == ((EventRelation(3, 20, "causal", 0.9),), 1)


def test_what_was_asked_for_must_be_there() -> None:
    events = [event(20), event(3)]
    missing: list[dict[str, Any]] = [{"events": []}, {"relations": []}, {"relations": {}, "events": []}]
    for value in missing:
        with pytest.raises(BadAnswer):
            read_links(value, ["n1"], {("n1", "a"): "A"}, events, 1)
    assert read_links({"relations": []}, ["n1"], {("n1", "a"): "A"}, events[:1], 1).value.edges == ()
    assert read_links({"events": []}, ["n1"], {}, events, 1).value.relations == ((),)
