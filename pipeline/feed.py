"""From a file's chunks to embedded batches, read ahead in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..memory.writes import SourcePosition
from .batches import TurnBatch
from .intake import Intake
from .records import is_cut_off

Item = TypeVar("Item")


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


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the partitions are given of one chunk of a source.

    Attributes:
        batches: embedded, at most one of a partition.
        end: where the source stands behind them.
        incomplete_line: the offset of a last line that is not complete yet, or None.
    """

    batches: list[TurnBatch]
    end: int
    incomplete_line: int | None = None


def stretches(
    source: FileSource, source_id: str, intake: Intake, applied: Mapping[int, int], start: int, chunk_bytes: int
) -> Iterator[Stretch]:
    """Yield a source's records from `start` on, decoded, split and embedded.

    Args:
        source: the source.
        source_id: its id.
        intake: decodes, splits and embeds.
        applied: per partition to read for, the first offset that it does not hold yet; looked at
            for every chunk, so that a partition may be taken out meanwhile.
        start: the lowest offset that is still needed.
        chunk_bytes: how much is read and embedded at a time.
    """
    for chunk in source.chunks(start, chunk_bytes):
        lines, end = chunk.lines, chunk.next_offset
        incomplete = None
        if lines and not lines[-1].ended and is_cut_off(lines[-1].raw):
            incomplete = end = lines[-1].offset
            lines = lines[:-1]
        records = ((line.offset, line.raw, line.length) for line in lines)
        yield Stretch(intake.raw_batches(source_id, records, source.position(end), applied), end, incomplete)


class Ahead(Iterator[Item]):
    """Makes up to `depth` items ahead in a thread of its own; errors come out where they belong.

    An item is begun when there is room for it: what has come until then is in it. A generator is closed in
    that thread. Close it, from any thread, or its own stays behind the items that nobody takes.
    """

    def __init__(self, items: Iterable[Item], depth: int, name: str) -> None:
        self._items = items
        self._room = threading.Semaphore(depth)
        self._ready: queue.SimpleQueue[tuple[Item | None, BaseException | None]] = queue.SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._make, name=name, daemon=True)
        self._thread.start()

    def __next__(self) -> Item:
        while True:
            if self._ended:
                raise StopIteration
            try:
                item, error = self._ready.get(timeout=0.1)  # whoever closes it wakes nobody
                break
            except queue.Empty:
                continue
        if error is not None:
            self._ended = True
            raise error
        self._room.release()
        assert item is not None
        return item

    def close(self) -> None:
        """Make nothing more. The thread ends behind the item that it is making; nobody waits for it."""
        self._ended = True
        self._room.release()

    def _make(self) -> None:
        error: BaseException = StopIteration()
        items = iter(self._items)
        try:
            while self._room.acquire() and not self._ended:
                self._ready.put((next(items), None))
            if isinstance(items, Generator):
                items.close()  # in this thread: what it holds may belong to it
        except BaseException as raised:  # noqa: BLE001 - handed on to who takes the items
            error = raised
        self._ready.put((None, error))
