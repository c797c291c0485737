"""A file of JSON lines as a source: positions in bytes, appended files go on.

A file is known again by the hash of its beginning, so it may grow, move or be copied;
one whose beginning has changed is refused, also while it is read: a position must
never say of one file how far another was taken.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..memory.errors import Misconfigured
from ..memory.writes import SourcePosition

PREFIX_LIMIT = 1024 * 1024
_NEWLINE = b"\n"
_KEPT_OF_LONG_LINE = 65536
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HASH_OF_NOTHING = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end: where it begins, its bytes, whether a newline closed it.

    `length` is its whole length; a line longer than the reader keeps has fewer bytes in `raw`.
    """

    offset: int
    raw: bytes
    ended: bool
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of lines and the offset behind them."""

    lines: list[Line]
    next_offset: int


class JsonlSource:
    """Reads a file in chunks.

    Args:
        path: the file.
        max_line_bytes: longer lines are passed over but for their first bytes.

    Raises:
        Misconfigured: the file is missing, cannot be read, or is no regular file.
    """

    def __init__(self, path: Path, max_line_bytes: int = 16 * 1024 * 1024) -> None:
        self.path = path
        self._max_line_bytes = max_line_bytes
        self._prefix: tuple[int, int, str] = (-1, 0, _HASH_OF_NOTHING)
        try:
            facts = path.stat()
            if stat.S_ISDIR(facts.st_mode):
                raise IsADirectoryError
            if not stat.S_ISREG(facts.st_mode):  # opening a pipe would take bytes that nobody gives again
                raise Misconfigured(
                    f"{path} is no regular file, so that it could not be read again after a stop; "
                    "write it to a file first"
                )
            self.size = facts.st_size
            self._file_id = (facts.st_dev, facts.st_ino)
            with path.open("rb") as file:
                file.read(1)
        except FileNotFoundError:
            raise Misconfigured(f"no file {path}; give the path of a file with one JSON object a line") from None
        except IsADirectoryError:
            raise Misconfigured(f"{path} is a directory; give the path of a file with one JSON object a line") from None
        except OSError as error:
            raise Misconfigured(f"cannot read {path}: {error.strerror}; check its permissions") from None

    def identify(self, known: Mapping[str, SourcePosition]) -> str:
        """Return the source's id: a known one if the file begins as that one did.

        Args:
            known: the file sources that were read before, by id.

        Raises:
            Misconfigured: the file was read before and has changed or become shorter since.
        """
        name = str(self.path.resolve())
        files = {source: position for source, position in known.items() if source.startswith("file:")}
        hashes = self._prefix_hashes({position.prefix_bytes for position in files.values()})
        # The longest matching beginning says the most.
        for source, position in sorted(files.items(), key=lambda item: -item[1].prefix_bytes):
            if position.prefix_bytes and hashes.get(position.prefix_bytes) == position.prefix_hash:
                if position.next_offset > self.size:
                    raise Misconfigured(
                        f"{self.path} has {self.size} bytes, and {position.next_offset} bytes of it were read before: "
                        "it was cut short. Lines may only be appended; put new lines into a new file"
                    )
                return source
        for position in files.values():
            if position.name == name and position.prefix_bytes:
                raise Misconfigured(
                    f"{self.path} has changed since it was read: its first {position.prefix_bytes} bytes are others. "
                    "Lines may only be appended; put new lines into a new file, or bring back the old beginning"
                )
        return f"file:{self.prefix(PREFIX_LIMIT)[1][:32]}"

    def position(self, next_offset: int) -> SourcePosition:
        """Return the position to record once everything before `next_offset` is applied.

        Raises:
            Misconfigured: the file is not any more what was read; nothing may be recorded of it.
        """
        wanted = min(next_offset, PREFIX_LIMIT)
        length, digest = self.prefix(wanted)
        if length < wanted:
            raise self._changed()
        return SourcePosition(next_offset, str(self.path.resolve()), length, digest)

    def prefix(self, length: int) -> tuple[int, str]:
        """Return `(bytes, SHA-256 in hex)` of the file's first `length` bytes, or of all it has.

        Raises:
            Misconfigured: the beginning that was hashed before is another now.
        """
        asked, seen, digest = self._prefix
        if asked != length:
            with self._open() as file:
                raw = file.read(length)
            if asked < length and hashlib.sha256(raw[:seen]).hexdigest() != digest:
                raise self._changed()
            self._prefix = (length, len(raw), hashlib.sha256(raw).hexdigest())
        return self._prefix[1], self._prefix[2]

    def _prefix_hashes(self, lengths: Iterable[int]) -> dict[int, str]:
        """SHA-256 of several beginnings, read once; those longer than the file are left out."""
        hashes: dict[int, str] = {}
        running = hashlib.sha256()
        done = 0
        with self._open() as file:
            for length in sorted(lengths):
                raw = file.read(length - done)
                running.update(raw)
                done += len(raw)
                if done < length:
                    break
                hashes[length] = running.hexdigest()
        return hashes

    def _open(self) -> BinaryIO:
        """Open the file that the source was made of.

        Raises:
            Misconfigured: another one stands under its path now.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            raise self._changed() from None
        facts = os.fstat(file.fileno())
        if (facts.st_dev, facts.st_ino) != self._file_id:
            file.close()
            raise self._changed()
        return file

    def _changed(self) -> Misconfigured:
        return Misconfigured(
            f"{self.path} was replaced, cut short or rewritten while it was read; what was read of it before is kept. "
            "If it was moved, run its new path for the rest, and this path again for the new file"
        )

    def chunks(self, start: int, chunk_bytes: int = 1024 * 1024) -> Iterator[Chunk]:
        """Yield the lines from offset `start` on, in chunks of about `chunk_bytes`.

        The last line may lack its newline (`ended` is False).
        """
        with self._open() as file:
            offset = _line_start(file, start)
            rest = b""
            long_head = b""
            long_from: int | None = None  # a line over the limit is under way, begun here
            while block := file.read(chunk_bytes):
                lines: list[Line] = []
                pieces = (rest + block).split(_NEWLINE)
                rest = pieces.pop()
                for piece in pieces:
                    length = len(piece)
                    if long_from is not None:
                        length += offset - long_from
                        lines.append(Line(long_from, long_head, True, length))
                        offset += len(piece) + 1
                        long_from = None
                        continue
                    lines.append(self._line(offset, piece, ended=True))
                    offset += length + 1
                if len(rest) > self._max_line_bytes:
                    if long_from is None:
                        long_from, long_head = offset, rest[:_KEPT_OF_LONG_LINE]
                    offset += len(rest)
                    rest = b""
                if lines:
                    yield Chunk(lines, long_from if long_from is not None else offset)
            if long_from is not None:
                end = offset + len(rest)
                yield Chunk([Line(long_from, long_head, False, end - long_from)], end)
            elif rest:
                yield Chunk([self._line(offset, rest, ended=False)], offset + len(rest))

    def _line(self, offset: int, piece: bytes, *, ended: bool) -> Line:
        if offset == 0:
            piece = piece.removeprefix(_BYTE_ORDER_MARK)
        kept = piece if len(piece) <= self._max_line_bytes else piece[:_KEPT_OF_LONG_LINE]
        return Line(offset, kept, ended, len(piece))


def _line_start(file: BinaryIO, start: int) -> int:
    """Seek to `start`; step over the newline of a last line that had none when it was read."""
    if start > 0:
        file.seek(start - 1)
        around = file.read(2)
        if around[:1] != _NEWLINE and around[1:] == _NEWLINE:
            start += 1
    file.seek(start)
    return start
