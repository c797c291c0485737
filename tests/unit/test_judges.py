"""A chat model behind the ports of rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from raygam.memory.boundaries import TextTiling
from raygam.memory.consolidation import draft, split
from raygam.memory.errors import BadAnswer
from raygam.memory.judges import ChatDetector, ChatScorer, ChatSummarizer
from raygam.memory.model import Cut, Event, Origin, User
from raygam.memory.model_readings import UNSTATED_CONFIDENCE
from raygam.memory.ports import BoundaryDetector, RelationScorer, Summarizer
from raygam.memory.proposal import Candidate, ScoredRelation
from raygam.memory.writes import TaskRow

USER = User("default", "u1")
NOTES = {"summary": "Ana's kiln broke.", "keywords": ["kiln"]}


def event(seq: int, text: str = "The kiln broke.", **more: Any) -> Event:
    return Event(USER, seq, f"m{seq}", "s1", "Ana", "user", text, seq * 60_000_000, **more)


def rows(count: int) -> Any:
    return np.tile(np.array([[1, 0, 0, 0]], np.float32), (count, 1))


class FixedDetector:
    name = "fixed/1"

    def __init__(self, *cuts: Cut) -> None:
        self.cuts = list(cuts)

    def boundaries(self, events: Sequence[Event], vectors: Any, *, force: bool) -> list[Cut]:
        assert force, "the fallback is for forced cuts alone"
        return self.cuts


def recalled(seq: int) -> Event:
    return event(seq, "From memory: a kiln.", origin=Origin.RECALLED)


def test_names_say_model_prompt_and_version(replayed: Any) -> None:
    ask = replayed()
    judges: tuple[BoundaryDetector, Summarizer, RelationScorer] = (
        ChatDetector(ask, TextTiling()),
        ChatSummarizer(ask),
        ChatScorer(ask, USER),
    )
    assert [judge.name for judge in judges] == ["scripted@boundaries/1", "scripted@summary/1", "scripted@relations/1"]


def test_the_models_boundaries_are_cuts(replayed: Any) -> None:
    ask = replayed({"boundaries": [9, "4", 4, 99]})
    cuts = ChatDetector(ask, FixedDetector()).boundaries([event(at) for at in range(12)], rows(12), force=False)
    assert [(cut.index, cut.confidence) for cut in cuts] == [(4, UNSTATED_CONFIDENCE), (9, UNSTATED_CONFIDENCE)]
    assert ask.dropped == 2


def test_recalled_events_are_not_shown_and_stay_with_what_is_before_them(replayed: Any) -> None:
    events = [recalled(0), event(1), event(2), recalled(3), event(4, "The garden."), recalled(5)]
    ask = replayed({"boundaries": [2]})
    cuts = ChatDetector(ask, FixedDetector()).boundaries(events, rows(6), force=False)
    assert [cut.index for cut in cuts] == [4]
    assert "From memory" not in ask.shown


def test_nothing_to_cut_asks_nothing(replayed: Any) -> None:
    detector = ChatDetector(replayed(), FixedDetector())
    assert detector.boundaries([recalled(0), event(1), recalled(2)], rows(3), force=False) == []


def test_a_forced_cut_that_the_model_did_not_see_says_so(replayed: Any) -> None:
    fallback = FixedDetector(Cut(2, 0.9, "early"), Cut(5, 0.3, "a shift"), Cut(7, 0.4, "a deeper shift"))
    events = [event(at) for at in range(12)]
    cuts = ChatDetector(replayed({"boundaries": []}), fallback).boundaries(events, rows(12), force=True)
    assert cuts == [Cut(7, 0.4, "scripted saw no boundary; by fixed/1: a deeper shift")]


def test_a_forced_cut_beside_the_models_closes_a_quarter(replayed: Any) -> None:
    """One event less, and the next turn would force again, with a call each time."""
    events = [event(at) for at in range(12)]
    fallback = FixedDetector(Cut(1, 0.9, "early"), Cut(6, 0.4, "a shift"))
    cuts = ChatDetector(replayed({"boundaries": [2]}), fallback).boundaries(events, rows(12), force=True)
    assert [cut.index for cut in cuts] == [2, 6]
    assert cuts[1].reason == "scripted saw none after event 2; by fixed/1: a shift"
    enough = ChatDetector(replayed({"boundaries": [3]}), fallback).boundaries(events, rows(12), force=True)
    assert [cut.index for cut in enough] == [3]


@pytest.mark.parametrize("count", [2, 3, 40])
def test_text_tiling_always_has_a_gap_to_force(replayed: Any, count: int) -> None:
    for seen in ([], [1]):
        events = [event(at) for at in range(count)]
        cuts = ChatDetector(replayed({"boundaries": seen}), TextTiling()).boundaries(events, rows(count), force=True)
        indices = [cut.index for cut in cuts]
        assert indices == sorted(set(indices))
        assert indices[-1] > (count - 1) // 4


def test_recalled_events_alone_are_cut_where_they_must_be(replayed: Any) -> None:
    events = [recalled(at) for at in range(8)]
    (cut,) = ChatDetector(replayed(), TextTiling()).boundaries(events, rows(8), force=True)
    assert cut.reason.startswith("scripted saw no boundary; by text-tiling/1: ")


def test_a_fallback_without_a_gap_is_named(replayed: Any) -> None:
    with pytest.raises(ValueError, match="'fixed/1' was to force a cut among 12 events"):
        ChatDetector(replayed({"boundaries": []}), FixedDetector()).boundaries(
            [event(at) for at in range(12)], rows(12), force=True
        )


def test_split_and_draft_serve_a_chat_model_as_they_serve_rules(replayed: Any) -> None:
    ask = replayed({"boundaries": [2]}, NOTES, NOTES | {"summary": "Ana's garden."})
    task = TaskRow("t1", USER, "s1", "flush", True, False, (), 1, 0, None)
    segments = split(task, [event(0), event(1), recalled(2), event(3)], rows(4), ChatDetector(ask, FixedDetector()))
    drafts = [draft(segment, ChatSummarizer(ask)) for segment in segments]
    assert [segment.detector for segment in segments] == ["scripted@boundaries/1", "flush"]
    assert [each.notes.summary for each in drafts if each] == ["Ana's kiln broke.", "Ana's garden."]
    assert [each.model for each in drafts if each] == ["scripted@summary/1"] * 2
    assert ask.asked == ["boundaries", "summary", "summary"]


def test_a_bad_answer_is_not_believed(replayed: Any) -> None:
    with pytest.raises(BadAnswer):
        ChatSummarizer(replayed({"summary": "A trip."})).notes([event(0)], rows(1))


def test_the_scorer_relates_a_topic_to_its_candidates(replayed: Any) -> None:
    topics = [Candidate(f"t{at}", "Ana's kiln.", ("kiln",), (), 0, 0, 0.9) for at in range(3)]
    answer = {
        "relations": [
            {"topic": "b", "type": "Contradict", "confidence": "0.9"},
            {"topic": "a", "type": "unrelated", "confidence": 0.9},
        ]
    }
    ask = replayed(answer)
    assert ChatScorer(ask, USER).relations(topics[0], topics[1:]) == [ScoredRelation("t2", "contradict", 0.9)]
    assert ChatScorer(ask, USER).relations(topics[0], []) == []
    assert ask.asked == ["relations"]
    assert ask.prompts[0].user == USER
