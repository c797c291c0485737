"""Reading a file for some partitions of a host, to its end.

Each opening of partitions brings its own feed, from where these partitions stand. So a
partition that moves in catches up without making the others wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..memory.errors import Fenced, NotOwner
from ..memory.writes import SourcePosition
from .feed import Ahead, Stretch, stretches
from .host_feed import Feed
from .jobs import FileJob

if TYPE_CHECKING:
    from .host import ShardHost


class FileFeed(Feed):
    """Reads one file for some partitions of a host."""

    job: FileJob
    _ahead: Ahead[Stretch] | None

    def __init__(self, host: ShardHost, job: FileJob, partitions: Sequence[int]) -> None:
        super().__init__(host, job, partitions)
        self._applied: dict[int, int] = dict.fromkeys(partitions, 0)

    def _forget(self, partition: int) -> None:
        self._applied.pop(partition, None)

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

    def _settle(self, partition: int, end: SourcePosition, *, moved: bool) -> None:
        """Record that the partition has all of the file, and flush it."""
        try:
            stored = self._host.shard(partition).positions().get(self.job.source_id)
            if moved and (stored is None or stored.next_offset < end.next_offset):
                self._host.ingest(self._host.intake.empty_batch(partition, self.job.source_id, end))
        except (NotOwner, Fenced):
            self.forget(partition)
            return
        self._flush(partition)
