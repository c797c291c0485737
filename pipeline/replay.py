"""Dead letters taken up again, once what was in their way is mended: each goes to its owner once.

A letter may lie in another partition than its owner's, and two partitions have no transaction
in common. So first the letter's partition records which letters a run takes up; then the
owners' partitions get them from a source of the run's own, whose position says how far each
has it; then the run is recorded as done. Whatever ends in between, the next replay goes on
there, and no owner takes anything twice, an end of a session included.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..memory.errors import Misconfigured
from ..memory.ports import Reader
from ..memory.writes import ReplayRun, SourcePosition, StoredLetter
from .batches import TurnBatch, to_record_batch
from .engine import Engine
from .records import BadRecord, EndOfSession, RecordLimits, Turn, decode

_TOGETHER = 256
_TOGETHER_BYTES = 8 * 1024 * 1024
_ANY_SIZE = RecordLimits(sys.maxsize, sys.maxsize)
"""What a run has taken up it takes to its end, also if the limits are lower again by then."""


@dataclass(slots=True)
class ReplayReport:
    """What a replay did.

    Attributes:
        replayed: letters that are with their owners now.
        finished_before: those among them that a replay had taken up which was broken off.
        accepted: turns that are new.
        duplicates: turns that their owners had already.
        still_bad: letters that stay as they are, by what is wrong with them now.
    """

    replayed: int = 0
    finished_before: int = 0
    accepted: int = 0
    duplicates: int = 0
    still_bad: Counter[str] = field(default_factory=Counter)


def replay(
    engine: Engine,
    limits: RecordLimits,
    reason: str | None = None,
    on_progress: Callable[[ReplayReport], None] = lambda report: None,
) -> ReplayReport:
    """Decode the ledger's dead letters again, and give those that are good now to their owners.

    Args:
        engine: owns every partition.
        limits: what is good now.
        reason: only letters that were put aside for this reason; a replay that was broken off is finished in any case.
        on_progress: told after each batch.

    Raises:
        Misconfigured: a replay was broken off, and this raygam cannot read what it had taken up.
    """
    report = ReplayReport()
    for partition, reader in enumerate(engine.readers):
        begun = {stored.replay for stored in reader.letters() if not stored.replayed}
        for run in sorted(run for run in begun if run is not None):
            before = report.replayed
            _finish(engine, partition, run, report, on_progress)
            report.finished_before += report.replayed - before
    for partition, reader in enumerate(engine.readers):
        chosen, latest = _choose(reader, limits, reason, report)
        if chosen:
            engine.shards[partition].begin_replay(ReplayRun(latest + 1, tuple(chosen)))
            _finish(engine, partition, latest + 1, report, on_progress)
        on_progress(report)
    return report


def _choose(reader: Reader, limits: RecordLimits, reason: str | None, report: ReplayReport) -> tuple[list[int], int]:
    """Letters that no run has taken up and that are good now, and the latest run's number."""
    chosen: list[int] = []
    latest = 0
    for stored in reader.letters():
        if stored.replay is not None:
            latest = max(latest, stored.replay)
        elif reason is None or stored.letter.reason == reason:
            try:
                decode(stored.letter.payload, limits)
            except BadRecord as bad:
                report.still_bad[bad.reason] += 1
            else:
                chosen.append(stored.number)
    return chosen, latest


def _finish(
    engine: Engine, partition: int, run: int, report: ReplayReport, on_progress: Callable[[ReplayReport], None]
) -> None:
    """Give the letters of a run to their owners, those that are with them already left out; then it is done."""
    source = source_of(partition, run)
    letters = (stored for stored in engine.readers[partition].letters() if stored.replay == run)
    for together in _stretches(letters):
        for receipt in engine.apply(_batches(engine, source, partition, together)):
            report.accepted += receipt.accepted
            report.duplicates += receipt.duplicates
        report.replayed += len(together)
        on_progress(report)
    engine.shards[partition].end_replay(run)


def source_of(partition: int, run: int) -> str:
    """The source that a run's letters come from; their numbers are its offsets."""
    return f"replay:{partition}:{run}"


def _batches(engine: Engine, source: str, partition: int, letters: list[StoredLetter]) -> list[TurnBatch]:
    position = SourcePosition(letters[-1].number + 1, f"dead letters of partition {partition}")
    rows: dict[int, list[tuple[int, Turn | EndOfSession]]] = {}
    for stored in letters:
        try:
            record = decode(stored.letter.payload, _ANY_SIZE)
        except BadRecord as bad:
            raise Misconfigured(
                f"a replay of dead letters was broken off, and letter {stored.number} of partition {partition}, which it "
                f"had taken up, cannot be read by this raygam ({bad}); replay with the raygam that it was begun with"
            ) from None
        rows.setdefault(engine.intake.partition_of(record.user), []).append((stored.number, record))
    plain = []
    for owner in sorted(rows):
        held = engine.shards[owner].positions().get(source)
        left = [row for row in rows[owner] if held is None or row[0] >= held.next_offset]
        if left:
            plain.append(TurnBatch(owner, source, position, to_record_batch(left)))
    return engine.intake.embedded(plain) if plain else []


def _stretches(letters: Iterable[StoredLetter]) -> Iterator[list[StoredLetter]]:
    together: list[StoredLetter] = []
    size = 0
    for stored in letters:
        if together and (len(together) >= _TOGETHER or size + len(stored.letter.payload) > _TOGETHER_BYTES):
            yield together
            together, size = [], 0
        together.append(stored)
        size += len(stored.letter.payload)
    if together:
        yield together
