"""From raw records to embedded batches, one per partition: all that runs outside the shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from ..memory.model import User
from ..memory.ports import Embedder, Vectors
from ..memory.writes import DeadLetter, SourcePosition, StateFacts
from .batches import TurnBatch, texts_to_embed, to_record_batch
from .records import BadRecord, EndOfSession, RecordLimits, Turn, decode
from .routing import Routing

_NEVER = 2**63 - 1


class SourcePart(Protocol):
    """Records of one partition of a topic, and where it stands behind them."""

    @property
    def partition(self) -> int: ...

    @property
    def records(self) -> Sequence[tuple[int, bytes]]:
        """`(offset, bytes)`, in the order of the log; offsets may have gaps."""
        ...

    @property
    def position(self) -> SourcePosition: ...


class Intake:
    """Decodes, checks, splits by partition and embeds. Thread-safe.

    Args:
        facts: what the state was made with; says how users map to partitions.
        embedder: makes the vectors.
        limits: sizes above which a record becomes a dead letter.
    """

    def __init__(self, facts: StateFacts, embedder: Embedder, limits: RecordLimits) -> None:
        self._facts = facts
        self._embedder = embedder
        self._limits = limits
        self._routing = Routing(facts.partitions, facts.partitioner)

    def partition_of(self, user: User) -> int:
        """The partition that owns the user."""
        return self._routing.of_user(user)[1]

    def raw_batches(
        self,
        source: str,
        records: Iterable[tuple[int, bytes, int]],
        position: SourcePosition,
        applied: Mapping[int, int],
    ) -> list[TurnBatch]:
        """Decode a stretch of a source and return what each partition gets of it.

        Args:
            source: the source's id.
            records: `(offset, bytes, length)` in source order; `length` is above the number of bytes
                where a reader kept only the beginning of a record that is far too long.
            position: where the source stands behind the stretch.
            applied: per partition to read for, the first offset that it does not hold yet; records
                of other partitions are passed over.
        """
        rows: dict[int, list[tuple[int, Turn | EndOfSession]]] = {}
        letters: dict[int, list[DeadLetter]] = {}
        everything = len(applied) == self._facts.partitions
        for offset, raw, length in records:
            if not everything and offset < applied.get(self._partition_by_name(raw), _NEVER):
                continue  # to find the owner takes a fifth of the whole decoding
            try:
                record = decode(raw, self._limits, length)
            except BadRecord as bad:
                partition = self._partition_by_name(raw)
                if offset >= applied.get(partition, _NEVER):
                    letters.setdefault(partition, []).append(DeadLetter(source, offset, bad.reason, bad.detail, raw))
                continue
            partition = self.partition_of(record.user)
            if offset >= applied.get(partition, _NEVER):
                rows.setdefault(partition, []).append((offset, record))
        plain = [
            TurnBatch(
                partition,
                source,
                position,
                to_record_batch(rows.get(partition, [])),
                dead_letters=tuple(letters.get(partition, ())),
            )
            for partition in sorted(rows.keys() | letters.keys())
        ]
        return self.embedded(plain)

    def part_batches(self, source: str, parts: Sequence[SourcePart]) -> list[TurnBatch]:
        """Decode and embed records that come from the topic's partitions, each partition's for itself.

        A record stays where it was found, whatever is wrong with it. One whose user belongs to another
        partition is a dead letter: its owner's other turns are read, and ordered, elsewhere.

        Args:
            source: the topic's id as a source.
            parts: at most one of a partition.
        """
        return self.embedded([self._part_batch(source, part) for part in parts])

    def _part_batch(self, source: str, part: SourcePart) -> TurnBatch:
        rows: list[tuple[int, Turn | EndOfSession]] = []
        letters: list[DeadLetter] = []
        for offset, raw in part.records:
            try:
                record = decode(raw, self._limits, len(raw))
                owner = self.partition_of(record.user)
                if owner != part.partition:
                    raise self._elsewhere(record.user, part.partition, owner)
            except BadRecord as bad:
                letters.append(DeadLetter(source, offset, bad.reason, bad.detail, raw))
            else:
                rows.append((offset, record))
        return TurnBatch(part.partition, source, part.position, to_record_batch(rows), dead_letters=tuple(letters))

    def _elsewhere(self, user: User, found: int, owner: int) -> BadRecord:
        return BadRecord(
            "wrong_partition",
            f"found in partition {found}, and user {user.user_id!r:.64} of tenant {user.tenant!r:.64} belongs to {owner} "
            f"of {self._facts.partitions} by {self._facts.partitioner} (setting partitioner). The producer must key its "
            "records by owner and use that partitioner",
        )

    def _partition_by_name(self, raw: bytes) -> int:
        """Where a record belongs that may be wrong; every reader of a source agrees on it."""
        return self._routing.of_record(raw)[1]

    def checked_batches(self, source: str, records: Sequence[Turn | EndOfSession]) -> list[TurnBatch]:
        """Return batches of records that are checked already and that the shard will number."""
        rows: dict[int, list[tuple[int, Turn | EndOfSession]]] = {}
        for at, record in enumerate(records):
            rows.setdefault(self.partition_of(record.user), []).append((at, record))
        return self.embedded(
            [TurnBatch(partition, source, None, to_record_batch(rows[partition])) for partition in sorted(rows)]
        )

    def empty_batch(self, partition: int, source: str, position: SourcePosition) -> TurnBatch:
        """A batch without records, that moves a source's position."""
        return TurnBatch(partition, source, position, to_record_batch([]))

    def embedded(self, plain: Sequence[TurnBatch]) -> list[TurnBatch]:
        """Embed all batches in one call, so that short batches share the model's passes."""
        texts = [texts_to_embed(batch.records) for batch in plain]
        turns = [text for column in texts for text in column if text]
        vectors = self._embedder.embed(turns) if turns else np.zeros((0, self._facts.dimension), dtype=np.float32)
        return with_vectors(plain, texts, vectors)


def with_vectors(plain: Sequence[TurnBatch], texts: Sequence[Sequence[str]], vectors: Vectors) -> list[TurnBatch]:
    """Give batches their vectors.

    Args:
        plain: the batches.
        texts: of each, what `texts_to_embed` says.
        vectors: of the texts that are not empty, in order; a session's end gets zeros.
    """
    flat = [text for column in texts for text in column]
    if len(vectors) != len(flat):
        spread = np.zeros((len(flat), vectors.shape[1]), dtype=np.float32)
        spread[[at for at, text in enumerate(flat) if text]] = vectors
        vectors = spread
    ready = []
    start = 0
    for batch, column in zip(plain, texts, strict=True):
        ready.append(replace(batch, vectors=vectors[start : start + len(column)]))
        start += len(column)
    return ready
