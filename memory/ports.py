"""The seams: what the domain and the pipeline ask of the outside.

Each port is a small Protocol; `tests/contract` holds one suite per port that
every adapter passes. Embeddings are float32, L2-normalised, shape
`(n, dimension)`, unless a docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .chat import ChatAnswer, ChatRequest, Prompt
from .model import Cut, Episode, Event, EventRelation, Layer, Topic, TopicRelation, User
from .proposal import Candidate, ScoredRelation, SegmentNotes
from .shadow import Consolidated, Shadow, Standing
from .writes import (
    DeadLetter,
    LoggedTopics,
    ModelUsage,
    OutboxMessage,
    PartitionInfo,
    SourcePosition,
    StateFacts,
    StoredLetter,
    StoredUser,
    TaskRow,
    UserRow,
    VectorEntries,
    WriteSet,
)

Vectors = NDArray[np.float32]
T = TypeVar("T")


class Embedder(Protocol):
    """Turns texts into vectors. Thread-safe; never called inside a transaction."""

    @property
    def name(self) -> str:
        """Model name as recorded with the state."""
        ...

    @property
    def dimension(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors `(len(texts), dimension)`."""
        ...


class BoundaryDetector(Protocol):
    """Finds where the topic changes (GAM, §3.1)."""

    @property
    def name(self) -> str: ...

    def boundaries(self, events: Sequence[Event], vectors: Vectors, *, force: bool) -> list[Cut]:
        """Return cuts in increasing order, `0 < index < len(events)`.

        Args:
            events: a buffer in event order.
            vectors: their embeddings, `(len(events), dimension)`.
            force: at least one cut is wanted (the deepest gap) if there are two events.
        """
        ...


class Summarizer(Protocol):
    """Writes the notes of one closed segment (GAM, §3.2)."""

    @property
    def name(self) -> str: ...

    def notes(self, events: Sequence[Event], vectors: Vectors) -> SegmentNotes:
        """Summarise events (none of them recalled), in their own language."""
        ...


class RelationScorer(Protocol):
    """Judges how a new topic relates to its candidates (GAM, §3.2)."""

    @property
    def name(self) -> str: ...

    def relations(self, topic: Candidate, candidates: Sequence[Candidate]) -> list[ScoredRelation]:
        """At most one relation per candidate; `unrelated` ones are left out."""
        ...


class ChatModel(Protocol):
    """A language model that is spoken to in messages. Thread-safe; never called inside a transaction."""

    @property
    def name(self) -> str:
        """Model name as recorded with what it says."""
        ...

    @property
    def context_tokens(self) -> int:
        """Tokens that a request and its answer may have together."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of a text by the model's own tokenizer; where it has none at hand, no less than that."""
        ...

    def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        """Call the model once.

        Raises:
            ModelAway: no answer within `seconds`, none at all, or the server has too much to do (429, 503).
            TooLong: request and answer do not fit its context.
            Rejected: it takes no such request.
            Refused: the server answers, and not to these settings (key, name of the model).
        """
        ...

    def close(self) -> None:
        """End; calls under way raise `ModelAway` at once."""
        ...


class Ask(Protocol):
    """A chat model as the domain asks it, for one task: repeats, reads, counts and remembers answers."""

    @property
    def model(self) -> str:
        """The model's name."""
        ...

    @property
    def context_tokens(self) -> int: ...

    def count_tokens(self, text: str) -> int: ...

    def __call__(self, prompt: Prompt[T]) -> T:
        """Return what the model says to a prompt, read by it.

        Raises:
            BadAnswer: no answer fitted the schema, after all retries.
            ModelAway, TooLong, Rejected, Refused: as `ChatModel.complete`.
        """
        ...


class VectorIndex(Protocol):
    """Exact inner-product search inside one user's block; other rows are never touched."""

    def applied_seq(self, user: User) -> int | None:
        """How much of the vector log the user's block holds; None if not resident."""
        ...

    def apply(self, user: User, entries: VectorEntries) -> None:
        """Carry log entries, in order, into the user's block, making it resident."""
        ...

    def search(self, user: User, layer: Layer, query: Vectors, k: int) -> tuple[list[str], Vectors]:
        """Best `k` references and their inner products for one query `(dimension,)`."""
        ...

    def similarities(self, user: User, layer: Layer, query: Vectors, refs: Sequence[str]) -> Vectors:
        """Inner products of one query with the named references, in their order."""
        ...

    def vectors(self, user: User, layer: Layer, refs: Sequence[str]) -> Vectors:
        """The stored vectors of the named references, in their order."""
        ...

    def evict(self, user: User) -> None: ...


class Ledger(Protocol):
    """The one writer of one partition. Not thread-safe; the shard serialises calls."""

    @property
    def partition(self) -> int: ...

    @property
    def epoch(self) -> int:
        """The epoch that this opening was given; a later opening fences it."""
        ...

    def commit(self, write: WriteSet) -> None:
        """Write everything in one transaction, or nothing.

        Raises:
            Fenced: a newer epoch has opened the partition.
            LeaseLost: a task of `write.finished` is not leased under its token.
            Retryable: the store is busy or full.
        """
        ...

    def counters(self) -> Mapping[str, int]:
        """Next free numbers: `seq` (events and commands) and `vector_seq`; none is given twice."""
        ...

    def positions(self) -> Mapping[str, SourcePosition]:
        """Every source's position in this partition, by source id."""
        ...

    def known_messages(self, keys: Sequence[tuple[User, str]]) -> set[tuple[User, str]]:
        """Those `(user, message_id)` pairs that are already stored."""
        ...

    def close(self) -> None: ...


