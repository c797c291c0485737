"""Streams one finite source through the engine, from where it was left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..memory.writes import SourcePosition
from .engine import Engine
from .records import is_cut_off


class SourceLine(Protocol):
    """One record of a source: where it begins, its bytes, whether it is complete."""

    @property
    def offset(self) -> int: ...

    @property
    def raw(self) -> bytes: ...

    @property
    def ended(self) -> bool: ...

    @property
    def length(self) -> int: ...


class SourceChunk(Protocol):
    """A run of records and the offset behind it."""

    @property
    def lines(self) -> Sequence[SourceLine]: ...

    @property
    def next_offset(self) -> int: ...


class FileSource(Protocol):
    """A finite source that can be read again from an offset."""

    @property
    def size(self) -> int: ...

    def identify(self, known: Mapping[str, SourcePosition]) -> str: ...

    def position(self, next_offset: int) -> SourcePosition: ...

    def chunks(self, start: int, chunk_bytes: int) -> Iterator[SourceChunk]: ...


@dataclass(slots=True)
class RunReport:
    """What a run did.

    Attributes:
        offset: how far the source is taken, in bytes.
        size: its size.
        accepted: new turns.
        duplicates: turns that were stored before.
        dead_letters: records put aside in this run.
        started_at: the offset where this run went on.
        incomplete_line: the offset of a last line that is not complete yet, or None.
        interrupted: whether it was stopped before the source's end.
    """

    offset: int = 0
    size: int = 0
    accepted: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    started_at: int = 0
    incomplete_line: int | None = None
    interrupted: bool = False


def run_source(
    engine: Engine,
    source: FileSource,
    *,
    chunk_bytes: int,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[RunReport], None] = lambda report: None,
) -> RunReport:
    """Take a source up to its end, record the flush, and leave the thinking to the workers.

    A run that is stopped or killed goes on where its partitions stand: each keeps the
    source's position in the transaction of the turns themselves.

    Args:
        engine: the engine.
        source: the source.
        chunk_bytes: how much is read, embedded and applied at a time.
        stop: asked between chunks; True ends the run at the chunk's edge.
        on_progress: told after each chunk.
    """
    held = engine.positions()
    source_id = source.identify(_furthest(held))
    applied = {at: positions[source_id].next_offset for at, positions in enumerate(held) if source_id in positions}
    start = min((applied.get(at, 0) for at in range(len(held))), default=0)
    report = RunReport(offset=start, size=source.size, started_at=start)
    on_progress(report)
    for chunk in source.chunks(start, chunk_bytes):
        if stop():
            report.interrupted = True
            return report
        lines, end = chunk.lines, chunk.next_offset
        if lines and not lines[-1].ended and is_cut_off(lines[-1].raw):
            report.incomplete_line = end = lines[-1].offset
            lines = lines[:-1]
        position = source.position(end)
        records = ((line.offset, line.raw, line.length) for line in lines)
        for receipt in engine.apply(engine.intake.raw_batches(source_id, records, position, applied)):
            report.accepted += receipt.accepted
            report.duplicates += receipt.duplicates
            report.dead_letters += receipt.dead_letters
        report.offset = end
        report.size = max(report.size, end)
        on_progress(report)
    if report.offset > start:
        engine.settle_position(source_id, source.position(report.offset))
    engine.flush()
    return report


def _furthest(held: list[dict[str, SourcePosition]]) -> dict[str, SourcePosition]:
    """Each source's furthest position over all partitions: the longest beginning that is known."""
    known: dict[str, SourcePosition] = {}
    for positions in held:
        for source, position in positions.items():
            if source not in known or position.next_offset > known[source].next_offset:
                known[source] = position
    return known
