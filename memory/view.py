"""A user's read model: graphs and lexical indexes, kept in step with the store.

Made for one reading thread at a time: whoever shares a view serialises `refresh` and
`retrieve`. Events are held by ordinal, in the order in which the view met them; arrays
of one entry per ordinal let a query work on all events at once.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calendar_words import DAY_US, TimeCondition, day_us
from .columns import Column
from .dates import resolve_dates
from .lexical import LexicalIndex
from .model import Episode, Event, Origin, ResolvedDate, Topic, TopicRelation, User
from .ports import GraphReader
from .text import terms

NEIGHBOUR_GAP_US = 30 * 60 * 1_000_000
"""Two turns of a session that lie further apart than this are not each other's context."""
PART_EVENTS = 12
"""Long archives, and events without a topic, are narrowed in parts of at most this many events."""

_MINUTE_US = 60_000_000
_QUESTION_ENDS = ("?", "？", '?"', "吗", "呢")


@dataclass(frozen=True, slots=True)
class Parts:
    """The units that narrowing chooses from.

    Attributes:
        of_event: the part of each event ordinal.
        topic: the topic ordinal of each part, -1 for a part of loose events.
    """

    of_event: NDArray[np.int64]
    topic: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Visible:
    """What had been said by a moment.

    Attributes:
        events: per event ordinal.
        topics: per topic ordinal, whether all that its summary was made from had been said.
        superseded: per topic ordinal, whether a topic that had begun by then contradicts it.
    """

    events: NDArray[np.bool_]
    topics: NDArray[np.bool_]
    superseded: NDArray[np.bool_]


