"""Consolidation: from a task's events to a proposal (GAM, §3.2).

Pure and in three steps, so that embedding stays outside: `split` a task's events
into segments, `draft` the notes of each, and, once `topic_text` is embedded,
`propose` topics and their relations. A proposal changes nothing until the shard
applies it. The same task gives the same proposal (invariant 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .identity import topic_id
from .model import Cut, Event, EventRelation, Origin, ResolvedDate, Topic, TopicRelation
from .ports import BoundaryDetector, RelationScorer, Summarizer
from .proposal import Candidate, Proposal, ProposedEpisode, ProposedTopic, ScoredRelation, SegmentNotes
from .relations import CANDIDATES, RELATION_THRESHOLD, event_relations, superseded
from .writes import TaskRow

LATE = "late"
"""Trigger of an episode made of turns that belong inside or before an archived one."""

Vectors = NDArray[np.float32]
Judgement = Sequence[ScoredRelation]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of events to be closed as one episode.

    Attributes:
        events: in event order, at least one.
        vectors: their embeddings, `(len(events), dimension)`.
        cut: the cut that closes it; its index counts the task's events.
        trigger: the maintenance event, or `LATE`.
        detector: what found the cut.
    """

    events: Sequence[Event]
    vectors: Vectors
    cut: Cut
    trigger: str
    detector: str


@dataclass(frozen=True, slots=True)
class Draft:
    """The notes of a segment that says something new.

    `event_dates` and `event_entities` have one entry per event of the segment; those
    of recalled events are empty. `texts` are `(speaker, text)` of the others.
    """

    notes: SegmentNotes
    event_dates: tuple[tuple[ResolvedDate, ...], ...]
    event_entities: tuple[tuple[str, ...], ...]
    texts: tuple[tuple[str, str], ...]
    first_us: int
    last_us: int
    model: str


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """A user's stored topics and their vectors, `(len(topics), dimension)`."""

    topics: Sequence[Topic]
    vectors: Vectors


def split(task: TaskRow, events: Sequence[Event], vectors: Vectors, detector: BoundaryDetector) -> list[Segment]:
    """Return the segments that the task closes; an open tail is in none of them.

    Events earlier than `task.archived_until_us` are late: they are split from the
    rest and always closed, so that an archive is never touched. The rest is cut by the
    detector; what follows the last cut is closed if the task closes the tail.

    Args:
        task: the task.
        events: its events, in event order.
        vectors: their embeddings, `(len(events), dimension)`.
        detector: finds the boundaries, in the late part and in the rest on its own.

    Raises:
        ValueError: the detector's cuts are not in order or not inside the events.
    """
    until = task.archived_until_us
    late = 0 if until is None else sum(event.time_us < until for event in events)
    segments: list[Segment] = []
    if late:
        closing = Cut(late, 1.0, "turns earlier than the archived episodes of their session")
        segments += _cut(events, vectors, 0, late, LATE, closing, detector, force=False)
    if late < len(events):
        tail = Cut(len(events), 1.0, task.trigger.replace("_", " ")) if task.closes_tail else None
        segments += _cut(events, vectors, late, len(events), task.trigger, tail, detector, force=task.force)
    return segments


def _cut(
    events: Sequence[Event],
    vectors: Vectors,
    start: int,
    stop: int,
    trigger: str,
    closing: Cut | None,
    detector: BoundaryDetector,
    *,
    force: bool,
) -> list[Segment]:
    cuts: list[Cut] = []
    if stop - start > 1:
        for cut in detector.boundaries(events[start:stop], vectors[start:stop], force=force):
            cuts.append(Cut(cut.index + start, cut.confidence, cut.reason))
    indices = [start, *(cut.index for cut in cuts), stop]
    if any(index >= after for index, after in pairwise(indices)):
        raise ValueError(
            f"detector {detector.name!r} returned boundaries {[cut.index - start for cut in cuts]} for {stop - start} "
            "events; they must increase and lie between 1 and the last event"
        )
    if closing is not None:
        cuts.append(closing)
    segments: list[Segment] = []
    begin = start
    for cut in cuts:
        by = trigger if cut is closing else detector.name
        segments.append(Segment(events[begin : cut.index], vectors[begin : cut.index], cut, trigger, by))
        begin = cut.index
    return segments


def draft(segment: Segment, summarizer: Summarizer) -> Draft | None:
    """Return the notes of a segment's said events; None if all of them are recalled.

    Recalled text stays in the episode and is given to no summarizer: memory that is
    read back aloud is not new memory.
    """
    said = said_places(segment.events)
    if not said:
        return None
    whole = len(said) == len(segment.events)
    events = segment.events if whole else [segment.events[at] for at in said]
    notes = summarizer.notes(events, segment.vectors if whole else segment.vectors[said])
    return draft_of(segment, said, notes, summarizer.name)


