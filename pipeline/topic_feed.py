"""Following a topic for some partitions of a host, for as long as it runs.

One feed reads for all of a host's partitions; they come and go while it reads. One thread
polls, decodes and embeds, the feed's own applies. A partition that comes is read from where
the ledger stands, and every time that it comes counts as another opening: what was read for
an earlier one is dropped, since others may have had the partition in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ..memory.errors import Misconfigured, NotOwner
from ..memory.writes import SourcePosition
from .batches import TurnBatch
from .feed import Ahead
from .host_feed import Feed
from .intake import SourcePart
from .jobs import TakenLog, TopicJob

if TYPE_CHECKING:
    from .host import ShardHost

_POLL_SECONDS = 0.2
_POLLS_AHEAD = 1
"""One poll is embedded while one is applied. Each further one would make every record wait for one more."""


class TopicReader(Protocol):
    """Reads partitions of one topic. One thread makes, uses and closes it.

    Whatever `assign` and `poll` raise, nothing is passed over.
    """

    @property
    def source_id(self) -> str: ...

    @property
    def positions(self) -> Mapping[int, SourcePosition]:
        """Per assigned partition, the position behind what polls have returned."""
        ...

    def identify(self, known: Mapping[str, SourcePosition]) -> str: ...

    def assign(self, stored: Mapping[int, SourcePosition | None]) -> None: ...

    def unassign(self, partition: int) -> None: ...

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> Sequence[SourcePart]: ...

    def lag(self) -> Mapping[int, int]:
        """Per assigned partition, how many records lie behind what polls have returned."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Polled:
    """What one poll brought: embedded batches, each for an opening, and where each partition's log ends."""

    batches: list[tuple[TurnBatch, int]]
    ends: dict[int, int]


class TopicFeed(Feed):
    """Follows one topic for some partitions of a host."""

    job: TopicJob
    _ahead: Ahead[_Polled] | None

    def __init__(self, host: ShardHost, job: TopicJob, partitions: Sequence[int]) -> None:
        super().__init__(host, job, partitions)
        self._comings = 0
        self._openings: dict[int, int] = dict.fromkeys(partitions, 0)
        self._offsets: dict[int, int] = {}  # per partition, behind what is durable and searchable
        self._paused = ""

    def take(self, partitions: Sequence[int]) -> bool:
        """Read for these partitions too, from where the ledger stands; False once it has ended."""
        with self._status_lock:
            if self._status.ended or self._stop_asked.is_set():
                return False
            self._comings += 1
            self._openings |= dict.fromkeys(partitions, self._comings)
            self._status = replace(self._status, partitions=tuple(sorted(self._openings)))
            return True

    def _forget(self, partition: int) -> None:
        self._openings.pop(partition, None)
        self._offsets.pop(partition, None)

    # In the feed's thread

    def _read_to_the_end(self) -> None:
        self._ahead = ahead = Ahead(self._polls(), _POLLS_AHEAD, f"{self.name}-ahead")
        try:
            if self._stop_asked.is_set():
                return
            for polled in ahead:
                for batch, opening in polled.batches:
                    with self._edge:
                        if self._stop_asked.is_set():
                            return
                        if self._openings.get(batch.partition) == opening:
                            self._apply(batch, opening)
                self._paused = self._host.obstruction(paused=bool(self._paused))
                self._tell(polled.ends)
                if self._ends_here():
                    return
        finally:
            ahead.close()

    def _apply(self, batch: TurnBatch, opening: int) -> None:
        if not self._ingest(batch):
            return
        assert batch.position is not None
        with self._status_lock:
            if self._openings.get(batch.partition) == opening:
                self._offsets[batch.partition] = batch.position.next_offset
        self._host.metrics.count(
            "raygam_source_records_total", batch.records.num_rows + len(batch.dead_letters), shard=self._host.name
        )

    def _tell(self, ends: Mapping[int, int]) -> None:
        with self._status_lock:
            logs = {at: TakenLog(offset, ends[at]) for at, offset in self._offsets.items() if at in ends}
        offset = sum(log.offset for log in logs.values())
        size = offset + sum(log.lag for log in logs.values())
        self._note(offset=offset, size=size, logs=logs, paused=self._paused, obstacle="")

    def _ends_here(self) -> bool:
        """Whether every partition has what the job asks for; then they are flushed, as at the end of a file."""
        until = self.job.until
        if until is None:
            return False
        with self._status_lock:
            openings = dict(self._openings)
            if any(self._offsets.get(at, -1) < until[at] for at in openings):
                return False
        for at in openings:
            with self._edge:
                if self._stop_asked.is_set():
                    return True
                self._flush(at)
        with self._status_lock:
            if not openings.items() >= self._openings.items():  # another has come meanwhile
                return False
            self._status = replace(self._status, flushed=True, ended=True)
            return True

    # In the thread that reads ahead

    def _polls(self) -> Iterator[_Polled]:
        host, job = self._host, self.job
        if host.open_topic is None:
            raise Misconfigured(f"shard {host.name} has no settings for Kafka, and cannot read {job.name}")
        reader = host.open_topic(job)
        assigned: dict[int, int] = {}
        try:
            while True:
                self._follow(reader, assigned)
                hold = reader.pause if self._paused else reader.resume
                for at in assigned:
                    hold(at)
                parts = reader.poll(_POLL_SECONDS, job.poll_records)
                batches = host.intake.part_batches(job.source_id, parts)
                positions, lag = reader.positions, reader.lag()
                ends = {at: positions[at].next_offset + behind for at, behind in lag.items()}
                yield _Polled([(batch, assigned[batch.partition]) for batch in batches], ends)
        finally:
            reader.close()

    def _follow(self, reader: TopicReader, assigned: dict[int, int]) -> None:
        """Have the reader read for the partitions that are wanted now, those that came from where they stand."""
        with self._status_lock:
            wanted = dict(self._openings)
        for at in [at for at, opening in assigned.items() if wanted.get(at) != opening]:
            reader.unassign(at)
            del assigned[at]
        stored: dict[int, SourcePosition | None] = {}
        known: dict[str, SourcePosition] = {}
        for at in wanted.keys() - assigned.keys():
            try:
                positions = self._host.shard(at).positions()
            except NotOwner:  # whoever took it away says so to the feed as well
                continue
            stored[at] = positions.get(self.job.source_id)
            known |= positions
        if not stored:
            return
        if reader.identify(known) != self.job.source_id:
            raise Misconfigured(
                f"{self.job.name} was made anew just now: it is {reader.source_id}, and reading began with "
                f"{self.job.source_id}; run again to take the new one"
            )
        reader.assign(stored)
        with self._status_lock:
            for at in stored:
                if self._openings.get(at) == wanted[at]:
                    self._offsets[at] = reader.positions[at].next_offset
        assigned.update({at: wanted[at] for at in stored})
