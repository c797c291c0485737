"""Rows of the ledger and the values they stand for; the columns' order is the schema's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..memory.chat import ModelCall
from ..memory.model import Episode, Event, EventRelation, Layer, Relationship, ResolvedDate, Topic, TopicRelation, User
from ..memory.progression import Buffer, Progress
from ..memory.writes import (
    BufferedEvent,
    ClosedEpisode,
    CommandRow,
    SourcePosition,
    TaskRow,
    UserRow,
    VectorEntries,
)
from .schema import EVENT_STEP

Row = tuple[Any, ...]

EMPTY_LIST = "[]"
EMPTY_MAPPING = "{}"
STORED_VECTOR = np.dtype("<f2")
"""float16, little-endian: half the bytes; on unit vectors an inner product moves by some 1e-4."""

_encoder = msgspec.json.Encoder()
_strings = msgspec.json.Decoder(tuple[str, ...])
_whole_numbers = msgspec.json.Decoder(tuple[int, ...])
_triples = msgspec.json.Decoder(tuple[tuple[str, str, str], ...])
_mapping = msgspec.json.Decoder(dict[str, Any])
_counts = msgspec.json.Decoder(dict[str, int])
_layers = {layer.value: layer for layer in Layer}


def encode(value: object) -> str:
    """JSON text."""
    return _encoder.encode(value).decode()


def encode_list(values: Sequence[Any]) -> str:
    """JSON text of a list; most lists are empty."""
    return _encoder.encode(values).decode() if values else EMPTY_LIST


def encode_mapping(values: Mapping[str, Any]) -> str:
    """JSON text of a mapping; most mappings are empty."""
    return _encoder.encode(values).decode() if values else EMPTY_MAPPING


def encode_dates(dates: Sequence[ResolvedDate]) -> str:
    """JSON text of dates, `[text, start, end]` each."""
    return encode([(date.text, date.start, date.end) for date in dates]) if dates else EMPTY_LIST


def decode_strings(text: str) -> tuple[str, ...]:
    """The other way round."""
    return _strings.decode(text) if text != EMPTY_LIST else ()


def decode_dates(text: str) -> tuple[ResolvedDate, ...]:
    """The other way round."""
    return tuple(ResolvedDate(*date) for date in _triples.decode(text)) if text != EMPTY_LIST else ()


def encode_relationships(relationships: Sequence[Relationship]) -> str:
    """JSON text of relationships, `[subject, relation, object]` each."""
    return encode_list([(held.subject, held.relation, held.object) for held in relationships])


def decode_relationships(text: str) -> tuple[Relationship, ...]:
    """The other way round."""
    return tuple(Relationship(*held) for held in _triples.decode(text)) if text != EMPTY_LIST else ()


def decode_counts(text: str) -> dict[str, int]:
    """Named counters."""
    return _counts.decode(text)


def vector_blobs(vectors: NDArray[np.float32]) -> list[memoryview]:
    """One blob per row of `(n, dimension)`, without copying each."""
    stored = np.ascontiguousarray(vectors, dtype=STORED_VECTOR)
    width = stored.shape[1] * STORED_VECTOR.itemsize
    whole = memoryview(stored.tobytes())
    return [whole[start : start + width] for start in range(0, len(whole), width)]


def event_rows(
    events: Sequence[Event], owners: Sequence[int], sources: Sequence[tuple[int | None, int | None]]
) -> Iterable[Row]:
    """Rows of `event`; `sources` are `(source number, offset)`."""
    return [
        (
            owner,
            event.seq,
            event.message_id,
            event.session_id,
            event.speaker,
            event.role,
            event.text,
            event.time_us,
            event.utc_offset_minutes,
            event.kind,
            event.origin,
            encode_list(event.captions) if event.captions else EMPTY_LIST,
            encode_mapping(event.metadata) if event.metadata else EMPTY_MAPPING,
            event.tokens,
            source,
            offset,
            event.episode_id,
            encode_dates(event.dates) if event.dates else EMPTY_LIST,
            encode_list(event.entities) if event.entities else EMPTY_LIST,
        )
        for event, owner, (source, offset) in zip(events, owners, sources, strict=True)
    ]


def event_vector_rows(
    events: Sequence[Event], owners: Sequence[int], vectors: NDArray[np.float32], base: int = 0
) -> Iterable[Row]:
    """Rows of `vector_log` for events; the partition's log is numbered from `base` on."""
    layer = str(Layer.EVENT)
    return [
        (event.seq * EVENT_STEP + base, owner, layer, str(event.seq), 0, blob)
        for event, owner, blob in zip(events, owners, vector_blobs(vectors), strict=True)
    ]


