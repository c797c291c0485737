"""What a host is told to read, and what it says of how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..memory.errors import Misconfigured, RaygamError
from .kafka_config import KafkaFields


@dataclass(frozen=True, slots=True)
class FileJob:
    """A file to be taken to its end: its id says how it began when the job was made.

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

    @property
    def name(self) -> str:
        """What is read, for people."""
        return self.path


@dataclass(frozen=True, slots=True)
class TopicJob:
    """A topic to be followed for as long as the engine runs, or up to where it ended.

    Attributes:
        settings: where Kafka is, as whom, and the topic's name.
        source_id: by its id: a topic that is made anew under the name is another source.
        poll_records: how many are taken and embedded at a time, at most.
        until: per partition the offset to stop at, as a file stops at its end; None never stops.
        run: whose it is.
    """

    settings: KafkaFields
    source_id: str
    poll_records: int
    until: tuple[int, ...] | None = None
    run: str = ""

    @property
    def name(self) -> str:
        """What is read, for people."""
        return f"topic {self.settings.kafka_topic}"


Job = FileJob | TopicJob


def ended_error(job: Job, failure: str, *, misconfigured: bool) -> RaygamError:
    """The error of a run whose reading ended."""
    kind = Misconfigured if misconfigured else RaygamError
    return kind(f"reading {job.name} ended: {failure}")


@dataclass(frozen=True, slots=True)
class TakenLog:
    """How far a partition has its log: durable and searchable up to `offset`, of what was last seen to end at `end`."""

    offset: int
    end: int

    @property
    def lag(self) -> int:
        """How many offsets are behind it."""
        return max(0, self.end - self.offset)


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """How far a feed is.

    Attributes:
        job: what it reads.
        partitions: for whom.
        offset: how far they have it: bytes of a file; records of a topic, over these partitions.
        size: the file's size, or where the topic's partitions were last seen to end, together.
        logs: for a topic, how far each partition has its log.
        started_at: the offset where it went on.
        accepted: new turns of this feed.
        duplicates: turns that were stored before.
        dead_letters: records put aside.
        incomplete_line: the offset of a file's last line that is not complete yet, or None.
        beats: rises with all that it does; one that stands still is stuck.
        paused: what it waits for (workers, disk), empty if nothing.
        obstacle: an error that it tries again after, empty if none.
        failure: the error that ended it, empty if none.
        misconfigured: that error is for a person to mend.
        flushed: it came to the end, and recorded the flush.
        ended: it reads no more.
    """

    job: Job
    partitions: tuple[int, ...]
    offset: int = 0
    size: int = 0
    logs: Mapping[int, TakenLog] = field(default_factory=dict)
    started_at: int = 0
    accepted: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    incomplete_line: int | None = None
    beats: int = 0
    paused: str = ""
    obstacle: str = ""
    failure: str = ""
    misconfigured: bool = False
    flushed: bool = False
    ended: bool = False

    @property
    def lag(self) -> dict[int, int]:
        """For a topic, per partition, records that are not durable and searchable yet."""
        return {at: log.lag for at, log in self.logs.items()}
