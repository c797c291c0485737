"""A worker's memory of topics: it reads what is new, and says what a fresh read would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from raygam.memory.model import Topic, User
from raygam.memory.ports import Reader
from raygam.memory.writes import LoggedTopics
from raygam.pipeline.worker import TopicMemory

ANNA, BEN = User("t", "anna"), User("t", "ben")


def topic(user: User, name: str, at_us: int) -> Topic:
    return Topic(name, user, f"e-{name}", name, (), (), (), at_us, at_us, 0.5, "m")


class Log:
    """Stands in for a reader: a log of topics, the vector of each its number."""

    def __init__(self) -> None:
        self.entries: list[Topic] = []
        self.asked: list[dict[User, int]] = []
        self.by: dict[str, str] = {}

    def topics_logged(self, after: Mapping[User, int]) -> dict[User, LoggedTopics]:
        self.asked.append(dict(after))
        found = {}
        for user, last in after.items():
            new = [(at, made) for at, made in enumerate(self.entries, 1) if made.user == user and at > last]
            if new:
                topics = [replace(made, superseded_by=self.by.get(made.id)) for _, made in new]
                ids = {made.id for made in topics}
                found[user] = LoggedTopics(
                    new[-1][0],
                    topics,
                    np.array([[at] for at, _ in new], np.float32),
                    {old: newer for old, newer in self.by.items() if newer in ids},
                )
        return found


def told(memory: TopicMemory, log: Log, *users: User) -> dict[User, Any]:
    known = memory.known(users, cast(Reader, log))
    return {user: (list(topics.topics), topics.vectors.tolist()) for user, topics in known.items()}


def test_only_what_is_new_is_read_and_a_late_topic_takes_its_place() -> None:
    log, memory = Log(), TopicMemory(100)
    assert told(memory, log, ANNA) == {ANNA: ([], [])}
    log.entries += [topic(ANNA, "a", 10), topic(BEN, "b", 5), topic(ANNA, "c", 30)]
    told(memory, log, ANNA, BEN)
    log.entries.append(topic(ANNA, "late", 20))
    log.by["a"] = "late"
    assert told(memory, log, ANNA, BEN) == told(TopicMemory(100), log, ANNA, BEN)
    assert log.asked[-2] == {ANNA: 3, BEN: 2}
    held, vectors = told(memory, log, ANNA)[ANNA]
    assert [(made.id, made.superseded_by) for made in held] == [("a", "late"), ("late", None), ("c", None)]
    assert vectors == [[1.0], [4.0], [3.0]]


def test_it_holds_no_more_than_its_capacity() -> None:
    log, memory = Log(), TopicMemory(2)
    log.entries += [topic(ANNA, "a", 1), topic(ANNA, "b", 2), topic(BEN, "c", 3)]
    assert told(memory, log, ANNA, BEN) == told(TopicMemory(100), log, ANNA, BEN)
    told(memory, log, ANNA, BEN)
    assert log.asked[-1] == {ANNA: 0, BEN: 3}  # who was served first is forgotten


def test_topics_made_anew_take_the_place_of_the_old_ones() -> None:
    """A rebuild while the worker lives: its partition was another engine's in between."""
    log, memory = Log(), TopicMemory(4)
    log.entries += [topic(ANNA, "a", 1), topic(ANNA, "b", 2), topic(BEN, "c", 3)]
    told(memory, log, ANNA, BEN)
    nobody = topic(User("t", "nobody"), "x", 0)
    log.entries[:2] = [nobody, nobody]
    log.entries += [replace(topic(ANNA, "b", 2), summary="anew"), replace(topic(ANNA, "a", 1), summary="anew")]
    assert told(memory, log, ANNA, BEN) == told(TopicMemory(100), log, ANNA, BEN)
    held, vectors = told(memory, log, ANNA)[ANNA]
    assert [(made.id, made.summary) for made in held] == [("a", "anew"), ("b", "anew")]
    assert vectors == [[5.0], [4.0]]
    assert memory._count == 3