def to_event(user: User, row: Row) -> Event:
    """An event from the columns `seq … tokens, episode_id, dates, entities`."""
    captions, metadata, tokens, episode_id, dates, entities = row[10:]
    return Event._make(
        (
            user,
            *row[:10],
            () if captions == EMPTY_LIST else _strings.decode(captions),
            {} if metadata == EMPTY_MAPPING else _mapping.decode(metadata),
            tokens,
            episode_id,
            () if dates == EMPTY_LIST else decode_dates(dates),
            () if entities == EMPTY_LIST else _strings.decode(entities),
        )
    )


def owner_row(owner: int, partition: int, row: UserRow) -> Row:
    """A row of `owner`."""
    progress = row.progress
    return (
        owner,
        partition,
        row.user.tenant,
        row.user.user_id,
        progress.watermark_us,
        progress.counted_seq,
        progress.open_tasks,
        row.last_seq,
        row.events,
        row.tasks_applied,
        row.topics,
        0,
        0,
    )


def to_user_row(row: Row, buffers: Mapping[str, Buffer]) -> UserRow:
    """A user from the columns `tenant … topics` of `owner`, and its buffers."""
    tenant, user_id, watermark_us, counted_seq, open_tasks, last_seq, events, tasks_applied, topics = row
    progress = Progress(watermark_us, counted_seq, open_tasks, buffers)
    return UserRow(User(tenant, user_id), progress, last_seq, events, tasks_applied, topics)


def buffer_row(owner: int, session_id: str, buffer: Buffer) -> Row:
    """A row of `buffer`."""
    return (
        owner,
        session_id,
        buffer.events,
        buffer.tokens,
        buffer.last_us,
        buffer.check_tokens,
        buffer.paused_at_seq,
    )


def group_buffers(rows: Iterable[Row]) -> dict[int, dict[str, Buffer]]:
    """Owners' buffers from rows of `buffer`."""
    grouped: dict[int, dict[str, Buffer]] = {}
    for owner, session_id, *numbers in rows:
        grouped.setdefault(owner, {})[session_id] = Buffer(*numbers)
    return grouped


def group_buffered(rows: Iterable[Row]) -> dict[int, list[BufferedEvent]]:
    """Owners' events without an episode, from `(owner, seq, session_id, message_id, time_us, tokens)`."""
    grouped: dict[int, list[BufferedEvent]] = {}
    for owner, *values in sorted(rows):
        grouped.setdefault(owner, []).append(BufferedEvent(*values))
    return grouped


def to_position(row: Row) -> SourcePosition:
    """A position from the columns `next_offset … prefix_hash`."""
    return SourcePosition(*row)


def command_row(owner: int, command: CommandRow) -> Row:
    """A row of `command`."""
    return (owner, command.seq, command.kind, command.session_id, command.time_us)


def task_row(owner: int, task: TaskRow) -> Row:
    """A row of `task`; a lease is written by its own statement."""
    return (
        task.id,
        owner,
        task.session_id,
        task.trigger,
        int(task.closes_tail),
        int(task.force),
        encode_list(task.seqs),
        task.position_seq,
        task.ordinal,
        task.archived_until_us,
        task.status,
        task.attempts,
        task.error,
        None,
        None,
        int(task.parked_by_person),
    )


def to_task(row: Row) -> TaskRow:
    """A task from the columns `tenant, user_id, id, session_id … error, parked_by_person`."""
    tenant, user_id, id_, session_id, trigger, closes_tail, force, seqs, *rest, by_person = row
    return TaskRow(
        id_,
        User(tenant, user_id),
        session_id,
        trigger,
        bool(closes_tail),
        bool(force),
        _whole_numbers.decode(seqs),
        *(*rest, bool(by_person)),
    )


