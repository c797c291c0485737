"""What one transaction writes, as values: the shard decides it, the ledger stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .chat import ModelCall
from .model import Episode, Event, EventRelation, Layer, ResolvedDate, Topic, TopicRelation, User
from .progression import Progress
from .shadow import Shadow


class TaskStatus(StrEnum):
    """Where a task stands; `done` ones are kept so that none is applied twice."""

    OPEN = "open"
    LEASED = "leased"
    DONE = "done"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user as the ledger keeps it: decision state and counts."""

    user: User
    progress: Progress
    last_seq: int = 0
    events: int = 0
    tasks_applied: int = 0
    topics: int = 0


class BufferedEvent(NamedTuple):
    """What the shard needs to know of an event that no episode holds yet."""

    seq: int
    session_id: str
    message_id: str
    time_us: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StoredUser:
    """A user as the shard picks it up: its row, its buffers and what is not counted yet.

    `buffered` holds counted (`seq <= row.progress.counted_seq`) and uncounted events,
    by `seq`; `commands` the uncounted ones, by `seq`.
    """

    row: UserRow
    buffered: tuple[BufferedEvent, ...]
    commands: tuple[CommandRow, ...]


@dataclass(frozen=True, slots=True)
class StateFacts:
    """What a state directory or database was created with; another value refuses to boot."""

    partitions: int
    partitioner: str
    embedder: str
    dimension: int
    template: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A segment task. `seqs` are the frozen ids of its events, in event order.

    First in first out per user means by `(position_seq, ordinal)`: the stimulus that
    asked for it, and its place among that stimulus' tasks. A parked one is opened again
    by the next opening of its partition, unless it was `parked_by_person`.
    """

    id: str
    user: User
    session_id: str
    trigger: str
    closes_tail: bool
    force: bool
    seqs: tuple[int, ...]
    position_seq: int
    ordinal: int
    archived_until_us: int | None
    status: str = TaskStatus.OPEN
    attempts: int = 0
    error: str | None = None
    parked_by_person: bool = False


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """A task in a worker's hands until `lease_until_us` of the engine's clock."""

    task: TaskRow
    token: str
    lease_until_us: int


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A leased task that its worker could not finish.

    Attributes:
        task_id: the task.
        token: the lease that ends with it.
        error: why, for people.
        parks: it is not tried again.
        counts: the attempt counts; not where nobody is to blame.
    """

    task_id: str
    token: str
    error: str
    parks: bool
    counts: bool = True


@dataclass(frozen=True, slots=True)
class TaskChange:
    """What a person wants of tasks.

    Attributes:
        ids: the tasks.
        parks: why they are parked; None opens parked ones again.
    """

    ids: tuple[str, ...]
    parks: str | None = None


