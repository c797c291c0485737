"""Streams one finite source through the engine, from where it was left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..memory.writes import SourcePosition
from .engine import Engine
from .feed import FileSource, stretches


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
    source_id = source.identify(furthest_positions(held))
    applied = {
        at: positions[source_id].next_offset if source_id in positions else 0 for at, positions in enumerate(held)
    }
    start = min(applied.values(), default=0)
    report = RunReport(offset=start, size=source.size, started_at=start)
    on_progress(report)
    if stop():
        report.interrupted = True
        return report
    for stretch in stretches(source, source_id, engine.intake, applied, start, chunk_bytes):
        for receipt in engine.apply(stretch.batches):
            report.accepted += receipt.accepted
            report.duplicates += receipt.duplicates
            report.dead_letters += receipt.dead_letters
        report.incomplete_line = stretch.incomplete_line
        report.offset = stretch.end
        report.size = max(report.size, report.offset)
        on_progress(report)
        if stop():
            report.interrupted = True
            return report
    if report.offset > start:
        engine.settle_position(source_id, source.position(report.offset))
    engine.flush()
    return report


def furthest_positions(held: Iterable[Mapping[str, SourcePosition]]) -> dict[str, SourcePosition]:
    """Each source's furthest position over all partitions: the longest beginning that is known."""
    known: dict[str, SourcePosition] = {}
    for positions in held:
        for source, position in positions.items():
            if source not in known or position.next_offset > known[source].next_offset:
                known[source] = position
    return known
