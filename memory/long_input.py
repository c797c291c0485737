"""Each question to a chat model, over as many calls as the model's context makes of it.

What fits is one call. What does not is shown in windows of whole events, an event that alone is
too long in parts of its text; a segment's parts get notes of their own, joined by one more call.
Everything is shown in some call, and those beyond the first bear names that `counts_apart` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from . import prompts
from .chat import Prompt
from .model import Event, User
from .model_readings import UNSTATED_CONFIDENCE, JoinedNotes, Links, ReadSegment
from .ports import Ask
from .proposal import Candidate, ScoredRelation, SegmentNotes
from .schemas import MAX_EDGES
from .transcript import Passage, events_of, lines, whole
from .windows import OVERLAP, Form, as_part, first_window, next_window, passages_for, sized, too_long

T = TypeVar("T")

_NOTES_TOKENS = 320
_JOINED_TOKENS = 256
_PER_EVENT = 6
_PER_BOUNDARY = 5
_PER_RELATION = 28
_PER_EDGE = 24
_ROOM_FOR_EARLIER = 4
"""Earlier events take a quarter of the context at most."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be linked: what it is compared with, and its said events, in order."""

    topic: Candidate
    candidates: Sequence[Candidate]
    events: Sequence[Event]


def boundaries(ask: Ask, events: Sequence[Event]) -> list[int]:
    """Boundaries among said events, increasing, `0 < boundary < len(events)`.

    Windows overlap; a boundary in the overlap is the earlier window's in its first half, and the later one's after.
    """
    user = events[0].user
    form = Form(lambda shown: prompts.boundaries(user, shown), lambda count: 32 + _PER_BOUNDARY * count)
    prompt = form.sized(ask, whole(events))
    if prompt is not None:
        return ask(prompt)
    passages = passages_for(ask, form, events)
    first = _first_passages(passages)
    place = {passages[at].event.seq: number for number, at in enumerate(first)}
    found: set[int] = set()
    prompt, stop = first_window(ask, form, passages)
    start = judged = 0
    while True:
        read = [number + place[passages[start].event.seq] for number in ask(prompt)]
        if stop == len(passages):
            found.update(number for number in read if first[number] >= judged)
            return sorted(found)
        following, prompt, end = next_window(ask, form, passages, stop)
        handed_over = max(following + 1, stop - OVERLAP // 2)
        found.update(number for number in read if judged <= first[number] < handed_over)
        prompt, start, stop, judged = as_part(prompt), following, end, handed_over


def notes(ask: Ask, events: Sequence[Event]) -> SegmentNotes:
    """The notes of one segment of said events; one entry of dates and entities per event."""
    user = events[0].user
    form = Form(lambda shown: prompts.summary(user, shown), lambda count: _NOTES_TOKENS)
    prompt = form.sized(ask, whole(events))
    if prompt is not None:
        return ask(prompt)
    passages = passages_for(ask, form, events)
    parts: list[tuple[Sequence[Event], SegmentNotes]] = []
    stop = 0
    while stop < len(passages):
        prompt, count = first_window(ask, form, passages[stop:])
        parts.append((events_of(passages[stop : stop + count]), ask(as_part(prompt) if parts else prompt)))
        stop += count
    if len(parts) == 1:
        return parts[0][1]
    joined = _joined(ask, user, [part for _, part in parts])
    dates = _by_event(parts, lambda part: part.event_dates)
    names = _by_event(parts, lambda part: part.event_entities)
    return SegmentNotes(
        summary=joined.summary,
        keywords=joined.keywords,
        entities=_union(part.entities for _, part in parts),
        dates=_union(dates[event.seq] for event in events),
        event_dates=tuple([dates[event.seq] for event in events]),
        event_entities=tuple([names[event.seq] for event in events]),
        confidence=joined.confidence,
        label=joined.label,
        facts=_union(part.facts for _, part in parts),
        relationships=_union(part.relationships for _, part in parts),
    )


def segments(ask: Ask, events: Sequence[Event], *, closes: bool) -> list[ReadSegment]:
    """The segments of said events, the first one from 0 on; None for notes that are still to be asked for.

    A window after the first starts where the segment begins that the one before it left open, if it then
    shows anything new; else that segment's notes are still to be asked for.

    Args:
        ask: the model.
        events: in event order, at least one.
        closes: whether the last segment closes; else it has no notes and needs none.
    """
    user = events[0].user
    form = _segments_form(user, closes)
    prompt = form.sized(ask, whole(events))
    if prompt is not None:
        return _from_the_first(ask(prompt))
    goes_on = _segments_form(user, False)
    passages = passages_for(ask, goes_on, events)
    first = _first_passages(passages)
    place = {passages[at].event.seq: number for number, at in enumerate(first)}
    found: list[ReadSegment] = []
    open_ = ReadSegment(0, 1.0, "", None)
    prompt, stop = first_window(ask, goes_on, passages)
    start = 0
    while True:
        shown_first = place[passages[start].event.seq]
        last = stop == len(passages)
        if last and closes and (closing := form.sized(ask, passages[start:])) is not None:
            prompt = replace(closing, name=prompt.name)  # without room for it, the last notes are still to be asked for
        read = _from_the_first(ask(prompt))
        head, *later = read
        if start == first[open_.first]:
            open_ = replace(open_, notes=head.notes)
        for segment in later:
            found.append(open_)
            open_ = replace(segment, first=segment.first + shown_first)
        if last:
            return [*found, open_]
        wanted = first[open_.first]
        start, prompt, stop = next_window(ask, goes_on, passages, stop, wanted if wanted > start else None)
        prompt = as_part(prompt)


def relations(ask: Ask, user: User, topic: Candidate, candidates: Sequence[Candidate]) -> list[ScoredRelation]:
    """How a topic relates to each of its candidates, one at least; to half of them at a time if all are too long."""
    prompt = prompts.relations(user, topic, candidates)
    least = _PER_RELATION * (len(candidates) + 1)
    fitting = sized(ask, prompt, least)
    if fitting is not None:
        return ask(fitting)
    if len(candidates) == 1:
        raise too_long(ask, f"a topic of {user} and a candidate", prompt, least)
    half = len(candidates) // 2
    return [*relations(ask, user, topic, candidates[:half]), *relations(ask, user, topic, candidates[half:])]


def links(ask: Ask, user: User, topics: Sequence[NewTopic], earlier: Sequence[Event]) -> Links:
    """Relations of new topics, in their order, and edges among their events and earlier ones.

    Of the earlier events as many are shown, from the beginning, as a quarter of the context takes. What is
    too long for one call is asked topic by topic, as many together as fit; no edge is then looked for
    between events that are in no call together.

    Args:
        ask: the model.
        user: whose memory it is.
        topics: new, one at least.
        earlier: stored events, nearest first.
    """
    shown = _within(ask, earlier, ask.context_tokens // _ROOM_FOR_EARLIER)
    asked: list[Prompt[Links] | None] = []
    groups = [list(topics)]
    while groups:
        group = groups.pop(0)
        form = _links_form(user, group, shown)
        prompt = form.sized(ask, whole([event for topic in group for event in topic.events]))
        if prompt is not None:
            asked += [prompt] if _asks(prompt) else [None] * len(group)
        elif len(group) > 1:
            half = len(group) // 2
            groups = [group[:half], group[half:], *groups]
        else:
            asked += _links_in_windows(ask, user, group[0], shown)
    answers: list[Links] = []
    first = next((prompt for prompt in asked if prompt is not None), None)
    for prompt in asked:
        if prompt is None:
            answers.append(_NO_LINKS)
        else:
            answers.append(ask(prompt if prompt is first else as_part(prompt)))
    return Links(
        tuple(chain.from_iterable(answer.relations for answer in answers)),
        _union(answer.edges for answer in answers),
    )


def _asks(prompt: Prompt[Links]) -> bool:
    """Whether there is anything to relate: a topic with candidates, or two events."""
    return bool(prompt.schema["properties"])


_NO_LINKS = Links(((),), ())
"""Of one topic."""


def _links_in_windows(ask: Ask, user: User, topic: NewTopic, earlier: Sequence[Event]) -> list[Prompt[Links] | None]:
    """Prompts on one topic whose events are too many for one; its relations are asked for in the first.

    A window that asks nothing is left out; None stands for a topic of only such.
    """
    passages = passages_for(ask, _links_form(user, [topic], earlier), topic.events)
    found: list[Prompt[Links] | None] = []
    stop = 0
    while stop < len(passages):
        form = _links_form(user, [] if found else [topic], earlier)
        prompt, count = first_window(ask, form, passages[stop:])
        if _asks(prompt):
            found.append(prompt)
        stop += count
    return found or [None]


def _links_form(user: User, topics: Sequence[NewTopic], earlier: Sequence[Event]) -> Form[Links]:
    compared = [(topic.topic, topic.candidates) for topic in topics]
    pairs = sum(len(candidates) for _, candidates in compared)

    def build(shown: Sequence[Passage]) -> Prompt[Links]:
        return prompts.links(user, compared, shown, whole(earlier))

    def least(count: int) -> int:
        edges = min(MAX_EDGES, count * (count + len(earlier)))
        return _PER_RELATION * (pairs + 1) + _PER_EDGE * edges

    return Form(build, least)


def _within(ask: Ask, events: Sequence[Event], room: int) -> list[Event]:
    """As many events, from the beginning, as have room together; those that alone have none are passed over."""
    found: list[Event] = []
    for event in events:
        taken = ask.count_tokens("\n".join(lines(whole([event]))))
        if taken <= room:
            found.append(event)
            room -= taken
    return found


def _joined(ask: Ask, user: User, parts: Sequence[SegmentNotes | JoinedNotes]) -> JoinedNotes:
    """One summary of the notes of parts; of halves of them first if they are too long together."""
    prompt = prompts.joined_parts(user, parts)
    fitting = sized(ask, prompt, _JOINED_TOKENS)
    if fitting is not None:
        return ask(fitting)
    if len(parts) <= 3:
        raise too_long(ask, f"the notes of {len(parts)} parts of a segment of {user}", prompt, _JOINED_TOKENS)
    half = len(parts) // 2
    return _joined(ask, user, [_joined(ask, user, parts[:half]), _joined(ask, user, parts[half:])])


def _segments_form(user: User, closes: bool) -> Form[list[ReadSegment]]:
    return Form(
        lambda shown: prompts.segments(user, shown, closes=closes), lambda count: _NOTES_TOKENS + _PER_EVENT * count
    )


def _from_the_first(read: list[ReadSegment]) -> list[ReadSegment]:
    """The segments, with one for the first events where the model named none that holds them."""
    if read and read[0].first == 0:
        return read
    return [ReadSegment(0, UNSTATED_CONFIDENCE, "", None), *read]


def _first_passages(passages: Sequence[Passage]) -> list[int]:
    """Where each event's first passage is."""
    return [at for at, passage in enumerate(passages) if passage.part == 1]


def _by_event(
    parts: Sequence[tuple[Sequence[Event], SegmentNotes]], found: Callable[[SegmentNotes], Sequence[tuple[T, ...]]]
) -> dict[int, tuple[T, ...]]:
    """What the parts found of each event, by its `seq`; an event may stand in several."""
    by_seq: dict[int, list[tuple[T, ...]]] = {}
    for events, part in parts:
        for event, each in zip(events, found(part), strict=True):
            by_seq.setdefault(event.seq, []).append(each)
    return {seq: _union(each) for seq, each in by_seq.items()}


def _union(found: Iterable[Sequence[T]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(found)))
