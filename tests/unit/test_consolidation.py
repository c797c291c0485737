"""Consolidation's three steps: segments, drafts, proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from raygam.memory.consolidation import LATE, Draft, KnownTopics, Segment, draft, propose, split, topic_text
from raygam.memory.identity import topic_id
from raygam.memory.model import Cut, Event, Origin, Topic, TopicRelation, User
from raygam.memory.proposal import Candidate, Proposal, ScoredRelation, SegmentNotes
from raygam.memory.relations import CANDIDATES, RuleRelationScorer
from raygam.memory.summary import ExtractiveSummarizer
from raygam.memory.times import parse_timestamp
from raygam.memory.writes import TaskRow

USER = User("default", "u1")
MINUTE_US = 60_000_000
EMPTY = KnownTopics((), np.zeros((0, 4), np.float32))


class FixedDetector:
    """Cuts where it is told, and remembers what it was given."""

    name = "fixed"

    def __init__(self, *indices: int) -> None:
        self.indices = indices
        self.asked: list[tuple[int, bool]] = []

    def boundaries(self, events: Sequence[Event], vectors: NDArray[np.float32], *, force: bool) -> list[Cut]:
        assert len(events) == len(vectors)
        self.asked.append((len(events), force))
        return [Cut(index, 0.5, "told") for index in self.indices if index < len(events)]


class FixedScorer:
    """Relates to every candidate in one way, and remembers the candidates."""

    name = "fixed"

    def __init__(self, kind: str = "semantic", confidence: float = 0.9) -> None:
        self.kind, self.confidence = kind, confidence
        self.seen: list[list[Candidate]] = []

    def relations(self, topic: Candidate, candidates: Sequence[Candidate]) -> list[ScoredRelation]:
        self.seen.append(list(candidates))
        return [ScoredRelation(each.topic_id, self.kind, self.confidence) for each in candidates]


def event(
    seq: int, text: str = "The kiln broke.", *, time_us: int | None = None, speaker: str = "Ana", **more: Any
) -> Event:
    return Event(
        USER, seq, f"m{seq}", "s1", speaker, "user", text, seq * MINUTE_US if time_us is None else time_us, **more
    )


def at(text: str) -> int:
    return parse_timestamp(text)[0]


def task(**more: Any) -> TaskRow:
    given_more: dict[str, Any] = {"closes_tail": True, "force": False, "archived_until_us": None} | more
    return TaskRow("t1", USER, "s1", "session_end", seqs=(), position_seq=1, ordinal=0, **given_more)


def rows(count: int) -> NDArray[np.float32]:
    return np.tile(np.array([[1, 0, 0, 0]], np.float32), (count, 1))


def seqs(segments: Sequence[Segment]) -> list[list[int]]:
    return [[each.seq for each in segment.events] for segment in segments]


def segment_of(*events: Event) -> Segment:
    return Segment(events, rows(len(events)), Cut(len(events), 1.0, "flush"), "flush", "flush")


def drafts_of(segments: Sequence[Segment]) -> list[Draft | None]:
    return [draft(each, ExtractiveSummarizer()) for each in segments]


def stored(identifier: str, *, time_us: int = 0, superseded_by: str | None = None) -> Topic:
    summary = "Ana: The kiln broke."
    return Topic(
        identifier, USER, "e", summary, ("kiln",), (), (), time_us, time_us, 0.7, "extractive/1", superseded_by
    )


def proposal(segments: Sequence[Segment], vectors: Any, known: KnownTopics = EMPTY, scorer: Any = None) -> Proposal:
    return propose(
        task(), "token", segments, drafts_of(segments), np.array(vectors, np.float32), known, scorer or FixedScorer()
    )


def test_the_tail_stays_open_unless_the_task_closes_it() -> None:
    events = [event(seq) for seq in range(6)]
    assert seqs(split(task(closes_tail=True), events, rows(6), FixedDetector(2))) == [[0, 1], [2, 3, 4, 5]]
    assert seqs(split(task(closes_tail=False), events, rows(6), FixedDetector(2))) == [[0, 1]]
    assert split(task(closes_tail=False), events, rows(6), FixedDetector()) == []


def test_each_cut_says_what_closed_its_segment() -> None:
    first, second = split(task(), [event(seq) for seq in range(5)], rows(5), FixedDetector(2))
    assert (first.cut, first.trigger, first.detector) == (Cut(2, 0.5, "told"), "session_end", "fixed")
    assert (second.cut, second.trigger, second.detector) == (Cut(5, 1.0, "session end"), "session_end", "session_end")


def test_late_turns_become_episodes_of_their_own() -> None:
    events = [event(seq) for seq in range(6)]
    detector = FixedDetector(1)
    segments = split(task(closes_tail=False, force=True, archived_until_us=3 * MINUTE_US), events, rows(6), detector)
    assert seqs(segments) == [[0], [1, 2], [3]]
    assert [each.trigger for each in segments] == [LATE, LATE, "session_end"]
    assert [each.cut.index for each in segments] == [1, 3, 4]
    assert detector.asked == [(3, False), (3, True)]  # only the rest is forced


def test_late_turns_alone() -> None:
    events = [event(seq) for seq in range(2)]
    segments = split(task(closes_tail=False, archived_until_us=99 * MINUTE_US), events, rows(2), FixedDetector())
    assert seqs(segments) == [[0, 1]]
    assert segments[0].trigger == LATE


def test_a_single_event_asks_no_detector() -> None:
    detector = FixedDetector(1)
    assert seqs(split(task(), [event(0)], rows(1), detector)) == [[0]]
    assert detector.asked == []


@pytest.mark.parametrize("indices", [(0,), (3, 2), (2, 2), (-1,)])
def test_a_detector_that_breaks_its_promise_is_named(indices: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="'fixed' returned boundaries"):
        split(task(), [event(seq) for seq in range(5)], rows(5), FixedDetector(*indices))


def test_question_and_answer_stay_together() -> None:
    """Case question-and-answer-stay-together, given a detector that cuts before the question."""
    events = [
        event(0, "We talked enough about the budget."),
        event(1, "Which airport do you fly from?", speaker="assistant"),
        event(2, "Lisbon."),
    ]
    segments = split(task(), events, np.eye(3, 4, dtype=np.float32), FixedDetector(1))
    made = proposal(segments, np.eye(2, 4)).episodes[1]
    assert made.seqs == (1, 2)
    assert made.topic is not None
    assert made.topic.summary == "assistant: Which airport do you fly from?\nAna: Lisbon."
    assert [(each.source_seq, each.target_seq) for each in made.relations if each.type == "reply"] == [(2, 1)]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=20).map(sorted),
    st.one_of(st.none(), st.integers(0, 60)),
    st.sets(st.integers(1, 19)),
    st.booleans(),
)
def test_every_event_is_closed_once_or_open(
    times: list[int], until: int | None, cuts: set[int], closes_tail: bool
) -> None:
    events = [event(seq, time_us=time) for seq, time in enumerate(times)]
    vectors = np.arange(len(events), dtype=np.float32).reshape(-1, 1)
    segments = split(
        task(closes_tail=closes_tail, archived_until_us=until), events, vectors, FixedDetector(*sorted(cuts))
    )
    closed = [each.seq for segment in segments for each in segment.events]
    assert closed == list(range(len(closed)))
    assert all(segment.events for segment in segments)
    assert [float(row) for segment in segments for row in segment.vectors[:, 0]] == closed
    if closes_tail:
        assert len(closed) == len(events)
    late = [each.seq for segment in segments if segment.trigger == LATE for each in segment.events]
    assert late == [each.seq for each in events if until is not None and each.time_us < until]


def test_recalled_text_is_not_new_memory() -> None:
    """Case recalled-text-is-not-new-memory: it stays in the episode and reaches no note."""
    said = event(0, "I am allergic to walnuts since yesterday.")
    recalled = event(1, "From memory: Ana met Zoltan in Porto yesterday.", speaker="assistant", origin=Origin.RECALLED)
    after = event(2, "We bought almonds in Lisbon.")
    segment = segment_of(said, recalled, after)
    made = draft(segment, ExtractiveSummarizer())
    assert made is not None
    assert "memory" not in topic_text(made.notes)
    assert "Zoltan" not in topic_text(made.notes)
    assert [len(found) for found in made.event_dates] == [1, 0, 0]
    assert made.event_entities == ((), (), ("Lisbon",))
    assert [text for _, text in made.texts] == [said.text, after.text]
    episode = proposal([segment], np.eye(1, 4)).episodes[0]
    assert episode.seqs == (0, 1, 2)


def test_an_episode_of_recalled_text_has_no_topic() -> None:
    segments = [segment_of(event(0, origin=Origin.RECALLED), event(1, origin=Origin.RECALLED)), segment_of(event(2))]
    assert draft(segments[0], ExtractiveSummarizer()) is None
    recalled, said = proposal(segments, np.eye(1, 4)).episodes
    assert recalled.topic is None
    assert recalled.event_dates == ((), ())
    assert len(recalled.relations) == 1
    assert said.topic is not None
    assert said.topic.vector.tolist() == [1, 0, 0, 0]


def test_topic_text_is_keywords_and_summary() -> None:
    notes = SegmentNotes("Ana: The kiln broke.", ("kiln", "clay"), (), (), (), (), 0.7)
    assert topic_text(notes) == "kiln, clay\nAna: The kiln broke."
    assert topic_text(SegmentNotes("Ana: Yes.", (), (), (), (), (), 0.7)) == "Ana: Yes."


def test_candidates_are_the_five_nearest_with_earlier_topics_of_the_proposal() -> None:
    angles = np.linspace(0.2, 1.4, 8)
    known = KnownTopics(
        [stored(f"k{number}") for number in range(8)],
        np.stack([np.cos(angles), np.sin(angles), 0 * angles, 0 * angles], axis=1).astype(np.float32),
    )
    scorer = FixedScorer()
    made = proposal([segment_of(event(1)), segment_of(event(2))], rows(2), known, scorer)
    assert [[each.topic_id for each in seen] for seen in scorer.seen] == [
        ["k0", "k1", "k2", "k3", "k4"],
        [topic_id("t1", 0), "k0", "k1", "k2", "k3"],
    ]
    assert all(len(seen) == CANDIDATES for seen in scorer.seen)
    similarities = [each.similarity for each in scorer.seen[1]]
    assert similarities[0] == pytest.approx(1)
    assert similarities == sorted(similarities, reverse=True)
    assert made.token == "token"
    second = made.episodes[1].topic
    assert second is not None
    assert second.relations[0] == TopicRelation(topic_id("t1", 1), topic_id("t1", 0), "semantic", 0.9)


def test_ordinals_count_episodes_without_a_topic() -> None:
    scorer = FixedScorer()
    segments = [segment_of(event(0, origin=Origin.RECALLED)), segment_of(event(1)), segment_of(event(2))]
    proposal(segments, rows(2), EMPTY, scorer)
    assert [each.topic_id for each in scorer.seen[1]] == [topic_id("t1", 1)]


def test_weak_relations_are_dropped() -> None:
    known = KnownTopics([stored("k")], rows(1))
    for confidence, kept in ((0.59, 0), (0.6, 1)):
        topic = proposal([segment_of(event(1))], rows(1), known, FixedScorer("semantic", confidence)).episodes[0].topic
        assert topic is not None
        assert len(topic.relations) == kept


def test_a_contradiction_supersedes_the_older_by_event_time() -> None:
    """Cases changed-preference-keeps-both and late-message-does-not-supersede."""
    known = KnownTopics([stored("k", time_us=10 * MINUTE_US)], rows(1))
    new = topic_id("t1", 0)
    later = proposal([segment_of(event(11))], rows(1), known, FixedScorer("contradict")).episodes[0].topic
    assert later is not None
    assert (later.supersedes, later.superseded_by) == (("k",), None)
    assert later.relations == (TopicRelation(new, "k", "contradict", 0.9),)
    earlier = proposal([segment_of(event(9))], rows(1), known, FixedScorer("contradict")).episodes[0].topic
    assert earlier is not None
    assert (earlier.supersedes, earlier.superseded_by) == ((), "k")
    assert earlier.relations == (TopicRelation("k", new, "contradict", 0.9),)


def test_what_is_past_is_not_superseded_again() -> None:
    known = KnownTopics([stored("k", superseded_by="other")], rows(1))
    topic = proposal([segment_of(event(1))], rows(1), known, FixedScorer("contradict")).episodes[0].topic
    assert topic is not None
    assert topic.supersedes == ()
    assert len(topic.relations) == 1


def test_changed_preference_end_to_end() -> None:
    """Case changed-preference-keeps-both, with the real rules, in two sessions of one task."""
    segments = [
        segment_of(event(0, "I love Sichuan food.", time_us=at("2024-02-01T12:00:00Z"))),
        segment_of(event(1, "Honestly I can't stand Sichuan food any more.", time_us=at("2025-02-01T12:00:00Z"))),
    ]
    first, second = proposal(segments, [[1, 0, 0, 0], [0.8, 0.6, 0, 0]], EMPTY, RuleRelationScorer()).episodes
    assert first.topic is not None
    assert second.topic is not None
    assert second.topic.supersedes == (topic_id("t1", 0),)
    assert (first.topic.summary, second.topic.summary) == (
        "Ana: I love Sichuan food.",
        "Ana: Honestly I can't stand Sichuan food any more.",
    )


def test_no_segments_is_an_empty_proposal() -> None:
    assert proposal([], np.zeros((0, 4))) == Proposal("t1", "token", ())


def test_the_model_and_confidence_are_the_summarizers() -> None:
    topic = proposal([segment_of(event(1))], rows(1)).episodes[0].topic
    assert topic is not None
    assert (topic.model, topic.confidence) == ("extractive/1", 0.7)