def said_places(events: Sequence[Event]) -> list[int]:
    """Where the events stand that are new, not memory read back aloud."""
    recalled = Origin.RECALLED
    return [at for at, event in enumerate(events) if event.origin != recalled]


def draft_of(segment: Segment, said: Sequence[int], notes: SegmentNotes, model: str) -> Draft:
    """The draft of a segment whose events at the places `said` have these notes, written by `model`."""
    events = [segment.events[at] for at in said]
    times = [event.time_us for event in events]
    return Draft(
        notes=notes,
        event_dates=_spread(notes.event_dates, said, len(segment.events)),
        event_entities=_spread(notes.event_entities, said, len(segment.events)),
        texts=tuple([(event.speaker, event.text) for event in events]),
        first_us=min(times),
        last_us=max(times),
        model=model,
    )


def _spread(found: Sequence[tuple[T, ...]], places: Sequence[int], count: int) -> tuple[tuple[T, ...], ...]:
    """What was found of some of `count` events, at their places; nothing at the others."""
    spread: list[tuple[T, ...]] = [()] * count
    for at, each in zip(places, found, strict=True):
        spread[at] = each
    return tuple(spread)


def topic_text(notes: SegmentNotes) -> str:
    """The text whose embedding is the topic's vector: keywords and summary."""
    return f"{', '.join(notes.keywords)}\n{notes.summary}" if notes.keywords else notes.summary


