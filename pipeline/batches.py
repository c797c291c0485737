"""Turns in flight: one pyarrow RecordBatch per partition and source, Arrow IPC ready.

The columns are the turn's fields, the source offset and the embedding; a row whose
`record` is "session_end" carries only owner, session and time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..memory.model import embedded_text
from ..memory.text import count_tokens
from ..memory.writes import DeadLetter, SourcePosition
from .records import EndOfSession, Turn

TURN = "turn"
SESSION_END = "session_end"

SCHEMA = pa.schema(
    [
        pa.field("record", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("speaker", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("captions", pa.list_(pa.string())),
        pa.field("metadata", pa.string()),
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("utc_offset_minutes", pa.int16()),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("unknown_fields", pa.int32(), nullable=False),
    ]
)


EVENT_COLUMNS = (
    *("message_id", "session_id", "speaker", "role", "text", "time_us", "utc_offset_minutes"),
    *("kind", "origin", "captions", "metadata", "tokens"),
)
"""Columns of a batch in the order of `Event`'s fields behind `user` and `seq`."""


@dataclass(frozen=True, slots=True)
class TurnBatch:
    """What one partition is given of one source, in source order.

    Attributes:
        partition: who owns the users of all rows.
        source: the source's id.
        position: where the source stands once the batch is applied; None for a
            source that the shard numbers itself (the API).
        records: rows of `SCHEMA`.
        vectors: float32 `(rows, dimension)`; None until embedded.
        dead_letters: what of the same stretch could not be decoded.
    """

    partition: int
    source: str
    position: SourcePosition | None
    records: pa.RecordBatch
    vectors: NDArray[np.float32] | None = None
    dead_letters: tuple[DeadLetter, ...] = ()


def to_record_batch(rows: Sequence[tuple[int, Turn | EndOfSession]]) -> pa.RecordBatch:
    """Build a batch from `(source offset, record)` pairs, in order."""
    columns: list[tuple[Any, ...]] = [_row(offset, record) for offset, record in rows]
    if not columns:
        return pa.RecordBatch.from_arrays([pa.array([], type=item.type) for item in SCHEMA], schema=SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, type=item.type) for values, item in zip(zip(*columns, strict=True), SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def _row(offset: int, record: Turn | EndOfSession) -> tuple[Any, ...]:
    user = record.user
    if isinstance(record, EndOfSession):
        return (
            *(SESSION_END, offset, user.tenant, user.user_id, record.session_id, "", "", "", "", "", ""),
            *(None, None, record.time_us, None, 0, 0),
        )
    tokens = count_tokens(record.text)
    if record.captions:
        tokens += sum(count_tokens(caption) for caption in record.captions)
    return (
        TURN,
        offset,
        user.tenant,
        user.user_id,
        record.session_id,
        record.message_id,
        record.speaker,
        record.role,
        record.kind,
        record.origin,
        record.text,
        record.captions or None,
        msgspec.json.encode(record.metadata).decode() if record.metadata else None,
        record.time_us,
        record.utc_offset_minutes,
        tokens,
        record.unknown_fields,
    )


def texts_to_embed(records: pa.RecordBatch) -> list[str]:
    """The text to embed for every row, in order; empty for a session's end."""
    speakers = records.column("speaker").to_pylist()
    texts = records.column("text").to_pylist()
    captions = _captions(records)
    return [
        embedded_text(speaker, text, shown) if speaker else ""
        for speaker, text, shown in zip(speakers, texts, captions, strict=True)
    ]


def columns_of(records: pa.RecordBatch) -> dict[str, list[Any]]:
    """The columns as Python lists; `captions` as tuples, `metadata` decoded."""
    columns: dict[str, list[Any]] = {
        name: records.column(name).to_pylist() for name in SCHEMA.names if name not in ("captions", "metadata")
    }
    columns["captions"] = [tuple(shown) for shown in _captions(records)]
    metadata = records.column("metadata")
    if metadata.null_count == len(metadata):
        columns["metadata"] = [{}] * len(metadata)
    else:
        columns["metadata"] = [msgspec.json.decode(text) if text else {} for text in metadata.to_pylist()]
    return columns


def _captions(records: pa.RecordBatch) -> Iterable[Sequence[str]]:
    column = records.column("captions")
    if column.null_count == len(column):
        return [()] * len(column)
    return [shown or () for shown in column.to_pylist()]