class MemoryView:
    """One user's events, episodes, topics and relations, as of one version of the store.

    Attributes:
        user: the owner.
        version: `(last seq, tasks applied, rebuilds)` that the view has seen; None while empty.
        events: by ordinal.
        refs: their references in the vector index, by ordinal.
        topics: by topic ordinal, in the order in which they were met.
        related: per topic ordinal, `(other topic ordinal, relation type, confidence)`.
        lexical: texts and captions of events; a document is an event's ordinal.
        topic_lexical: summaries and keywords; a document is a topic's ordinal.
    """

    def __init__(self, user: User) -> None:
        self.user = user
        self.version: tuple[int, int, int] | None = None
        self.events: list[Event] = []
        self.refs: list[str] = []
        self.topics: list[Topic] = []
        self.topic_ordinals: dict[str, int] = {}
        self.episodes: dict[str, Episode] = {}
        self.related: list[list[tuple[int, str, float]]] = []
        self.lexical = LexicalIndex()
        self.topic_lexical = LexicalIndex()
        self.speakers: list[str] = []
        self.times_us = Column(np.int64)
        self.local_us = Column(np.int64)
        self.topic_of = Column(np.int64)
        self.speaker_of = Column(np.int64)
        self.session_of = Column(np.int64)
        self.previous = Column(np.int64)
        self.next = Column(np.int64)
        self.recalled = Column(np.bool_)
        self.questions = Column(np.bool_)
        self._after_seq = 0
        self._ordinals: dict[int, int] = {}
        self._speaker_ordinals: dict[str, int] = {}
        self._session_ordinals: dict[str, int] = {}
        self._sessions: list[list[tuple[int, int, int]]] = []
        self._spoken: dict[int, list[tuple[int, int]]] = {}
        self._unread_dates: set[int] = set()
        self._spoken_spans = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
        self._buffered_dates: dict[int, tuple[ResolvedDate, ...]] = {}
        self._parts: Parts | None = None

    def __len__(self) -> int:
        return len(self.events)

    def refresh(self, reader: GraphReader) -> bool:
        """Take over what the store has gained since the last refresh; False if nothing has.

        New events are read once. When tasks were applied, episodes, topics and relations
        are read anew, and the events of new episodes with the attributes found in them. After a
        rebuild the topics that the view has met are met no more.
        """
        version = reader.version(self.user)
        if version is None or version == self.version:
            return False
        tasks_before = 0 if self.version is None else self.version[1]
        # Counted before the graphs are read: what is committed meanwhile is met now or next time.
        new = reader.events(self.user, self._after_seq)
        self._add(new)
        if new:
            self._after_seq = max(event.seq for event in new)
        rebuilt = self.version is not None and version[2] != self.version[2]
        if rebuilt:
            self._forget_topics()
        if rebuilt or version[1] != tasks_before:
            self._reload_graphs(reader)
        self._parts = None
        self.version = version
        return True

    def find(self, seq: int) -> int | None:
        """Ordinal of an event by its `seq`; None if the view has not met it yet."""
        return self._ordinals.get(seq)

    def topic(self, ordinal: int) -> Topic | None:
        """The topic whose archive holds an event, None for one without a topic."""
        at = int(self.topic_of.values[ordinal])
        return self.topics[at] if at >= 0 else None

    def visible(self, as_of_us: int | None) -> Visible:
        """What had been said by `as_of_us`; everything if it is None."""
        if as_of_us is None:
            return Visible(
                np.ones(len(self), dtype=bool),
                np.ones(len(self.topics), dtype=bool),
                np.array([topic.superseded_by is not None for topic in self.topics], dtype=bool),
            )
        newer = [
            None if topic.superseded_by is None else self.topic_ordinals.get(topic.superseded_by)
            for topic in self.topics
        ]
        return Visible(
            self.times_us.values <= as_of_us,
            np.array([topic.last_us <= as_of_us for topic in self.topics], dtype=bool),
            np.array([at is not None and self.topics[at].first_us <= as_of_us for at in newer], dtype=bool),
        )

    def dates(self, ordinal: int) -> tuple[ResolvedDate, ...]:
        """Resolved dates of an event; of a live one they are found when first asked for."""
        event = self.events[ordinal]
        if event.episode_id is not None:
            return event.dates
        found = self._buffered_dates.get(ordinal)
        if found is None:
            found = resolve_dates(event.text, event.time_us, event.utc_offset_minutes)
            self._buffered_dates[ordinal] = found
        return found

    def meets(self, conditions: Sequence[TimeCondition]) -> NDArray[np.bool_]:
        """Which events were said at, or speak of, a time that meets one of the conditions."""
        if self._unread_dates:
            self._read_dates()
        said = self.local_us.values
        found = np.zeros(len(self), dtype=bool)
        ordinals, starts, ends = self._spoken_spans
        for condition in conditions:
            found |= (said >= condition.start_us) & (said < condition.end_us)
            found[ordinals[(starts < condition.end_us) & (ends > condition.start_us)]] = True
        return found

    def _read_dates(self) -> None:
        """Find out of what times the events speak whose dates were not looked at yet."""
        for ordinal in self._unread_dates:
            self._spoken[ordinal] = [span for date in self.dates(ordinal) if (span := _date_span(date)) is not None]
        self._unread_dates.clear()
        rows = [(ordinal, start, end) for ordinal, spans in self._spoken.items() for start, end in spans]
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        self._spoken_spans = (table[:, 0], table[:, 1], table[:, 2])

    def parts(self) -> Parts:
        """All events in parts of at most `PART_EVENTS`: of a topic's archive, or of what has no topic.

        Events of a topic, and loose ones (live buffers, episodes without a topic) session by
        session, are taken in event-time order and cut into parts of nearly equal size.
        """
        if self._parts is None:
            topic_of = self.topic_of.values
            group = np.where(topic_of >= 0, topic_of, len(self.topics) + self.session_of.values)
            order = np.lexsort((np.arange(len(self)), self.times_us.values, group))
            _, starts, sizes = np.unique(group[order], return_index=True, return_counts=True)
            within = np.arange(len(self)) - np.repeat(starts, sizes)
            pieces = -(-sizes // PART_EVENTS)
            piece = within * np.repeat(pieces, sizes) // np.repeat(sizes, sizes)
            part = np.repeat(np.cumsum(pieces) - pieces, sizes) + piece
            part_of = np.empty(len(self), dtype=np.int64)
            part_of[order] = part
            topic_of_part = np.empty(int(pieces.sum()), dtype=np.int64)
            topic_of_part[part_of] = topic_of
            self._parts = Parts(part_of, topic_of_part)
        return self._parts

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.seq in self._ordinals:
                continue
            ordinal = self.lexical.add(terms(" ".join((event.text, *event.captions))))
            self._ordinals[event.seq] = ordinal
            self.events.append(event)
            self.refs.append(str(event.seq))
            self.times_us.append(event.time_us)
            self.local_us.append(event.time_us + (event.utc_offset_minutes or 0) * _MINUTE_US)
            self._unread_dates.add(ordinal)
            self.topic_of.append(-1)
            speaker = self._speaker_ordinals.setdefault(event.speaker, len(self.speakers))
            if speaker == len(self.speakers):
                self.speakers.append(event.speaker)
            self.speaker_of.append(speaker)
            self.recalled.append(event.origin == Origin.RECALLED)
            self.questions.append(event.text.rstrip().endswith(_QUESTION_ENDS))
            self._link(event, ordinal)

    def _link(self, event: Event, ordinal: int) -> None:
        """Put an event between its neighbours of the session, by event time."""
        self.previous.append(-1)
        self.next.append(-1)
        at = self._session_ordinals.setdefault(event.session_id, len(self._sessions))
        if at == len(self._sessions):
            self._sessions.append([])
        self.session_of.append(at)
        session = self._sessions[at]
        place = (event.time_us, event.seq, ordinal)
        insort(session, place)
        at = bisect_left(session, place)
        if at > 0:
            self._join(session[at - 1], place)
        if at + 1 < len(session):
            self._join(place, session[at + 1])

    def _join(self, first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
        near = second[0] - first[0] <= NEIGHBOUR_GAP_US
        self.next.values[first[2]] = second[2] if near else -1
        self.previous.values[second[2]] = first[2] if near else -1

    def _forget_topics(self) -> None:
        """Stand as if no episode had been met yet: all of them are met again, with the topics that they have now."""
        self.topics = []
        self.topic_ordinals = {}
        self.topic_lexical = LexicalIndex()
        self.topic_of.values[:] = -1
        self.related = []
        self.episodes = {}

    def _reload_graphs(self, reader: GraphReader) -> None:
        new_episodes = [episode for episode in reader.episodes(self.user) if episode.id not in self.episodes]
        topics = reader.topics(self.user)
        relations = reader.topic_relations(self.user)
        archived = [seq for episode in new_episodes for seq in episode.seqs]
        for event in reader.events(self.user, seqs=archived) if archived else ():
            ordinal = self._ordinals.get(event.seq)
            if ordinal is None:
                self._add([event])
                continue
            self.events[ordinal] = event
            self._unread_dates.add(ordinal)
            self._buffered_dates.pop(ordinal, None)
        self.episodes.update((episode.id, episode) for episode in new_episodes)
        for topic in topics:
            self._take_topic(topic)
        self._relate(relations)

    def _take_topic(self, topic: Topic) -> None:
        at = self.topic_ordinals.get(topic.id)
        if at is not None:
            self.topics[at] = topic  # it may be superseded by now
            return
        episode = self.episodes.get(topic.episode_id)
        if episode is None:
            return  # committed after the episodes were read; the version tells the next refresh
        at = self.topic_ordinals[topic.id] = self.topic_lexical.add(terms(" ".join((topic.summary, *topic.keywords))))
        self.topics.append(topic)
        self.topic_of.values[[self._ordinals[seq] for seq in episode.seqs]] = at

    def _relate(self, relations: Iterable[TopicRelation]) -> None:
        self.related = [[] for _ in self.topics]
        for relation in relations:
            source = self.topic_ordinals.get(relation.source_id)
            target = self.topic_ordinals.get(relation.target_id)
            if source is not None and target is not None:
                self.related[source].append((target, relation.type, relation.confidence))
                self.related[target].append((source, relation.type, relation.confidence))


def _date_span(date: ResolvedDate) -> tuple[int, int] | None:
    try:
        return day_us(datetime.date.fromisoformat(date.start)), day_us(datetime.date.fromisoformat(date.end)) + DAY_US
    except ValueError:  # an LLM's date that is none says nothing of time
        return None