@dataclass(frozen=True, slots=True)
class TaskCalls:
    """What was asked of a chat model for a leased task, or, without a token, for one that is done and thought again."""

    task_id: str
    token: str | None
    calls: Sequence[ModelCall]


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What a user's tasks asked of a model by one prompt, all of them together; see `ModelCall`."""

    user: User
    model: str
    prompt: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    dropped: int


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A recorded command: `session_end` of one session, or `flush` (empty session)."""

    seq: int
    user: User
    kind: str
    session_id: str
    time_us: int | None = None


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """How far a source has been taken, and by what it is known again.

    Attributes:
        next_offset: the first offset that is not taken yet.
        name: where a person finds it (a file's path, a topic's name).
        prefix_bytes: for a file, how much of its beginning `prefix_hash` covers.
        prefix_hash: SHA-256 of that beginning, in hex; empty where the id says all.
    """

    next_offset: int
    name: str = ""
    prefix_bytes: int = 0
    prefix_hash: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be taken, whole.

    Attributes:
        source: the source it came from; with `offset` its source position.
        offset: where in the source it begins.
        reason: one word of `records.REASONS` ("not_json", "too_large", …).
        detail: what is wrong and what to do, for a person.
        payload: the offending bytes.
    """

    source: str
    offset: int
    reason: str
    detail: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it stands in the ledger.

    Attributes:
        number: its number; rises with arrival.
        letter: the letter.
        replay: the run of its partition that took it up again, None if none did.
        replayed: whether that run is done.
    """

    number: int
    letter: DeadLetter
    replay: int | None = None
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """The letters of a partition that are taken up again together.

    Attributes:
        run: its number in the partition, from 1 on.
        letters: numbers of the letters; none of them in another run.
    """

    run: int
    letters: tuple[int, ...]


class MessageKind(StrEnum):
    """What leaves the engine. Messages of one kind keep their order in a partition."""

    DEAD_LETTER = "dead_letter"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A message for other systems, kept in the ledger until it is acknowledged.

    Attributes:
        kind: one of `MessageKind`.
        id: what it is known by when it comes twice; the same on every replay.
        key: the record key, None where nobody owns it.
        headers: names and values.
        value: the bytes; None while it is written if they are those of `letter`.
        letter: source and offset of the dead letter whose bytes it has, so that they are stored once.
        number: its number in the partition; the ledger gives it.
    """

    kind: str
    id: str
    key: bytes | None
    headers: tuple[tuple[str, str], ...]
    value: bytes | None = None
    letter: tuple[str, int] | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class VectorEntries:
    """A run of a user's vector log, in order.

    Attributes:
        seqs: log numbers, `(n,)` int64.
        layers: a `Layer` per entry.
        refs: what each vector belongs to: `str(seq)` of an event, or a topic id.
        removed: True where the entry takes the vector away.
        vectors: `(n, dimension)` float32; rows of removals are zero.
    """

    seqs: NDArray[np.int64]
    layers: list[Layer]
    refs: list[str]
    removed: list[bool]
    vectors: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LoggedTopics:
    """A user's topics from a place of the vector log on; one that was made anew comes again.

    Attributes:
        log_seq: log number of the last.
        topics: in the order of making.
        vectors: theirs, `(len(topics), dimension)`.
        superseded: topics made before, by id, that these have superseded, and by which.
    """

    log_seq: int
    topics: Sequence[Topic]
    vectors: NDArray[np.float32]
    superseded: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ArchivedEvent:
    """An event that an episode took, with the attributes found in it."""

    user: User
    seq: int
    episode_id: str
    dates: tuple[ResolvedDate, ...]
    entities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClosedEpisode:
    """An episode to be stored, the task that made it and its place in it."""

    episode: Episode
    task_id: str
    ordinal: int
    events: Sequence[ArchivedEvent]
    relations: tuple[EventRelation, ...]
    topic: Topic | None = None
    topic_vector: NDArray[np.float32] | None = None
    topic_relations: tuple[TopicRelation, ...] = ()
    supersedes: tuple[str, ...] = ()


@dataclass(slots=True)
class WriteSet:
    """Everything one transaction changes (invariant 1). Empty fields change nothing.

    `links` are relations of their user's events beside those of `closed`; one that is stored
    already stays as it is. `calls` add to what is known of the same task and prompt.
    `reopened` names parked tasks that begin anew, `parked` unfinished ones, and why, that
    a person puts aside. `shadows` take the place of their users' earlier ones, `switched` become what
    is read, `discarded` go; a user is in one of the three at most.

    `events[i]` has the embedding `vectors[i]`, shape `(len(events), dimension)`.
    The ledger numbers the vector log: events first, in order, then topics. It numbers
    `messages` too; `acknowledged` names, per kind, the number up to which they go.
    """

    events: list[Event] = field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    event_sources: list[tuple[str, int]] = field(default_factory=list)
    positions: dict[str, SourcePosition] = field(default_factory=dict)
    users: list[UserRow] = field(default_factory=list)
    commands: list[CommandRow] = field(default_factory=list)
    tasks: list[TaskRow] = field(default_factory=list)
    leases: list[LeasedTask] = field(default_factory=list)
    failures: list[TaskFailure] = field(default_factory=list)
    finished: list[tuple[str, str]] = field(default_factory=list)
    calls: list[TaskCalls] = field(default_factory=list)
    reopened: list[str] = field(default_factory=list)
    parked: list[tuple[str, str]] = field(default_factory=list)
    closed: list[ClosedEpisode] = field(default_factory=list)
    links: list[tuple[User, EventRelation]] = field(default_factory=list)
    shadows: list[Shadow] = field(default_factory=list)
    switched: list[User] = field(default_factory=list)
    discarded: list[User] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    messages: list[OutboxMessage] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    replays: list[ReplayRun] = field(default_factory=list)
    replays_done: list[int] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition at a glance."""

    partition: int
    epoch: int
    positions: Mapping[str, SourcePosition]
    users: int
    events: int
    open_tasks: int
    parked_tasks: int
    dead_letters: int
    counts: Mapping[str, int]
    opened_by: str = ""
    unsent_messages: int = 0
