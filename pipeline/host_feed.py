"""Reading a source for some partitions of a host: a thread that goes on until the end.

Each opening of partitions brings its own feed, from where these partitions stand. So a
partition that moves in catches up without making the others wait.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..memory.errors import Fenced, NotOwner, RaygamError, Retryable
from ..memory.writes import SourcePosition
from .batches import TurnBatch
from .feed import Ahead, Stretch, stretches

if TYPE_CHECKING:
    from .host import ShardHost

log = logging.getLogger("raygam.feed")
_RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Job:
    """A file to be taken: its id says how it began when the job was made.

    Attributes:
        path: the file.
        source_id: as `FileSource.identify` gave it over all partitions.
        chunk_bytes: how much is read and embedded at a time.
        run: whose it is: the next run reads the same file again, from where it stands.
    """

    path: str
    source_id: str
    chunk_bytes: int
    run: str = ""


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """How far a feed is.

    Attributes:
        job: what it reads.
        partitions: for whom.
        offset: how far they have it, in bytes.
        size: the file's size.
        started_at: the offset where it went on.
        accepted: new turns of this feed.
        duplicates: turns that were stored before.
        dead_letters: records put aside.
        incomplete_line: the offset of a last line that is not complete yet, or None.
        beats: rises with all that it does; one that stands still is stuck.
        paused: what it waits for (workers, disk), empty if nothing.
        obstacle: an error that it tries again after, empty if none.
        failure: the error that ended it, empty if none.
        flushed: it came to the end, and recorded the flush.
        ended: it reads no more.
    """

    job: Job
    partitions: tuple[int, ...]
    offset: int = 0
    size: int = 0
    started_at: int = 0
    accepted: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    incomplete_line: int | None = None
    beats: int = 0
    paused: str = ""
    obstacle: str = ""
    failure: str = ""
    flushed: bool = False
    ended: bool = False


def free_bytes(path: Path) -> int:
    """Room that is left for this process on the path's disk."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class Feed(threading.Thread):
    """Reads one job's source for some partitions of a host."""

    def __init__(self, host: ShardHost, job: Job, partitions: Sequence[int]) -> None:
        super().__init__(name=f"raygam-feed-{min(partitions)}", daemon=True)
        self.job = job
        self._host = host
        self._stop_asked = threading.Event()
        self._ahead: Ahead[Stretch] | None = None
        self._applied: dict[int, int] = dict.fromkeys(partitions, 0)
        self._edge = threading.Lock()  # held from one batch's edge to the next
        self._status_lock = threading.Lock()
        self._status = FeedStatus(job, tuple(partitions))

    @property
    def partitions(self) -> tuple[int, ...]:
        """For whom it reads, or has read."""
        return self._status.partitions

    def status(self) -> FeedStatus:
        """How far it is."""
        return self._status

    def stop(self) -> None:
        """Ask it to end at a batch's edge; it does not wait for a model first."""
        self._stop_asked.set()
        if (ahead := self._ahead) is not None:
            ahead.close()

    def leave(self, partition: int) -> None:
        """Read for the partition no more; returns at a batch's edge."""
        with self._edge:
            self.forget(partition)

    def forget(self, partition: int) -> None:
        """The partition is gone: what comes for it is passed over."""
        with self._status_lock:
            self._applied.pop(partition, None)
            rest = tuple(at for at in self._status.partitions if at != partition)
            self._status = replace(self._status, partitions=rest)

    def run(self) -> None:
        """Read to the end, over every obstacle that may pass."""
        failures = 0
        while not self._stop_asked.is_set():
            before = self._status.offset
            try:
                self._read_to_the_end()
                break
            except Retryable as error:
                failures = 1 if self._status.offset > before else failures + 1
                self._note(obstacle=str(error))
                log.warning("reading waits", extra={"partitions": list(self.partitions), "error": str(error)})
                self._stop_asked.wait(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS)) - 1])
            except RaygamError as error:
                self._note(failure=str(error))
                log.error("reading ended", extra={"partitions": list(self.partitions), "error": str(error)})
                break
            except Exception as error:  # the top of the feed's thread: whoever asks for the status is told
                self._note(failure=f"{type(error).__name__}: {error}")
                log.exception("reading ended", extra={"partitions": list(self.partitions)})
                break
        self._note(ended=True, paused="")

    def _read_to_the_end(self) -> None:
        host, job = self._host, self.job
        source = host.open_source(Path(job.path))
        known: dict[str, SourcePosition] = {}
        for at in list(self._applied):
            try:
                stored = host.shard(at).positions().get(job.source_id)
            except NotOwner:
                self.forget(at)
                continue
            with self._status_lock:
                if at in self._applied:  # else it was given up just now
                    self._applied[at] = stored.next_offset if stored else 0
            if stored is not None and stored.next_offset >= known.get(job.source_id, stored).next_offset:
                known[job.source_id] = stored
        if known:
            source.identify(known)  # refuses a file that is not what was read of it before
        if not self._applied:
            return
        start = min(self._applied.values(), default=0)
        first = self._status.beats == 0
        self._note(offset=start, size=source.size, obstacle="", **({"started_at": start} if first else {}))
        taken = start
        self._ahead = ahead = Ahead(
            stretches(source, job.source_id, host.intake, self._applied, start, job.chunk_bytes),
            host.settings.read_ahead,
            f"{self.name}-ahead",
        )
        try:
            if self._stop_asked.is_set():
                return
            for stretch in ahead:
                host.wait_for_capacity(self._stop_asked.is_set, lambda why: self._note(paused=why))
                for batch in stretch.batches:
                    with self._edge:
                        if self._stop_asked.is_set():
                            return
                        if batch.partition in self._applied:
                            self._ingest(batch)
                host.metrics.count("raygam_source_bytes_total", stretch.end - taken, shard=host.name)
                taken = stretch.end
                size = max(source.size, stretch.end)
                self._note(offset=stretch.end, size=size, incomplete_line=stretch.incomplete_line)
                if self._stop_asked.is_set() or not self._applied:
                    return
        finally:
            ahead.close()
        if self._stop_asked.is_set():  # then this may not be the end
            return
        end = source.position(taken)
        for at in list(self._applied):
            with self._edge:
                self._settle(at, end, moved=taken > start)
        self._note(flushed=True)

    def _ingest(self, batch: TurnBatch) -> None:
        try:
            receipt = self._host.ingest(batch)
        except NotOwner:
            self.forget(batch.partition)
            return
        status = self._status
        self._note(
            accepted=status.accepted + receipt.accepted,
            duplicates=status.duplicates + receipt.duplicates,
            dead_letters=status.dead_letters + receipt.dead_letters,
        )

    def _settle(self, partition: int, end: SourcePosition, *, moved: bool) -> None:
        """Record that the partition has all of the source, and flush it."""
        try:
            shard = self._host.shard(partition)
            stored = shard.positions().get(self.job.source_id)
            if moved and (stored is None or stored.next_offset < end.next_offset):
                self._host.ingest(self._host.intake.empty_batch(partition, self.job.source_id, end))
            self._host.flush(partition)
        except (NotOwner, Fenced):
            self.forget(partition)

    def _note(self, **changes: object) -> None:
        with self._status_lock:
            beats = self._status.beats + 1
            self._status = replace(self._status, beats=beats, **changes)  # type: ignore[arg-type]
