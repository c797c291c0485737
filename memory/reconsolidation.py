"""Topics made anew from the archives: what a user's network would be by another model, and how that differs.

Archives stay as they are. Tasks are gone through in the order in which they were applied, so that each
new topic meets as candidates the ones that were there when its episode closed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .consolidation import KnownTopics
from .model import Episode, Event, Topic, TopicRelation, User
from .proposal import ProposedTopic
from .shadow import Shadow

CONFIDENCE_STEP = 0.001
"""A confidence that differs by less is the same: vectors are stored with 11 bits, and models add up in any order."""

Vectors = NDArray[np.float32]

_SAID_BY_TOPIC = ("label", "summary", "keywords", "entities", "dates", "facts", "relationships")


def as_heard(event: Event) -> Event:
    """The event without what an earlier model found in it."""
    return event._replace(episode_id=None, dates=(), entities=())


class Network:
    """The topics of a user as they are made, task by task, each as the ledger would hold it.

    Args:
        user: the owner.
        dimension: of the vectors.
    """

    def __init__(self, user: User, dimension: int) -> None:
        self._user = user
        self._topics: dict[str, Topic] = {}
        self._relations: list[TopicRelation] = []
        self._order: list[tuple[int, int, str]] = []
        self._rows: Vectors = np.empty((64, dimension), np.float32)

    def known(self) -> KnownTopics:
        """What there is by now, by time."""
        return KnownTopics([self._topics[id_] for *_, id_ in self._order], self._rows[: len(self._order)])

    def add(self, topics: Sequence[tuple[Topic, ProposedTopic]]) -> None:
        """Take over the topics of one task, with their relations and what they make past."""
        for topic, proposed in topics:
            self._topics[topic.id] = topic
            self._place(topic, proposed.vector.astype(np.float16).astype(np.float32))  # as it will be read back
        for topic, proposed in topics:
            self._relations += proposed.relations
            for older in proposed.supersedes:
                self._topics[older] = replace(self._topics[older], superseded_by=topic.id)

    def shadow(self, label: str, episodes: int) -> Shadow:
        """All of it, by time."""
        known = self.known()
        return Shadow(self._user, label, episodes, tuple(known.topics), known.vectors.copy(), tuple(self._relations))

    def _place(self, topic: Topic, vector: Vectors) -> None:
        place = (topic.first_us, topic.last_us, topic.id)
        count = len(self._order)
        if count == len(self._rows):
            self._rows = np.concatenate((self._rows, np.empty_like(self._rows)))
        at = bisect_right(self._order, place)
        if at < count:  # told late
            self._rows[at + 1 : count + 1] = self._rows[at:count].copy()
        self._order.insert(at, place)
        self._rows[at] = vector


@dataclass(frozen=True, slots=True)
class TopicChange:
    """One episode's topic, before and after; at least one of the two is there.

    Attributes:
        episode: the archive that both lead to.
        fields: in what they differ, where both are there.
    """

    episode: Episode
    before: Topic | None
    after: Topic | None
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RelationChange:
    """The relation between the topics of two episodes, before and after; at least one of the two is there."""

    source_episode: str
    target_episode: str
    before: TopicRelation | None
    after: TopicRelation | None


@dataclass(frozen=True, slots=True)
class Difference:
    """What a switch would change; topics go by their episodes, by time.

    Attributes:
        topics: that are added, gone or changed.
        relations: likewise.
        before: how many topics and relations there are now.
        after: how many there would be.
    """

    topics: tuple[TopicChange, ...]
    relations: tuple[RelationChange, ...]
    before: tuple[int, int]
    after: tuple[int, int]


def difference(
    episodes: Sequence[Episode],
    topics: Sequence[Topic],
    relations: Sequence[TopicRelation],
    shadow: Shadow,
) -> Difference:
    """Compare what there is with a shadow of the same user."""
    before = {topic.episode_id: topic for topic in topics}
    after = {topic.episode_id: topic for topic in shadow.topics}
    lead = {topic.id: topic.episode_id for topic in (*topics, *shadow.topics)}
    changed = []
    for episode in episodes:
        old, new = before.get(episode.id), after.get(episode.id)
        if old is not None and new is not None:
            fields = _differing(old, new, lead)
            if fields:
                changed.append(TopicChange(episode, old, new, fields))
        elif old is not None or new is not None:
            changed.append(TopicChange(episode, old, new))
    return Difference(
        tuple(changed),
        tuple(_relation_changes(_by_ends(relations, lead), _by_ends(shadow.relations, lead))),
        (len(topics), len(relations)),
        (len(shadow.topics), len(shadow.relations)),
    )


def _differing(old: Topic, new: Topic, lead: Mapping[str, str]) -> tuple[str, ...]:
    fields = [name for name in _SAID_BY_TOPIC if getattr(old, name) != getattr(new, name)]
    if abs(old.confidence - new.confidence) >= CONFIDENCE_STEP:
        fields.append("confidence")
    past = [None if topic.superseded_by is None else lead[topic.superseded_by] for topic in (old, new)]
    return (*fields, "superseded_by") if past[0] != past[1] else tuple(fields)


def _by_ends(relations: Sequence[TopicRelation], lead: Mapping[str, str]) -> dict[tuple[str, str], TopicRelation]:
    """Relations by the episodes of their ends; a topic judges another once, so there is one."""
    return {(lead[held.source_id], lead[held.target_id]): held for held in relations}


def _relation_changes(
    before: Mapping[tuple[str, str], TopicRelation], after: Mapping[tuple[str, str], TopicRelation]
) -> list[RelationChange]:
    changes = []
    for ends in sorted(before.keys() | after.keys()):
        old, new = before.get(ends), after.get(ends)
        if old is not None and new is not None:
            same = old.type == new.type and abs(old.confidence - new.confidence) < CONFIDENCE_STEP
            if same:
                continue
        changes.append(RelationChange(*ends, old, new))
    return changes
