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
        self.gone: list[tuple[int, User, str]] = []

    def topics_logged(self, after: Mapping[User, int]) -> dict[User, LoggedTopics]:
        self.asked.append(dict(after))
        found = {}
        for user, last in after.items():
            new = [(at, made) for at, made in enumerate(self.entries, 1) if made.user == user and at > last]
            gone = [(at, id_) for at, owner, id_ in self.gone if owner == user and at > last] if last else []
            if new or gone:
                topics = [replace(made, superseded_by=self.by.get(made.id)) for _, made in new]
                ids = {made.id for made in topics}
                found[user] = LoggedTopics(
                    max(at for at, _ in (*new, *gone)),
                    topics,
                    np.array([[at] for at, _ in new], np.float32).reshape(-1, 1),
                    {old: newer for old, newer in self.by.items() if newer in ids},
                    frozenset(id_ for _, id_ in gone),
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


def test_topics_that_are_gone_are_forgotten() -> None:
    """A rebuild while the worker lives: its partition was another engine's in between."""
    log, memory = Log(), TopicMemory(3)
    log.entries += [topic(ANNA, "a", 1), topic(ANNA, "b", 2), topic(BEN, "c", 3)]
    told(memory, log, ANNA, BEN)
    log.gone += [(4, ANNA, "a"), (5, ANNA, "b")]
    log.entries += [topic(BEN, "d", 4), topic(BEN, "e", 5), topic(ANNA, "new", 6)]
    log.entries[0] = log.entries[1] = topic(User("t", "nobody"), "x", 0)
    assert told(memory, log, ANNA, BEN) == told(TopicMemory(100), log, ANNA, BEN)
    held, vectors = told(memory, log, ANNA)[ANNA]
    assert [made.id for made in held] == ["new"]
    assert vectors == [[6.0]]
    log.gone.append((7, ANNA, "new"))
    log.entries[5] = topic(User("t", "nobody"), "x", 0)
    assert told(memory, log, ANNA) == {ANNA: ([], [])}