class ShardReader(Protocol):
    """What the shard reads back of its own partition, on the writer's connection."""

    def load(self, users: Sequence[User], *, whole: bool = True) -> dict[User, StoredUser]:
        """Those of the users that are stored, whole or without their turns and commands.

        Raises:
            Fenced: a newer epoch has opened the partition, and these may be its writes.
        """
        ...

    def archived_until_us(self, user: User, session_id: str) -> int | None:
        """End of the session's latest archived episode, None if it has none.

        Episodes of turns that were set aside (`Trigger.AHEAD`) do not count.
        """
        ...

    def unfinished_tasks(self) -> list[TaskRow]:
        """Tasks that are open, leased or parked, by `(position_seq, ordinal)`."""
        ...

    def unsettled_users(self) -> list[User]:
        """Users with events in buffers, commands not counted, or unfinished tasks."""
        ...


class GraphReader(Protocol):
    """A user's graphs, read beside the writer from a snapshot. Thread-safe."""

    def version(self, user: User) -> tuple[int, int, int] | None:
        """`(last seq, tasks applied, rebuilds of all topics)` of the user, None if unknown; equal means unchanged."""
        ...

    def events(self, user: User, after_seq: int = 0, seqs: Sequence[int] | None = None) -> list[Event]:
        """Events with `seq > after_seq` by `seq`, or the named ones, in the order named."""
        ...

    def episodes(self, user: User) -> list[Episode]: ...

    def topics(self, user: User) -> list[Topic]: ...

    def topic_relations(self, user: User) -> list[TopicRelation]: ...

    def event_relations(self, user: User) -> list[EventRelation]: ...


class VectorLogReader(Protocol):
    """The ledger's numbered list of vectors added and removed."""

    def entries(self, user: User, after_seq: int = 0) -> VectorEntries:
        """The user's entries with a log number above `after_seq`, in order."""
        ...

    def vectors(self, user: User, layer: Layer, refs: Sequence[str]) -> Vectors:
        """The stored vectors of the named references, in their order (a join, no scan of the log).

        Raises:
            KeyError: a reference has no vector.
        """
        ...


class TaskReader(Protocol):
    """What the tasks of many users need, in few reads."""

    def turns(self, asked: Sequence[tuple[User, Sequence[int]]]) -> list[tuple[list[Event], Vectors]]:
        """For each user the events of these `seq`s and their vectors, in the order named.

        Raises:
            KeyError: the user has no such event.
        """
        ...

    def topics_logged(self, after: Mapping[User, int]) -> dict[User, LoggedTopics]:
        """Topics with a log number above what is named per user; a user without any is left out."""
        ...

    def answers(self, task_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """What chat models said for unfinished tasks, by task and `Prompt.key`; a task without any is left out."""
        ...

    def episode_turns(self, user: User, episode_ids: Sequence[str]) -> dict[str, tuple[list[Event], Vectors]]:
        """The events of these episodes of a user, in order, with their vectors; what does not exist is left out."""
        ...


class OperationsReader(Protocol):
    """What an operator looks at."""

    def position(self) -> int:
        """The latest `seq` of the partition: what a query may ask to see."""
        ...

    def users(self) -> Iterator[UserRow]: ...

    def partition_info(self) -> PartitionInfo: ...

    def tasks(self) -> list[TaskRow]:
        """Tasks that are open, leased or parked, by `(position_seq, ordinal)`."""
        ...

    def model_usage(self) -> list[ModelUsage]:
        """What chat models were asked, summed per user, model and prompt, in this order."""
        ...


class ShadowReader(Protocol):
    """What a user's topics are made anew from, and what was made so."""

    def standings(self) -> list[Standing]:
        """Every user of the partition that has episodes, in the order in which they came."""
        ...

    def archives(self, user: User) -> list[Consolidated]:
        """The user's episodes by task, in the order in which the tasks were applied."""
        ...

    def shadow(self, user: User) -> Shadow | None:
        """The user's shadow; None if there is none, or if it has been switched to."""
        ...


class LetterReader(Protocol):
    """Records that could not be taken."""

    def dead_letters(self) -> Iterator[DeadLetter]: ...

    def letters(self, after: int = 0) -> Iterator[StoredLetter]:
        """The same with their numbers, those above `after`, and whether they were replayed."""
        ...


class OutboxReader(Protocol):
    """What of a partition is still to be sent."""

    def messages(self, kind: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        """The first messages of a kind, in order, with their values.

        Args:
            kind: one of `MessageKind`.
            limit: at most so many.
            max_bytes: and with values of so many bytes together; the first one comes also where it has more.
        """
        ...

    def unsent(self) -> dict[str, int]:
        """How many messages there are, by kind; a kind without any is left out."""
        ...


class Writer(Ledger, ShardReader, OutboxReader, Protocol):
    """A partition opened for writing."""


class Reader(
    GraphReader, VectorLogReader, TaskReader, OperationsReader, ShadowReader, LetterReader, OutboxReader, Protocol
):
    """A partition opened for reading, beside its writer. Thread-safe."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Everything that this thread reads inside the block is of one moment."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """A state directory or database: partitions and the facts they were made with."""

    @property
    def facts(self) -> StateFacts: ...

    def writer(self, partition: int, opened_by: str = "") -> Writer:
        """Open for writing: bumps the epoch, so that an older writer is fenced.

        Args:
            partition: its number.
            opened_by: who opens it, for people.
        """
        ...

    def reader(self, partition: int) -> Reader: ...

    def close(self) -> None: ...
