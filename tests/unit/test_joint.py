"""A maintenance event in two calls of one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from raygam.memory.boundaries import TextTiling
from raygam.memory.consolidation import LATE, Draft, KnownTopics, Segment, comparisons
from raygam.memory.errors import BadAnswer
from raygam.memory.identity import topic_id
from raygam.memory.joint import MAX_NEIGHBOURS, JointJudge
from raygam.memory.model import Cut, Event, EventRelation, Origin, Topic, TopicRelation, User
from raygam.memory.proposal import Proposal
from raygam.memory.relations import CANDIDATES
from raygam.memory.writes import TaskRow

USER = User("default", "u1")
MINUTE_US = 60_000_000
EMPTY = KnownTopics((), np.zeros((0, 4), np.float32))
Vectors = NDArray[np.float32]


class FixedFallback:
    name = "fixed/1"

    def __init__(self, index: int) -> None:
        self.index = index

    def boundaries(self, events: Sequence[Event], vectors: Vectors, *, force: bool) -> list[Cut]:
        assert force
        assert len(events) == len(vectors)
        return [Cut(self.index, 0.4, "a gap")]


def event(seq: int, text: str = "The kiln broke.", **more: Any) -> Event:
    return Event(USER, seq, f"m{seq}", "s1", "Ana", "user", text, seq * MINUTE_US, **more)


def recalled(seq: int) -> Event:
    return event(seq, "From memory: Zoltan.", origin=Origin.RECALLED)


def rows(count: int, *axes: int) -> Vectors:
    return np.eye(4, dtype=np.float32)[list(axes) if axes else [0] * count]


def task(**more: Any) -> TaskRow:
    given: dict[str, Any] = {"closes_tail": True, "force": False, "archived_until_us": None} | more
    return TaskRow("t1", USER, "s1", "session_end", seqs=(), position_seq=1, ordinal=0, **given)


def notes(summary: str = "Ana's kiln broke.", **more: Any) -> dict[str, Any]:
    return {"summary": summary, "keywords": ["kiln"], "topic": "A kiln", "entities": ["kiln"], "confidence": 0.9} | more


def segment(first: int, summary: str | None = "Ana's kiln broke.", **more: Any) -> dict[str, Any]:
    found = {"first": first, "confidence": 0.8, "reason": f"topic {first}"} | more
    return found if summary is None else found | {"notes": notes(summary)}


def thought(
    ask: Any, events: Sequence[Event], fallback: Any = None, **more: Any
) -> tuple[list[Segment], list[Draft | None]]:
    judge = JointJudge(ask, fallback or TextTiling())
    return judge.segments(task(**more), events, rows(len(events)))


def seqs(segments: Sequence[Segment]) -> list[list[int]]:
    return [[each.seq for each in segment.events] for segment in segments]


def test_one_call_cuts_and_writes_the_notes(replayed: Any) -> None:
    ask = replayed({"segments": [segment(0, "First."), segment(2, "Second.")]})
    segments, drafts = thought(ask, [event(at) for at in range(5)])
    assert ask.asked == ["segments"]
    assert seqs(segments) == [[0, 1], [2, 3, 4]]
    assert [(each.cut, each.trigger, each.detector) for each in segments] == [
        (Cut(2, 0.8, "topic 2"), "session_end", "scripted@segments/1"),
        (Cut(5, 1.0, "session end"), "session_end", "session_end"),
    ]
    assert [each and each.notes.summary for each in drafts] == ["First.", "Second."]
    assert [each and each.model for each in drafts] == ["scripted@segments/1"] * 2
    assert [each and each.event_entities for each in drafts] == [(("kiln",),) * 2, (("kiln",),) * 3]
    assert drafts[1] is not None
    assert (drafts[1].first_us, drafts[1].last_us) == (2 * MINUTE_US, 4 * MINUTE_US)


def test_an_open_tail_is_left_out(replayed: Any) -> None:
    ask = replayed({"segments": [segment(0), segment(2, None)]})
    segments, drafts = thought(ask, [event(at) for at in range(5)], closes_tail=False)
    assert seqs(segments) == [[0, 1]]
    assert len(drafts) == 1
    ask = replayed({"segments": [segment(0)]})
    assert thought(ask, [event(at) for at in range(5)], closes_tail=False) == ([], [])
    assert ask.asked == ["segments"]


def test_a_single_event_still_needs_its_notes(replayed: Any) -> None:
    ask = replayed({"segments": [segment(0)]})
    segments, drafts = thought(ask, [event(0)])
    assert (seqs(segments), ask.asked) == ([[0]], ["segments"])
    assert drafts[0] is not None
    ask = replayed()
    assert thought(ask, [event(0)], closes_tail=False) == ([], [])


def test_late_turns_are_thought_about_apart(replayed: Any) -> None:
    ask = replayed(
        {"segments": [segment(0, "Late."), segment(2, "Later.")]}, {"segments": [segment(0, "New."), segment(1, None)]}
    )
    segments, drafts = thought(ask, [event(at) for at in range(6)], closes_tail=False, archived_until_us=3 * MINUTE_US)
    assert seqs(segments) == [[0, 1], [2], [3]]
    assert [each.trigger for each in segments] == [LATE, LATE, "session_end"]
    assert [each.cut.index for each in segments] == [2, 3, 4]
    assert [each and each.notes.summary for each in drafts] == ["Late.", "Later.", "New."]
    assert ask.asked == ["segments", "segments"]


def test_recalled_events_are_kept_and_not_shown(replayed: Any) -> None:
    events = [recalled(0), event(1), recalled(2), event(3, "The garden."), event(4, "Roses."), recalled(5)]
    ask = replayed({"segments": [segment(0), segment(1, "Ana's garden.")]})
    segments, drafts = thought(ask, events)
    assert "Zoltan" not in ask.shown
    assert seqs(segments) == [[0, 1, 2], [3, 4, 5]]
    assert [each and each.event_entities for each in drafts] == [((), ("kiln",), ()), ((), (), ())]
    assert drafts[0] is not None
    assert drafts[0].texts == (("Ana", "The kiln broke."),)


def test_where_nothing_is_said_there_is_no_call(replayed: Any) -> None:
    ask = replayed()
    segments, drafts = thought(ask, [recalled(0), recalled(1)])
    assert (seqs(segments), drafts) == ([[0, 1]], [None])
    made = JointJudge(ask, TextTiling()).proposal(task(), "token", segments, drafts, rows(0)[:0], EMPTY, {})
    assert made.episodes[0].topic is None
    assert thought(ask, [recalled(0), recalled(1)], closes_tail=False) == ([], [])


def test_a_forced_cut_that_the_model_did_not_see(replayed: Any) -> None:
    ask = replayed({"segments": [segment(0, None)]}, notes("The first half."))
    segments, drafts = thought(ask, [event(at) for at in range(8)], FixedFallback(4), closes_tail=False, force=True)
    assert seqs(segments) == [[0, 1, 2, 3]]
    assert segments[0].detector == "fixed/1"
    assert segments[0].cut == Cut(4, 0.4, "scripted saw no boundary; by fixed/1: a gap")
    assert [each and (each.notes.summary, each.model) for each in drafts] == [("The first half.", "scripted@summary/1")]
    assert ask.asked == ["segments", "summary"]


def test_a_forced_cut_divides_what_the_model_wrote_as_one(replayed: Any) -> None:
    ask = replayed(
        {
            "segments": [
                segment(0, "Both."),
            ]
        },
        notes("One."),
        notes("Two."),
    )
    segments, drafts = thought(ask, [event(at) for at in range(8)], FixedFallback(4), force=True)
    assert seqs(segments) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [each and each.notes.summary for each in drafts] == ["One.", "Two."]
    ask = replayed({"segments": [segment(0, "One."), segment(4, "Two.")]})
    segments, _ = thought(ask, [event(at) for at in range(8)], FixedFallback(6), force=True)
    assert [each.detector for each in segments] == ["scripted@segments/1", "session_end"]  # the model's closed enough


def test_only_the_rest_is_forced_beside_late_turns(replayed: Any) -> None:
    ask = replayed({"segments": [segment(0, "Late.")]}, {"segments": [segment(0, None)]}, notes("Forced."))
    segments, _ = thought(
        ask,
        [event(at) for at in range(10)],
        FixedFallback(4),
        closes_tail=False,
        force=True,
        archived_until_us=2 * MINUTE_US,
    )
    assert [each.cut.index for each in segments] == [2, 6]
    ask = replayed({"segments": [segment(0, "Late.")]}, {"segments": [segment(0), segment(1, None)]}, notes("Forced."))
    segments, _ = thought(
        ask,
        [event(at) for at in range(10)],
        FixedFallback(4),
        closes_tail=False,
        force=True,
        archived_until_us=2 * MINUTE_US,
    )
    assert [each.cut.index for each in segments] == [2, 3, 6]  # one event of eight is not enough


def test_events_that_the_model_forgot_get_notes_of_their_own(replayed: Any) -> None:
    ask = replayed({"segments": [segment(2, "Rest.")]}, notes("Beginning."))
    segments, drafts = thought(ask, [event(at) for at in range(5)])
    assert seqs(segments) == [[0, 1], [2, 3, 4]]
    assert [each and each.notes.summary for each in drafts] == ["Beginning.", "Rest."]
    ask = replayed({"segments": []}, notes("All."))
    assert [each and each.notes.summary for each in thought(ask, [event(0), event(1)])[1]] == ["All."]
    assert ask.asked == ["segments", "summary"]


def test_a_bad_answer_gives_nothing(replayed: Any) -> None:
    with pytest.raises(BadAnswer):
        thought(replayed({"segments": [segment(0) | {"notes": {"summary": "A trip."}}]}), [event(0)])


def stored(identifier: str, at: int = 0, superseded_by: str | None = None) -> Topic:
    return Topic(identifier, USER, f"e-{identifier}", "Ana's kiln.", ("kiln",), (), (), at, at, 0.9, "m", superseded_by)


def two(ask: Any, *, events: Sequence[Event] | None = None) -> tuple[JointJudge, list[Segment], list[Draft | None]]:
    """Two segments of two events, with their notes."""
    judge = JointJudge(ask, TextTiling())
    ask.answers.insert(0, {"segments": [segment(0, "One."), segment(2, "Two.")]})
    told = events or [event(10), event(11), event(12), event(13)]
    segments, drafts = judge.segments(task(), told, rows(len(told)))
    return judge, segments, drafts


def proposed(judge: JointJudge, segments: Any, drafts: Any, known: KnownTopics = EMPTY, **more: Any) -> Proposal:
    given: dict[str, Any] = {"topic_vectors": rows(sum(each is not None for each in drafts)), "neighbours": {}} | more
    return judge.proposal(task(), "token", segments, drafts, known=known, **given)


def relation(new: str, topic: str, kind: str = "support", confidence: float = 0.9) -> dict[str, Any]:
    return {"new": new, "topic": topic, "type": kind, "confidence": confidence}


def edge(source: int, target: int, kind: str = "causal", confidence: float = 0.9) -> dict[str, Any]:
    return {"source": source, "target": target, "type": kind, "confidence": confidence}


def test_one_call_relates_all_new_topics_and_links_the_events(replayed: Any) -> None:
    known = KnownTopics([stored("k")], rows(1))
    answer = {
        "relations": [relation("n1", "a"), relation("n2", "n1", "causal"), relation("n2", "a", "semantic", 0.59)],
        "events": [edge(0, 1), edge(1, 2), edge(3, 4, "entity"), edge(0, 3, "causal", 0.59)],
    }
    ask = replayed(answer)
    judge, segments, drafts = two(ask)
    assert judge.wanted_episodes(drafts, rows(2), known) == ["e-k"]
    made = proposed(judge, segments, drafts, known, neighbours={"e-k": ([event(3)], rows(1))})
    assert ask.asked == ["segments", "links"]
    first, second = made.episodes
    assert first.topic is not None
    assert second.topic is not None
    ids = topic_id("t1", 0), topic_id("t1", 1)
    assert first.topic.relations == (TopicRelation(ids[0], "k", "support", 0.9),)
    assert second.topic.relations == (TopicRelation(ids[1], ids[0], "causal", 0.9),)
    assert first.relations[-1] == EventRelation(10, 11, "causal", 0.9)  # inside its episode
    assert [each.type for each in second.relations] == ["temporal"]
    assert made.links == (EventRelation(11, 12, "causal", 0.9), EventRelation(3, 13, "entity", 0.9))
    assert (made.task_id, made.token) == ("t1", "token")
    assert (first.topic.model, first.topic.label, first.topic.confidence) == ("scripted@segments/1", "A kiln", 0.9)


def test_a_contradiction_supersedes_by_event_time(replayed: Any) -> None:
    known = KnownTopics([stored("old"), stored("newer", 99 * MINUTE_US), stored("past", 0, "x")], rows(3))
    relations = [relation("n1", name, "contradict") for name in "abc"]
    ask = replayed({"relations": relations, "events": []})
    judge, segments, drafts = two(ask)
    topic = proposed(judge, segments, drafts, known).episodes[0].topic
    assert topic is not None
    assert (topic.supersedes, topic.superseded_by) == (("old",), "newer")


def test_nothing_to_relate_asks_nothing(replayed: Any) -> None:
    ask = replayed({"segments": [segment(0)]})
    judge = JointJudge(ask, TextTiling())
    segments, drafts = judge.segments(task(), [event(0)], rows(1))
    made = proposed(judge, segments, drafts)
    assert made.episodes[0].topic is not None
    assert judge.wanted_episodes(drafts, rows(1), EMPTY) == []
    assert ask.asked == ["segments"]


def test_no_segment_is_an_empty_proposal(replayed: Any) -> None:
    made = proposed(JointJudge(replayed(), TextTiling()), [], [], topic_vectors=np.zeros((0, 4), np.float32))
    assert made == Proposal("t1", "token", ())


def test_a_single_event_with_a_candidate_asks_for_relations_alone(replayed: Any) -> None:
    ask = replayed({"segments": [segment(0)]}, {"relations": [relation("n1", "a")]})
    judge = JointJudge(ask, TextTiling())
    segments, drafts = judge.segments(task(), [event(0)], rows(1))
    topic = proposed(judge, segments, drafts, KnownTopics([stored("k")], rows(1))).episodes[0].topic
    assert topic is not None
    assert len(topic.relations) == 1


def test_the_neighbourhood_is_the_nearest_said_events(replayed: Any) -> None:
    near = [event(100 + at, f"Near {at}.") for at in range(MAX_NEIGHBOURS)]
    far = [event(200 + at, f"Far {at}.") for at in range(MAX_NEIGHBOURS)]
    known = KnownTopics([stored("k")], rows(1))
    ask = replayed({"relations": [], "events": []})
    judge, segments, drafts = two(ask)
    neighbours = {
        "e-far": (far, rows(0, *[1] * len(far))),
        "e-near": ([recalled(99), *near], rows(len(near) + 1)),
    }
    proposed(judge, segments, drafts, known, neighbours=neighbours)
    assert "EARLIER>>>" in ask.shown
    assert [f"Near {at}." in ask.shown for at in range(MAX_NEIGHBOURS)] == [True] * MAX_NEIGHBOURS
    assert "Far" not in ask.shown
    assert "Zoltan" not in ask.shown


def test_recalled_events_are_in_no_link(replayed: Any) -> None:
    told = [event(10), recalled(11), event(12), event(13)]
    ask = replayed({"relations": [], "events": [edge(0, 1)]})
    judge, segments, drafts = two(ask, events=told)
    made = proposed(judge, segments, drafts)
    assert "Zoltan" not in ask.shown
    assert seqs(segments) == [[10, 11, 12], [13]]
    assert made.episodes[0].relations[-1] == EventRelation(10, 12, "causal", 0.9)


def test_candidates_are_those_that_rules_are_given(replayed: Any) -> None:
    angles = np.linspace(0.2, 1.4, 8)
    vectors = np.stack([np.cos(angles), np.sin(angles), 0 * angles, 0 * angles], axis=1).astype(np.float32)
    known = KnownTopics([stored(f"k{at}") for at in range(8)], vectors)
    ask = replayed({"relations": [], "events": []})
    judge, segments, drafts = two(ask)
    assert judge.wanted_episodes(drafts, rows(2), known) == [f"e-k{at}" for at in range(CANDIDATES)]
    proposed(judge, segments, drafts, known)
    compared = comparisons("t1", drafts, rows(2), known)
    assert [each.topic_id for each in compared[1].candidates] == [topic_id("t1", 0), "k0", "k1", "k2", "k3"]
    topics = [line for line in ask.prompts[-1].messages[-1].text.splitlines() if " compare with " in line]
    assert [line.rpartition("compare with ")[2] for line in topics] == ["a, b, c, d, e", "n1, a, b, c, d"]


def test_the_same_task_gives_the_same_proposal_and_the_same_prompts(replayed: Any) -> None:
    known = KnownTopics([stored("k")], rows(1))
    made = []
    for _ in range(2):
        ask = replayed({"relations": [relation("n1", "a")], "events": [edge(0, 2)]})
        judge, segments, drafts = two(ask)
        found = proposed(judge, segments, drafts, known, neighbours={"e-k": ([event(3)], rows(1))})
        made.append((found.links, [each.seqs for each in found.episodes], [each.key("m") for each in ask.prompts]))
    assert made[0] == made[1]
