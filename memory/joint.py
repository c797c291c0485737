"""The two calls of a maintenance event, where one chat model serves all ports (GAM, §3; MAGMA's slow path).

`segments` finds the boundaries and writes the notes of every segment that closes; once their topic
texts are embedded, `proposal` judges all new topics and links the new events to each other and to
their neighbourhood. Both ask only what there is to ask: without new words there is no call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from . import long_input, prompts
from .consolidation import (
    LATE,
    Draft,
    KnownTopics,
    Segment,
    assemble,
    comparisons,
    draft_of,
    said_places,
)
from .judges import forced_cut
from .long_input import NewTopic
from .model import Cut, Event
from .model_readings import Links
from .ports import Ask, BoundaryDetector
from .proposal import Proposal, SegmentNotes
from .writes import TaskRow

Vectors = NDArray[np.float32]

MAX_NEIGHBOURS = 16
"""Events of the neighbourhood that one task's links are looked for among."""


@dataclass(frozen=True, slots=True)
class _Closed:
    """A segment and its notes; None where they are still to be asked for, or nothing is said in it."""

    segment: Segment
    notes: SegmentNotes | None


class JointJudge:
    """Thinks about a task in two calls; over-long input, and what a call left open, adds calls.

    Args:
        ask: the model, bound to the task.
        fallback: finds the gap that closes where one must be found and the model sees none.
    """

    def __init__(self, ask: Ask, fallback: BoundaryDetector) -> None:
        self._ask, self._fallback = ask, fallback

    @property
    def name(self) -> str:
        """What is recorded with the cuts and notes that one call gave."""
        return prompts.recorded(self._ask.model, "segments")

    def segments(
        self, task: TaskRow, events: Sequence[Event], vectors: Vectors
    ) -> tuple[list[Segment], list[Draft | None]]:
        """Return the segments that a task closes, and the notes of each; an open tail is in none of them.

        As `consolidation.split` and `draft`: late turns apart, recalled events kept and not shown, a segment of
        recalled events alone without notes. One call for the late part and one for the rest, if anything is
        said there; and one for each closed segment that the answer has no notes of: after a forced cut, and
        where the model left a segment's out or was shown it in windows.

        Args:
            task: the task.
            events: its events, in event order.
            vectors: their embeddings, `(len(events), dimension)`.

        Raises:
            BadAnswer, ModelAway, TooLong, Rejected, Refused: as `Ask`.
        """
        until = task.archived_until_us
        late = 0 if until is None else sum(event.time_us < until for event in events)
        closed: list[_Closed] = []
        if late:
            closing = Cut(late, 1.0, "turns earlier than the archived episodes of their session")
            closed += self._cut(events, vectors, 0, late, LATE, closing, force=False)
        if late < len(events):
            tail = Cut(len(events), 1.0, task.trigger.replace("_", " ")) if task.closes_tail else None
            closed += self._cut(events, vectors, late, len(events), task.trigger, tail, force=task.force)
        return [each.segment for each in closed], [self._draft(each) for each in closed]

    def wanted_episodes(self, drafts: Sequence[Draft | None], topic_vectors: Vectors, known: KnownTopics) -> list[str]:
        """Ids of the episodes whose events are the neighbourhood: those of the candidate topics, each once."""
        episodes = {topic.id: topic.episode_id for topic in known.topics}
        wanted = [
            episodes[candidate.topic_id]
            for compared in comparisons("", drafts, topic_vectors, known)
            for candidate in compared.candidates
            if candidate.topic_id in episodes
        ]
        return list(dict.fromkeys(wanted))

    def proposal(
        self,
        task: TaskRow,
        token: str,
        segments: Sequence[Segment],
        drafts: Sequence[Draft | None],
        topic_vectors: Vectors,
        known: KnownTopics,
        neighbours: Mapping[str, tuple[Sequence[Event], Vectors]],
    ) -> Proposal:
        """Return the proposal of a task, with one call if there is anything to relate.

        Args:
            task: the task.
            token: the lease under which it is submitted.
            segments: what `segments` returned.
            drafts: likewise.
            topic_vectors: unit vectors of `topic_text`, one row per draft that is not None.
            known: the user's topics as stored.
            neighbours: events and vectors of `wanted_episodes`, by episode; `MAX_NEIGHBOURS` of them,
                the nearest to any new event, are shown.

        Raises:
            BadAnswer, ModelAway, TooLong, Rejected, Refused: as `Ask`.
        """
        compared = comparisons(task.id, drafts, topic_vectors, known)
        told = [segment for segment, drafted in zip(segments, drafts, strict=True) if drafted is not None]
        said = [said_places(segment.events) for segment in told]
        topics = [
            NewTopic(each.topic, each.candidates, [segment.events[at] for at in places])
            for each, segment, places in zip(compared, told, said, strict=True)
        ]
        new_vectors = [segment.vectors[places] for segment, places in zip(told, said, strict=True)]
        earlier = _nearest(new_vectors, neighbours)
        alone = not earlier and sum(map(len, said)) < 2 and not any(topic.candidates for topic in topics)
        found = Links(((),) * len(topics), ())
        if topics and not alone:
            found = long_input.links(self._ask, task.user, topics, earlier)
        return assemble(task, token, segments, drafts, topic_vectors, known, compared, found.relations, found.edges)

    def _cut(
        self,
        events: Sequence[Event],
        vectors: Vectors,
        start: int,
        stop: int,
        trigger: str,
        closing: Cut | None,
        *,
        force: bool,
    ) -> Iterator[_Closed]:
        """The closed segments of the events from `start` to `stop`, which are cut on their own."""
        said = [start + at for at in said_places(events[start:stop])]
        found, notes = self._read(events, said, closes=closing is not None)
        cuts = [(cut, self.name) for cut in found]
        if force:
            own = [replace(cut, index=cut.index - start) for cut in found]
            forced = forced_cut(own, events[start:stop], vectors[start:stop], self._fallback, self._ask.model)
            if forced is not None:
                cuts.append((replace(forced, index=start + forced.index), self._fallback.name))
                notes[-1:] = [None, None]  # what the model wrote is of both sides
        if closing is not None:
            cuts.append((closing, trigger))
        begin = start
        for (cut, detector), noted in zip(cuts, notes, strict=False):  # an open tail has notes or not, and no cut
            segment = Segment(events[begin : cut.index], vectors[begin : cut.index], cut, trigger, detector)
            yield _Closed(segment, noted)
            begin = cut.index

    def _read(
        self, events: Sequence[Event], said: Sequence[int], *, closes: bool
    ) -> tuple[list[Cut], list[SegmentNotes | None]]:
        """The model's cuts, and notes of the segments before, between and after them."""
        if not said or (len(said) == 1 and not closes):
            return [], [None]
        first, *later = long_input.segments(self._ask, [events[at] for at in said], closes=closes)
        cuts = [Cut(said[each.first], each.confidence, each.reason or "the topic changes") for each in later]
        return cuts, [first.notes, *(each.notes for each in later)]

    def _draft(self, closed: _Closed) -> Draft | None:
        segment = closed.segment
        said = said_places(segment.events)
        if not said:
            return None
        if closed.notes is not None:
            return draft_of(segment, said, closed.notes, self.name)
        notes = long_input.notes(self._ask, [segment.events[at] for at in said])
        return draft_of(segment, said, notes, prompts.recorded(self._ask.model, "summary"))


def _nearest(new_vectors: Sequence[Vectors], neighbours: Mapping[str, tuple[Sequence[Event], Vectors]]) -> list[Event]:
    """The said events of the neighbourhood nearest to any new one, nearest first."""
    found: list[tuple[float, tuple[int, int], Event]] = []
    for events, vectors in neighbours.values():
        places = said_places(events)
        if new_vectors and places:
            similar = (np.concatenate(list(new_vectors)) @ vectors[places].T).max(axis=0).tolist()
            found += [(-near, events[at].order, events[at]) for near, at in zip(similar, places, strict=True)]
    found.sort(key=lambda each: each[:2])
    return [event for _, _, event in found[:MAX_NEIGHBOURS]]
