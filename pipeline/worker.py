"""The slow path: claims tasks, thinks outside every transaction, hands proposals back.

A worker changes nothing itself. It reads beside the shard, so a slow or dying worker
costs time and nothing else; what it did is done again by the next one.
"""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ..memory import consolidation
from ..memory.chat import ModelCall
from ..memory.consolidation import Draft, KnownTopics, Segment
from ..memory.errors import LeaseLost, Retryable
from ..memory.model import User
from ..memory.ports import BoundaryDetector, Embedder, Reader, RelationScorer, Summarizer
from ..memory.proposal import Proposal
from ..memory.writes import LeasedTask, LoggedTopics
from .asking import Asker


class TaskSource(Protocol):
    """What a worker needs of a shard."""

    @property
    def partition(self) -> int: ...

    def claim(self, limit: int, barred: Container[str] = ()) -> list[LeasedTask]:
        """Lease tasks, none of the barred tenants."""
        ...

    def submit(self, proposals: Sequence[Proposal]) -> list[LeaseLost | None]: ...

    def fail(self, task_id: str, token: str, error: str, *, parks: bool = False) -> None:
        """Give a task back that could not be done; it is parked at once, or after its last attempt."""
        ...

    def release(self, task_id: str, token: str, reason: str) -> None:
        """Give a task back that could not be done now: the attempt does not count."""
        ...

    def remember(self, task_id: str, token: str, calls: Sequence[ModelCall]) -> None:
        """Record calls of a chat model and the answers that were taken."""
        ...


@dataclass(frozen=True, slots=True)
class Models:
    """What a worker thinks with."""

    embedder: Embedder
    detector: BoundaryDetector
    summarizer: Summarizer
    scorer: RelationScorer


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What one round of a worker did; `begun` tasks are still thought about."""

    applied: int = 0
    failed: int = 0
    lost: int = 0
    begun: int = 0

    def __bool__(self) -> bool:
        """Whether there was anything to do that the worker could do."""
        return bool(self.applied or self.failed or self.begun)


class SlowPath(Protocol):
    """A worker, as whoever drives it sees it."""

    def in_hand(self) -> list[int]:
        """The partitions that it has claimed tasks of and could not work on."""
        ...

    def obstacle(self) -> str:
        """What stands in the way of all tasks, empty if nothing does."""
        ...

    def setbacks(self) -> int:
        """Rises each time that the obstacle was met again; 0 without one."""
        ...

    def work(self, shard: TaskSource, reader: Reader) -> WorkDone:
        """Claim tasks of a partition and work on them.

        Raises:
            Retryable: the store or the embedder is away; call it again.
        """
        ...

    def rest(self, seconds: float) -> None:
        """When no partition had anything to do: wait while tasks are in flight or the model is away, at most so long."""
        ...

    def asker(self, port: str) -> Asker | None:
        """Who asks the chat model of a port (`chat_config.PORTS`); None where rules serve it."""
        ...

    def close(self) -> None:
        """End; tasks in flight go back to their shards."""
        ...


class Worker:
    """Works on the tasks of any partition. Not thread-safe: one thread each.

    What it could not read or embed, since the store or the embedder was away, stays in its
    hands for the next round: else nobody would work on it until its lease has run out.

    Args:
        models: what it thinks with.
        group: tasks claimed, embedded and applied together.
        known_topics: topics remembered between their users' tasks; one takes some 4 KB.
    """

    def __init__(self, models: Models, group: int = 32, known_topics: int = 16384) -> None:
        self._models = models
        self._group = group
        self._topics = TopicMemory(known_topics)
        self._in_hand: dict[int, list[LeasedTask]] = {}

    def in_hand(self) -> list[int]:
        """The partitions that it has claimed tasks of and could not work on."""
        return list(self._in_hand)

    def obstacle(self) -> str:
        """Rules are never away."""
        return ""

    def setbacks(self) -> int:
        """None."""
        return 0

    def asker(self, port: str) -> Asker | None:
        """Nobody."""
        return None

    def rest(self, seconds: float) -> None:
        """Nothing is in flight."""

    def close(self) -> None:
        """Nothing is held."""

    def work(self, shard: TaskSource, reader: Reader) -> WorkDone:
        """Claim a group of tasks, propose, submit; return what became of them.

        Raises:
            Retryable: the store or the embedder is away; the next call goes on with the same tasks.
        """
        leased = self._in_hand.pop(shard.partition, None) or shard.claim(self._group)
        if not leased:
            return WorkDone()
        try:
            proposals, failed = self._think(leased, shard, reader)
        except Retryable:
            self._in_hand[shard.partition] = leased
            raise
        outcomes = shard.submit(proposals) if proposals else []
        lost = sum(outcome is not None for outcome in outcomes)
        return WorkDone(len(outcomes) - lost, failed, lost)

    def _think(self, leased: Sequence[LeasedTask], shard: TaskSource, reader: Reader) -> tuple[list[Proposal], int]:
        """The tasks' proposals, and how many were given back."""
        with reader.snapshot():  # one read of the store, over before anything is thought
            turns = reader.turns([(lease.task.user, lease.task.seqs) for lease in leased])
            topics_of = self._topics.known([lease.task.user for lease in leased], reader)
        thought: list[tuple[LeasedTask, list[Segment], list[Draft | None], KnownTopics]] = []
        failed = 0
        for lease, (events, event_vectors) in zip(leased, turns, strict=True):
            try:
                segments = consolidation.split(lease.task, events, event_vectors, self._models.detector)
                drafts = [consolidation.draft(segment, self._models.summarizer) for segment in segments]
                thought.append((lease, segments, drafts, topics_of[lease.task.user]))
            except Exception as error:  # noqa: BLE001 - the top of the worker's loop: recorded with the task
                failed += self._give_back(shard, lease, error)
        texts = [consolidation.topic_text(draft.notes) for _, _, drafts, _ in thought for draft in drafts if draft]
        try:
            vectors = self._models.embedder.embed(texts)
        except Retryable:
            raise  # nobody's fault
        except Exception as error:  # noqa: BLE001 - as above
            return [], failed + sum(self._give_back(shard, lease, error) for lease, *_ in thought)
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
        return proposals, failed

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


