"""The slow path: claims tasks, thinks outside every transaction, hands proposals back.

A worker changes nothing itself. It reads beside the shard, so a slow or dying worker
costs time and nothing else; what it did is done again by the next one.
"""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..memory import consolidation
from ..memory.consolidation import Draft, KnownTopics, Segment
from ..memory.errors import LeaseLost, Retryable
from ..memory.model import Event, Layer, User
from ..memory.ports import BoundaryDetector, Embedder, Reader, RelationScorer, Summarizer, Vectors
from ..memory.proposal import Proposal
from ..memory.writes import LeasedTask, TaskRow


class TaskSource(Protocol):
    """What a worker needs of a shard."""

    @property
    def partition(self) -> int: ...

    def claim(self, limit: int) -> list[LeasedTask]: ...

    def submit(self, proposals: Sequence[Proposal]) -> list[LeaseLost | None]: ...

    def fail(self, task_id: str, token: str, error: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Models:
    """What a worker thinks with."""

    embedder: Embedder
    detector: BoundaryDetector
    summarizer: Summarizer
    scorer: RelationScorer


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What one round of a worker did."""

    applied: int = 0
    failed: int = 0
    lost: int = 0


class Worker:
    """Works on the tasks of any partition. Not thread-safe: one thread each.

    Args:
        models: what it thinks with.
        group: tasks claimed, embedded and applied together.
        known_users: users whose topics are remembered between their tasks.
    """

    def __init__(self, models: Models, group: int = 32, known_users: int = 256) -> None:
        self._models = models
        self._group = group
        self._topics = TopicMemory(known_users)

    def work(self, shard: TaskSource, reader: Reader) -> WorkDone:
        """Claim a group of tasks, propose, submit; return what became of them."""
        leased = shard.claim(self._group)
        if not leased:
            return WorkDone()
        with reader.snapshot():  # one read of the store, over before anything is thought
            read = [(lease, *self._read(lease.task, reader)) for lease in leased]
        thought: list[tuple[LeasedTask, list[Segment], list[Draft | None], KnownTopics]] = []
        failed = 0
        for lease, events, event_vectors, known in read:
            try:
                segments = consolidation.split(lease.task, events, event_vectors, self._models.detector)
                drafts = [consolidation.draft(segment, self._models.summarizer) for segment in segments]
                thought.append((lease, segments, drafts, known))
            except Exception as error:  # noqa: BLE001 - the top of the worker's loop: recorded with the task
                failed += self._give_back(shard, lease, error)
        texts = [consolidation.topic_text(draft.notes) for _, _, drafts, _ in thought for draft in drafts if draft]
        try:
            vectors = self._models.embedder.embed(texts)
        except Retryable:
            raise  # nobody's fault: the leases run out, the tasks come again
        except Exception as error:  # noqa: BLE001 - as above
            return WorkDone(failed=failed + sum(self._give_back(shard, lease, error) for lease, *_ in thought))
        proposals: list[Proposal] = []
        taken = 0
        for lease, segments, drafts, known in thought:
            topics = sum(draft is not None for draft in drafts)
            try:
                proposals.append(
                    consolidation.propose(
                        lease.task,
                        lease.token,
                        segments,
                        drafts,
                        vectors[taken : taken + topics],
                        known,
                        self._models.scorer,
                    )
                )
            except Exception as error:  # noqa: BLE001 - as above
                failed += self._give_back(shard, lease, error)
            taken += topics
        outcomes = shard.submit(proposals)
        lost = sum(outcome is not None for outcome in outcomes)
        return WorkDone(len(outcomes) - lost, failed, lost)

    def _read(self, task: TaskRow, reader: Reader) -> tuple[list[Event], Vectors, KnownTopics]:
        return (
            reader.events(task.user, seqs=task.seqs),
            reader.vectors(task.user, Layer.EVENT, [str(seq) for seq in task.seqs]),
            self._topics.known(task.user, reader),
        )

    @staticmethod
    def _give_back(shard: TaskSource, lease: LeasedTask, error: Exception) -> int:
        where = traceback.extract_tb(error.__traceback__)[-1]
        try:
            shard.fail(
                lease.task.id, lease.token, f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
            )
        except LeaseLost:
            return 0
        return 1


class TopicMemory:
    """The topics of recently served users, read again only when they have changed."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[User, tuple[tuple[int, int] | None, KnownTopics]] = OrderedDict()

    def known(self, user: User, reader: Reader) -> KnownTopics:
        """Return the user's stored topics with their vectors."""
        version = reader.version(user)
        applied = version and (0, version[1])  # topics change only when a task is applied
        held = self._held.get(user)
        if held is None or held[0] != applied:
            held = (applied, self._read(user, reader, held[1] if held else None))
            self._held[user] = held
        self._held.move_to_end(user)
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)
        return held[1]

    @staticmethod
    def _read(user: User, reader: Reader, before: KnownTopics | None) -> KnownTopics:
        topics = reader.topics(user)
        stored: dict[str, Vectors] = {}
        if before is not None:
            stored = {topic.id: vector for topic, vector in zip(before.topics, before.vectors, strict=True)}
        new = [topic.id for topic in topics if topic.id not in stored]
        if new:
            stored.update(zip(new, reader.vectors(user, Layer.TOPIC, new), strict=True))
        vectors = np.stack([stored[topic.id] for topic in topics]) if topics else np.zeros((0, 0), dtype=np.float32)
        return KnownTopics(topics, vectors)
