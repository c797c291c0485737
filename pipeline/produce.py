"""A file's records into a topic: keyed by owner, partitioned as the engine expects them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .feed import FileSource
from .records import is_cut_off
from .routing import Routing

_LISTED = 20


class RecordSink(Protocol):
    """Takes records for partitions; they are there once `flush` has returned."""

    def send(self, partition: int, key: bytes | None, value: bytes) -> None: ...

    def flush(self) -> None: ...


@dataclass(slots=True)
class ProduceReport:
    """What was sent.

    Attributes:
        sent: records that are in the topic.
        without_owner: those of them that name no owner, and end as dead letters.
        too_large: records above the limit, not sent.
        too_large_at: where the first of them begin.
        offset: how far the file was read, in bytes.
        size: its size.
        incomplete_line: the offset of a last line that is not complete yet, or None; not sent.
        interrupted: whether it was stopped before the end.
    """

    sent: int = 0
    without_owner: int = 0
    too_large: int = 0
    too_large_at: list[int] = field(default_factory=list)
    offset: int = 0
    size: int = 0
    incomplete_line: int | None = None
    interrupted: bool = False


def produce(
    source: FileSource,
    sink: RecordSink,
    routing: Routing,
    *,
    max_record_bytes: int,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[ProduceReport], None] = lambda report: None,
) -> ProduceReport:
    """Send every record of a file, in its order; what was sent is acknowledged on return.

    A record that the engine will refuse is sent too: it ends as the dead letter that it would be if the engine
    read the file. Only one above `max_record_bytes`, which brokers refuse, stays behind and is counted.
    """
    report = ProduceReport(size=source.size)
    for chunk in source.chunks(0, 256 * 1024):
        for line in chunk.lines:
            if not line.ended and is_cut_off(line.raw):
                report.incomplete_line = line.offset
                break
            if line.length > max_record_bytes:
                report.too_large += 1
                report.too_large_at += [line.offset] if len(report.too_large_at) < _LISTED else []
                continue
            key, partition = routing.of_record(line.raw)
            sink.send(partition, key, line.raw)
            report.sent += 1
            report.without_owner += key is None
        report.offset = chunk.next_offset if report.incomplete_line is None else report.incomplete_line
        on_progress(report)
        if stop():
            report.interrupted = True
            break
    sink.flush()
    return report