def rotated(partitions: Sequence[int], rounds: int) -> list[int]:
    """The same partitions from another one on each round: who has little room gives it to each in turn."""
    first = rounds % len(partitions) if partitions else 0
    return [*partitions[first:], *partitions[:first]]


class TopicMemory:
    """The topics of recently served users: only what the log has gained since is read.

    Args:
        capacity: topics held, over all users; who was served longest ago is forgotten first.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[User, tuple[int, KnownTopics]] = OrderedDict()
        self._count = 0

    def known(self, users: Sequence[User], reader: Reader) -> dict[User, KnownTopics]:
        """Return these users' stored topics with their vectors, by time."""
        logged = reader.topics_logged({user: self._held.get(user, _NOTHING)[0] for user in users})
        found = {}
        for user in users:
            last, topics = self._held.get(user, _NOTHING)
            if user in logged:
                self._count -= len(topics.topics)
                last, topics = logged[user].log_seq, _joined(topics, logged[user])
                self._count += len(topics.topics)
            if topics.topics:
                self._held[user] = (last, topics)
                self._held.move_to_end(user)
            found[user] = topics
        while self._count > self._capacity:
            _, (_, forgotten) = self._held.popitem(last=False)
            self._count -= len(forgotten.topics)
        return found


_NOTHING = (0, KnownTopics((), np.zeros((0, 0), dtype=np.float32)))


def _joined(known: KnownTopics, logged: LoggedTopics) -> KnownTopics:
    """Topics held and new ones, by time."""
    before, vectors = known.topics, known.vectors
    anew = {topic.id for topic in logged.topics}
    kept = [at for at, topic in enumerate(before) if topic.id not in anew]
    if len(kept) < len(before):
        before, vectors = [before[at] for at in kept], vectors[kept]
    if logged.superseded:
        before = [
            replace(topic, superseded_by=logged.superseded.get(topic.id, topic.superseded_by)) for topic in before
        ]
    topics = [*before, *logged.topics]
    vectors = np.concatenate((vectors, logged.vectors)) if before else logged.vectors
    by_time = [(topic.first_us, topic.last_us, topic.id) for topic in topics]
    order = sorted(range(len(topics)), key=by_time.__getitem__)
    if order != list(range(len(topics))):
        topics, vectors = [topics[at] for at in order], vectors[order]
    return KnownTopics(topics, vectors)