def call_rows(task_id: str, owner: int, calls: Sequence[ModelCall]) -> list[Row]:
    """Rows of `model_call` that nothing was counted for yet: the columns `task_id … dropped`."""
    return [(task_id, call.key, owner, call.model, call.prompt, 0, 0, 0, 0) for call in calls]


def added_call_rows(task_id: str, calls: Sequence[ModelCall]) -> list[Row]:
    """What calls add to their rows: three counts, what belongs to the answer that was taken, and which row."""
    return [
        (
            *(call.calls, call.prompt_tokens, call.completion_tokens),
            *(None if call.answer is None else call.dropped, call.answer),
            *(task_id, call.key),
        )
        for call in calls
    ]


def decode_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from JSON text."""
    return _whole_numbers.decode(text)


def episode_row(owner: int, closed: ClosedEpisode) -> Row:
    """A row of `episode`."""
    episode = closed.episode
    return (
        episode.id,
        owner,
        episode.session_id,
        encode_list(episode.seqs),
        episode.first_us,
        episode.last_us,
        episode.trigger,
        episode.detector,
        float(episode.confidence),
        episode.reason,
        closed.task_id,
        closed.ordinal,
    )


def to_episode(user: User, row: Row) -> Episode:
    """An episode from the columns `id, session_id … reason`."""
    id_, session_id, seqs, *rest = row
    return Episode(id_, user, session_id, _whole_numbers.decode(seqs), *rest)


def topic_row(owner: int, topic: Topic) -> Row:
    """A row of `topic`."""
    return (
        topic.id,
        owner,
        topic.episode_id,
        topic.summary,
        encode_list(topic.keywords),
        encode_list(topic.entities),
        encode_dates(topic.dates),
        topic.first_us,
        topic.last_us,
        float(topic.confidence),
        topic.model,
        topic.superseded_by,
        topic.label,
        encode_list(topic.facts),
        encode_relationships(topic.relationships),
    )


def to_topic(user: User, row: Row) -> Topic:
    """A topic from the columns `id, episode_id … relationships`."""
    id_, episode_id, summary, keywords, entities, dates, *rest, facts, relationships = row
    return Topic(
        id_,
        user,
        episode_id,
        summary,
        decode_strings(keywords),
        decode_strings(entities),
        decode_dates(dates),
        *(*rest, decode_strings(facts), decode_relationships(relationships)),
    )


def topic_relation_row(owner: int, relation: TopicRelation) -> Row:
    """A row of `topic_relation`."""
    return (owner, relation.source_id, relation.target_id, relation.type, float(relation.confidence))


def event_relation_row(owner: int, relation: EventRelation) -> Row:
    """A row of `event_relation`."""
    return (owner, relation.source_seq, relation.target_seq, relation.type, float(relation.weight))


def to_entries(rows: Sequence[Row], dimension: int, base: int = 0) -> VectorEntries:
    """Entries from `(seq, layer, ref, removed, vector)`, numbered from `base` on."""
    if not rows:
        return VectorEntries(np.empty(0, np.int64), [], [], [], np.empty((0, dimension), np.float32))
    seqs, layers, refs, removed, blobs = zip(*rows, strict=True)
    if None in blobs:
        nothing = bytes(dimension * STORED_VECTOR.itemsize)
        blobs = tuple(nothing if blob is None else blob for blob in blobs)
    vectors = to_vectors(blobs, dimension)
    return VectorEntries(
        np.array(seqs, np.int64) - base,
        [_layers[layer] for layer in layers],
        list(refs),
        [bool(gone) for gone in removed],
        vectors,
    )


def to_vectors(blobs: Sequence[bytes], dimension: int) -> NDArray[np.float32]:
    """Stored vectors as float32 rows."""
    return np.frombuffer(b"".join(blobs), STORED_VECTOR).reshape(len(blobs), dimension).astype(np.float32)
