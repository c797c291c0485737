"""What a chat model's JSON values say, in the domain's own: the one place where its word is checked.

A value that does not have the form that was asked for is a `BadAnswer`, whole: a missing key,
text where a list belongs. An item that names nothing that exists (a number outside, an unknown
candidate or type, a day that no calendar has) is left out and counted. A number in quotes is
a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from .chat import Reading
from .dates import resolve_dates
from .json_values import LeftOut, array, clean, confidence_of, day, folded, folded_name, number_among, share, text_of
from .model import Event, EventRelation, EventRelationType, Relationship, ResolvedDate, TopicRelationType
from .proposal import ScoredRelation, SegmentNotes
from .summary import CONFIDENCE
from .text import is_han

MAX_KEYWORDS = 8
MAX_ENTITIES = 12
MAX_RELATIONSHIPS = 8
MAX_FACTS = 10
MAX_DATES = 10
"""Items of a note; what a model writes beyond is left out and counted."""

UNSTATED_CONFIDENCE = 0.5
"""Of a cut of which the model did not say how sure it is."""

UNRELATED = "unrelated"
"""The sixth type of a relation between topics: a good answer, and never stored."""

_TOPIC_TYPES = frozenset(map(str, TopicRelationType))
_EDGE_TYPES = frozenset({str(EventRelationType.CAUSAL), str(EventRelationType.ENTITY)})


@dataclass(frozen=True, slots=True)
class ReadSegment:
    """A segment as the model gave it.

    Attributes:
        first: number of its first event among those shown.
        confidence: of the cut before it.
        reason: of that cut; may be empty.
        notes: None where the model gave none.
    """

    first: int
    confidence: float
    reason: str
    notes: SegmentNotes | None


@dataclass(frozen=True, slots=True)
class JoinedNotes:
    """What the notes of the parts of one segment say together."""

    summary: str
    keywords: tuple[str, ...]
    label: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Links:
    """Relations of each new topic, in the order of the topics, and edges between events."""

    relations: tuple[tuple[ScoredRelation, ...], ...]
    edges: tuple[EventRelation, ...]


def read_boundaries(value: Any, count: int) -> Reading[list[int]]:
    """Boundaries among `count` events, increasing, `0 < boundary < count`."""
    left_out = LeftOut()
    found = left_out.kept(array(value, "boundaries"), lambda item: number_among(item, range(1, count)))
    return Reading(sorted(found), left_out.dropped)


def read_notes(value: Any, events: Sequence[Event]) -> Reading[SegmentNotes]:
    """The notes of a segment; its events are numbered from 0."""
    left_out = LeftOut()
    return Reading(_notes(value, events, 0, left_out), left_out.dropped)


def read_segments(value: Any, events: Sequence[Event], *, closes: bool) -> Reading[list[ReadSegment]]:
    """The segments of a run of events, in order, each with notes of its own events.

    Args:
        value: the answer's.
        events: the events shown, numbered from 0.
        closes: whether the last segment closes; else its notes are not asked for and not read.
    """
    left_out = LeftOut()
    by_first: dict[int, Mapping[str, Any]] = {}
    for item in array(value, "segments"):
        first = number_among(item.get("first"), range(len(events))) if isinstance(item, dict) else None
        if first is None or first in by_first:
            left_out.dropped += 1
        else:
            by_first[first] = item
    starts = [*sorted(by_first), len(events)]
    found: list[ReadSegment] = []
    for first, after in pairwise(starts):
        item = by_first[first]
        notes = None
        if item.get("notes") is not None and (closes or after < len(events)):
            notes = _notes(item["notes"], events[first:after], first, left_out)
        confidence = confidence_of(item, UNSTATED_CONFIDENCE, left_out)
        found.append(ReadSegment(first, confidence, clean(item.get("reason")) or "", notes))
    return Reading(found, left_out.dropped)


def read_joined(value: Any) -> Reading[JoinedNotes]:
    """The notes of several parts, joined."""
    left_out = LeftOut()
    keywords = left_out.kept(array(value, "keywords"), clean, MAX_KEYWORDS)
    label = clean(value.get("topic")) or ""
    joined = JoinedNotes(text_of(value, "summary"), tuple(keywords), label, confidence_of(value, CONFIDENCE, left_out))
    return Reading(joined, left_out.dropped)


def read_relations(value: Any, candidates: Mapping[str, str]) -> Reading[list[ScoredRelation]]:
    """Relations of one new topic, at most one per candidate.

    Args:
        value: the answer's.
        candidates: topic ids by the names under which the candidates were shown.
    """
    left_out = LeftOut()
    by_pair = {("", name): topic for name, topic in candidates.items()}
    (relations,) = _relations(value, [""], by_pair, left_out)
    return Reading(list(relations), left_out.dropped)


def read_links(
    value: Any,
    new: Sequence[str],
    pairs: Mapping[tuple[str, str], str],
    events: Sequence[Event],
    new_events: int,
) -> Reading[Links]:
    """Relations of new topics, and edges between events.

    Args:
        value: the answer's.
        new: the names under which the new topics were shown.
        pairs: ids of the candidates, by `(name of the new topic, name of the candidate)`; without
            any, no relations were asked for.
        events: the events shown, numbered from 0.
        new_events: how many of them are new, the first ones; with one event alone no edges were asked for.
    """
    left_out = LeftOut()
    relations = _relations(value, new, pairs, left_out) if pairs else [()] * len(new)
    edges: list[EventRelation] = []
    if len(events) > 1:
        met: set[tuple[frozenset[int], str]] = set()
        for item in array(value, "events"):
            edge = _edge(item, events, new_events)
            if edge is None or (_ends(edge), edge.type) in met:
                left_out.dropped += 1
            else:
                met.add((_ends(edge), edge.type))
                edges.append(edge)
    return Reading(Links(tuple(relations), tuple(edges)), left_out.dropped)


def _relations(
    value: Any, new: Sequence[str], pairs: Mapping[tuple[str, str], str], left_out: LeftOut
) -> list[tuple[ScoredRelation, ...]]:
    """The relations of each of the new topics; those of a single one need not name it."""
    found: dict[str, dict[str, ScoredRelation | None]] = {name: {} for name in new}
    for item in array(value, "relations"):
        named = item if isinstance(item, dict) else {}
        source = folded_name(named.get("new")) if len(new) > 1 else new[0]
        topic = pairs.get((source, folded_name(named.get("topic"))))
        kind = folded_name(named.get("type"))
        confidence = share(named.get("confidence"))
        if topic is None or confidence is None or kind not in _TOPIC_TYPES | {UNRELATED} or topic in found[source]:
            left_out.dropped += 1
        else:
            found[source][topic] = None if kind == UNRELATED else ScoredRelation(topic, kind, confidence)
    return [tuple(relation for relation in found[name].values() if relation is not None) for name in new]


def _ends(edge: EventRelation) -> frozenset[int]:
    return frozenset((edge.source_seq, edge.target_seq))


def _edge(item: Any, events: Sequence[Event], new_events: int) -> EventRelation | None:
    if not isinstance(item, dict):
        return None
    ends = [number_among(item.get(end), range(len(events))) for end in ("source", "target")]
    source, target = ends
    kind = folded_name(item.get("type"))
    confidence = share(item.get("confidence"))
    if source is None or target is None or source == target or min(source, target) >= new_events:
        return None
    if kind not in _EDGE_TYPES or confidence is None:
        return None
    first, second = events[source], events[target]
    if kind == EventRelationType.ENTITY and second.order < first.order:  # has no direction of its own
        first, second = second, first
    return EventRelation(first.seq, second.seq, kind, confidence)


def _notes(value: Any, events: Sequence[Event], first: int, left_out: LeftOut) -> SegmentNotes:
    """Notes of events that were shown under the numbers from `first` on."""
    numbers = range(first, first + len(events))
    entities = left_out.kept(array(value, "entities", []), clean, MAX_ENTITIES)
    dated = left_out.kept(array(value, "dates", []), lambda item: _dated(item, events, numbers), MAX_DATES)
    event_dates = tuple(
        [
            _dates(event, [found for at, found in dated if at == number])
            for number, event in zip(numbers, events, strict=True)
        ]
    )
    return SegmentNotes(
        summary=text_of(value, "summary"),
        keywords=tuple(left_out.kept(array(value, "keywords"), clean, MAX_KEYWORDS)),
        entities=tuple(entities),
        dates=tuple(dict.fromkeys(chain.from_iterable(event_dates))),
        event_dates=event_dates,
        event_entities=tuple([tuple(name for name in entities if mentions(event.text, name)) for event in events]),
        confidence=confidence_of(value, CONFIDENCE, left_out),
        label=clean(value.get("topic")) or "",
        facts=tuple(left_out.kept(array(value, "facts", []), clean, MAX_FACTS)),
        relationships=tuple(left_out.kept(array(value, "relationships", []), _relationship, MAX_RELATIONSHIPS)),
    )


def mentions(text: str, name: str) -> bool:
    """Whether a text contains a name, as whole words where its script has spaces; case plays no part."""
    text, name = text.casefold(), name.casefold()
    at = text.find(name)
    while name and at >= 0:
        end = at + len(name)
        if not _joins(text[at - 1 : at], name[0]) and not _joins(name[-1], text[end : end + 1]):
            return True
        at = text.find(name, at + 1)
    return False


def _joins(before: str, after: str) -> bool:
    """Whether two neighbouring characters are of one word."""
    return all(character.isalnum() and not is_han(character) for character in (before or " ", after or " "))


def _dated(item: Any, events: Sequence[Event], numbers: range) -> tuple[int, ResolvedDate] | None:
    """The event's number and the days, if the event is one of these and says the expression."""
    if not isinstance(item, dict):
        return None
    number = number_among(item.get("event"), numbers)
    text = clean(item.get("text"))
    start = day(item.get("start"))
    end = start if item.get("end") in (None, "") else day(item.get("end"))
    if number is None or not text or start is None or end is None or end < start:
        return None
    event = events[number - numbers.start]
    said = folded(" ".join((event.text, *event.captions)))
    return (number, ResolvedDate(text, start, end)) if folded(text) in said else None


def _dates(event: Event, read: Sequence[ResolvedDate]) -> tuple[ResolvedDate, ...]:
    """The days that rules find in an event, then those that only the model found.

    Of an expression that both read, or one that holds the other's, the rules' days are kept: what their
    grammar knows it counts right, and models miscount.
    """
    ruled = resolve_dates(event.text, event.time_us, event.utc_offset_minutes)
    known = [folded(expression.text) for expression in ruled]
    more: dict[str, ResolvedDate] = {}
    for expression in read:
        text = folded(expression.text)
        if not any(text in other or other in text for other in known):
            more.setdefault(text, expression)
    return (*ruled, *more.values())


def _relationship(item: Any) -> Relationship | None:
    if not isinstance(item, dict):
        return None
    subject, relation, object_ = (clean(item.get(key)) for key in ("subject", "relation", "object"))
    return Relationship(subject, relation, object_) if subject and relation and object_ else None
