"""What the tests of every store write, and how one is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from raygam.memory.model import Episode, Event, EventRelation, Relationship, ResolvedDate, Topic, User
from raygam.memory.ports import Reader, Store, Writer
from raygam.memory.progression import Progress
from raygam.memory.writes import (
    ArchivedEvent,
    ClosedEpisode,
    LeasedTask,
    MessageKind,
    OutboxMessage,
    StateFacts,
    TaskRow,
    UserRow,
    WriteSet,
)

FACTS = StateFacts(partitions=2, partitioner="murmur2", embedder="stub", dimension=4, template=1)
ANNA = User("default", "anna")
BEN = User("default", "ben")
UPDATE, LETTER = MessageKind.UPDATE, MessageKind.DEAD_LETTER


@dataclass(frozen=True)
class Factory:
    """How a store is made: both functions open the same state at each call."""

    create_or_open: Callable[[StateFacts], Store]
    open_read_only: Callable[[], Store]
    code: str
    """The same as Python source that binds `store`, for a process that is going to be killed."""


def turn(seq: int, user: User = ANNA, **changes: Any) -> Event:
    return Event(user, seq, f"m{seq}", "s", "Anna", "user", f"text {seq}", 1000 * seq, tokens=3)._replace(**changes)


def vector(*values: float) -> Any:
    made = np.array(values, np.float32)
    return made / np.linalg.norm(made)


def vectors(count: int) -> Any:
    return np.stack([vector(1, at, at * at, -1) for at in range(count)]) if count else None


def turns(*events: Event, **more: Any) -> WriteSet:
    return WriteSet(events=list(events), vectors=vectors(len(events)), **more)


def task(name: str, user: User = ANNA, *, seqs: tuple[int, ...] = (1, 2), at: int = 2, **changes: Any) -> TaskRow:
    made = TaskRow(
        name,
        user,
        "s",
        "pause",
        closes_tail=False,
        force=True,
        seqs=seqs,
        position_seq=at,
        ordinal=0,
        archived_until_us=None,
    )
    return replace(made, **changes)


def topic(name: str, episode: str, **changes: Any) -> Topic:
    made = Topic(
        *(name, ANNA, episode, "Sails — 帆", ("boat", "harbour"), ("Maria",)),
        *((ResolvedDate("yesterday", "2023-05-07", "2023-05-07"),), 1000, 2000, 0.9, "extractive/1"),
        label="A boat — 船",
        facts=("Maria sails.", "Łódź has a harbour."),
        relationships=(Relationship("Maria", "owns", "the boat"), Relationship("the boat", "lies in", "Łódź")),
    )
    return replace(made, **changes)


def closed(
    name: str, task_id: str, *seqs: int, ordinal: int = 0, made: Topic | None = None, **more: Any
) -> ClosedEpisode:
    episode = Episode(name, ANNA, "s", seqs, 1000 * seqs[0], 1000 * seqs[-1], "pause", "tiling/1", 0.7, "a gap")
    archived = [
        ArchivedEvent(ANNA, seq, name, (ResolvedDate("today", "2023-05-08", "2023-05-08"),), ("Maria", "Łódź"))
        for seq in seqs
    ]
    relations = tuple(EventRelation(one, other, "temporal", 0.5) for one, other in pairwise(seqs))
    given = None if made is None else vector(0, 1, 0, 0)
    return ClosedEpisode(episode, task_id, ordinal, archived, relations, made, given, **more)


def leased(made: TaskRow, token: str = "t1") -> LeasedTask:
    return LeasedTask(made, token, 5_000_000)


def message(name: str, value: bytes = b"{}", **changes: Any) -> OutboxMessage:
    return replace(OutboxMessage(UPDATE, name, b"7:default:anna", (("id", name), ("why", "ü\n")), value), **changes)


def everything(reader: Reader, *users: User) -> list[object]:
    """All that a reader can see, to compare before and after."""
    seen: list[object] = [reader.partition_info(), list(reader.users()), list(reader.letters()), reader.tasks()]
    seen += [reader.messages(kind, 1000, 1 << 20) for kind in MessageKind]
    seen += [reader.model_usage(), reader.answers([made.id for made in reader.tasks()])]
    for user in users or (ANNA, BEN):
        entries = reader.entries(user)
        seen += [reader.events(user), reader.episodes(user), reader.topics(user), reader.topic_relations(user)]
        seen += [reader.event_relations(user), entries.seqs.tolist(), entries.refs, entries.vectors.tolist()]
    return seen


def archived_state(writer: Writer) -> None:
    """Four turns of Anna; the first two in an episode with a topic."""
    writer.commit(turns(turn(1), turn(2), turn(3), turn(4), tasks=[task("task-1")], users=[UserRow(ANNA, Progress())]))
    writer.commit(WriteSet(leases=[leased(task("task-1"))]))
    made = closed("episode-1", "task-1", 1, 2, made=topic("topic-1", "episode-1"))
    writer.commit(WriteSet(finished=[("task-1", "t1")], closed=[made]))