def propose(
    task: TaskRow,
    token: str,
    segments: Sequence[Segment],
    drafts: Sequence[Draft | None],
    topic_vectors: Vectors,
    known: KnownTopics,
    scorer: RelationScorer,
) -> Proposal:
    """Return the proposal of a task.

    Args:
        task: the task.
        token: the lease under which it is submitted.
        segments: what `split` returned.
        drafts: one per segment, None where nothing is consolidated.
        topic_vectors: unit vectors of `topic_text`, one row per draft that is not None.
        known: the user's topics as stored.
        scorer: judges each new topic against its nearest; topics of this proposal that
            come earlier are candidates too.
    """
    compared = comparisons(task.id, drafts, topic_vectors, known)
    judged = [scorer.relations(each.topic, each.candidates) for each in compared]
    return assemble(task, token, segments, drafts, topic_vectors, known, compared, judged)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new topic and the topics that it is judged against, the most alike first."""

    topic: Candidate
    candidates: Sequence[Candidate]


def comparisons(
    task_id: str, drafts: Sequence[Draft | None], topic_vectors: Vectors, known: KnownTopics
) -> list[Comparison]:
    """What each new topic is compared with: at most `CANDIDATES` topics, stored or made before it by the same task.

    Args:
        task_id: the task's; the new topics are named by it.
        drafts: one per segment; those that are None make no topic.
        topic_vectors: as in `propose`.
        known: the user's topics as stored.
    """
    to_known = topic_vectors @ known.vectors.T if len(known.topics) else np.zeros((len(topic_vectors), 0), np.float32)
    to_new = topic_vectors @ topic_vectors.T
    made: list[Candidate] = []
    found: list[Comparison] = []
    for ordinal, drafted in enumerate(drafts):
        if drafted is not None:
            row = len(made)
            new = _new(topic_id(task_id, ordinal), drafted)
            similar = np.concatenate((to_known[row], to_new[row, :row]))
            found.append(Comparison(new, _nearest(known.topics, made, similar)))
            made.append(new)
    return found


def assemble(
    task: TaskRow,
    token: str,
    segments: Sequence[Segment],
    drafts: Sequence[Draft | None],
    topic_vectors: Vectors,
    known: KnownTopics,
    compared: Sequence[Comparison],
    judged: Sequence[Judgement],
    edges: Sequence[EventRelation] = (),
) -> Proposal:
    """Return the proposal that judgements make: what is kept of them, which way it runs, what becomes past.

    Args:
        task: the task.
        token: the lease under which it is submitted.
        segments: what `split` returned.
        drafts: one per segment.
        topic_vectors: one row per draft that is not None.
        known: the user's topics as stored.
        compared: what `comparisons` returned.
        judged: the relations of each of these, at most one per candidate.
        edges: between events, one of them of these segments at least. Inside a segment they are its episode's,
            else the proposal's links.
    """
    topics = topics_of(drafts, known, zip(compared, judged, topic_vectors, strict=True))
    inside, links = _placed(segments, edges)
    episodes = [_episode(*parts) for parts in zip(segments, drafts, topics, inside, strict=True)]
    return Proposal(task.id, token, tuple(episodes), links)


def topics_of(
    drafts: Sequence[Draft | None], known: KnownTopics, judged: Iterator[tuple[Comparison, Judgement, Vectors]]
) -> list[ProposedTopic | None]:
    """The topics that judgements make; `judged` has one for each draft that is not None."""
    past = {topic.id for topic in known.topics if topic.superseded_by is not None}
    topics: list[ProposedTopic | None] = []
    for drafted in drafts:
        topic = None if drafted is None else _topic(drafted, *next(judged), past)
        past.update(topic.supersedes if topic else ())
        topics.append(topic)
    return topics


def _placed(
    segments: Sequence[Segment], edges: Sequence[EventRelation]
) -> tuple[list[list[EventRelation]], tuple[EventRelation, ...]]:
    """The strong enough edges inside each segment, and those that reach beyond one."""
    place = {event.seq: at for at, segment in enumerate(segments) for event in segment.events}
    inside: list[list[EventRelation]] = [[] for _ in segments]
    links: list[EventRelation] = []
    for edge in edges:
        if edge.weight >= RELATION_THRESHOLD:
            source, target = place.get(edge.source_seq), place.get(edge.target_seq)
            (inside[source] if source is not None and source == target else links).append(edge)
    return inside, tuple(links)


def _episode(
    segment: Segment, drafted: Draft | None, topic: ProposedTopic | None, edges: Sequence[EventRelation]
) -> ProposedEpisode:
    count = len(segment.events)
    return ProposedEpisode(
        seqs=tuple(event.seq for event in segment.events),
        cut=segment.cut,
        detector=segment.detector,
        trigger=segment.trigger,
        topic=topic,
        event_dates=drafted.event_dates if drafted else ((),) * count,
        event_entities=drafted.event_entities if drafted else ((),) * count,
        relations=(*event_relations(segment.events, segment.vectors), *edges),
    )


def _topic(drafted: Draft, compared: Comparison, judged: Judgement, vector: Vectors, past: Set[str]) -> ProposedTopic:
    """A new topic with the relations that were judged; they run from the newer topic to the older by event time.

    `past` are topics that are superseded already: what made them so stays named.
    """
    new = compared.topic
    by_id = {candidate.topic_id: candidate for candidate in compared.candidates}
    relations: list[TopicRelation] = []
    supersedes: list[str] = []
    later: list[Candidate] = []
    for scored in judged:
        other = by_id[scored.topic_id]
        if scored.confidence < RELATION_THRESHOLD:
            continue
        ends = (new.topic_id, other.topic_id)
        if (new.last_us, new.first_us) < (other.last_us, other.first_us):
            ends = (other.topic_id, new.topic_id)
        relations.append(TopicRelation(*ends, str(scored.type), scored.confidence))
        older = superseded(new, other, scored.type)
        if older == new.topic_id:
            later.append(other)
        elif older is not None and older not in past:
            supersedes.append(older)
    notes = drafted.notes
    return ProposedTopic(
        summary=notes.summary,
        keywords=notes.keywords,
        entities=notes.entities,
        dates=notes.dates,
        confidence=notes.confidence,
        model=drafted.model,
        vector=vector,
        relations=tuple(relations),
        supersedes=tuple(supersedes),
        superseded_by=min(later, key=lambda other: (other.last_us, other.topic_id)).topic_id if later else None,
        label=notes.label,
        facts=notes.facts,
        relationships=notes.relationships,
    )


def _nearest(stored: Sequence[Topic], made: Sequence[Candidate], similar: Vectors) -> list[Candidate]:
    """The `CANDIDATES` topics most like the new one, ties in order of making."""
    if len(similar) > CANDIDATES:
        least = np.partition(similar, len(similar) - CANDIDATES)[len(similar) - CANDIDATES]
        rows = np.nonzero(similar >= least)[0]
    else:
        rows = np.arange(len(similar))
    best = rows[np.argsort(-similar[rows], kind="stable")][:CANDIDATES].tolist()
    return [
        _stored(stored[row], float(similar[row]))
        if row < len(stored)
        else replace(made[row - len(stored)], similarity=float(similar[row]))
        for row in best
    ]


def _stored(topic: Topic, similarity: float) -> Candidate:
    return Candidate(
        topic_id=topic.id,
        summary=topic.summary,
        keywords=topic.keywords,
        entities=topic.entities,
        first_us=topic.first_us,
        last_us=topic.last_us,
        similarity=similarity,
    )


def _new(identifier: str, drafted: Draft) -> Candidate:
    notes = drafted.notes
    return Candidate(
        topic_id=identifier,
        summary=notes.summary,
        keywords=notes.keywords,
        entities=notes.entities,
        first_us=drafted.first_us,
        last_us=drafted.last_us,
        similarity=1.0,
        texts=drafted.texts,
    )
