"""How far an engine is, put together from its shards' reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..pipeline.host_status import HostStatus
from ..pipeline.jobs import FileJob, Job, TakenLog


@dataclass(frozen=True, slots=True)
class Progress:
    """The whole engine at a glance.

    Attributes:
        job: what is read, None if nothing is.
        partitions: their number.
        owned: partition to shard.
        epochs: partition to epoch.
        offset: how far the slowest feed has the file, in bytes; of a topic, records that all feeds have.
        size: its size.
        lag: records of a topic that are not searchable yet.
        logs: of a topic, how far each partition has its log.
        accepted: new turns of the feeds that live.
        finished: every partition has the whole source, and its flush.
        open_tasks: that workers will take.
        parked_tasks: that wait for a person.
        paused: what reading waits for.
        obstacles: errors that are tried again after.
        unsent: messages for other systems that are not sent yet.
        sending: what stands in their way; reading goes on.
        failure: the error that ended reading, empty if none.
        misconfigured: that error is for a person to mend.
        incomplete_line: the offset of a last line that is not complete yet, or None.
        replaced: actors replaced since the supervisor started, by place.
        pids: processes, by place.
        ticks: the supervisor's rounds; a number that stands still says that it does.
    """

    job: Job | None
    partitions: int
    owned: dict[int, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    offset: int = 0
    size: int = 0
    lag: int = 0
    logs: Mapping[int, TakenLog] = field(default_factory=dict)
    accepted: int = 0
    finished: bool = False
    open_tasks: int = 0
    parked_tasks: int = 0
    paused: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    unsent: int = 0
    sending: tuple[str, ...] = ()
    failure: str = ""
    misconfigured: bool = False
    incomplete_line: int | None = None
    replaced: dict[str, int] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    ticks: int = 0

    @property
    def ready(self) -> bool:
        """Whether every partition has a shard."""
        return len(self.owned) == self.partitions


def merged(
    partitions: int,
    job: Job | None,
    statuses: Sequence[HostStatus],
    obstacles: Sequence[str],
    replaced: dict[str, int],
    pids: dict[str, int],
    ticks: int,
) -> Progress:
    """Put the shards' statuses together."""
    owned: dict[int, str] = {}
    epochs: dict[int, int] = {}
    for status in statuses:
        for at, held in status.partitions.items():
            if held.epoch > epochs.get(at, -1):
                owned[at], epochs[at] = status.name, held.epoch
    feeds = [feed for status in statuses for feed in status.feeds if feed.job == job]
    done = {at for feed in feeds if feed.flushed and feed.ended for at in feed.partitions}
    reading = [feed for feed in feeds if feed.partitions]
    together = (min, max) if isinstance(job, FileJob) else (sum, sum)
    failed = next((feed for feed in feeds if feed.failure), None)
    held_all = [held for status in statuses for held in status.partitions.values()]
    said = [*obstacles, *(feed.obstacle for feed in feeds if feed.obstacle)]
    return Progress(
        job=job,
        partitions=partitions,
        owned=owned,
        epochs=epochs,
        offset=together[0](feed.offset for feed in reading) if reading else 0,
        size=together[1](feed.size for feed in feeds) if feeds else 0,
        lag=sum(sum(feed.lag.values()) for feed in feeds if not feed.ended),
        logs={at: log for feed in feeds for at, log in feed.logs.items()},
        accepted=sum(feed.accepted for feed in feeds),
        finished=job is not None and len(owned) == partitions and done >= set(owned),
        open_tasks=sum(held.open_tasks for held in held_all),
        parked_tasks=sum(held.parked_tasks for held in held_all),
        paused=tuple(dict.fromkeys(feed.paused for feed in feeds if feed.paused)),
        obstacles=tuple(dict.fromkeys(said)),
        unsent=sum(status.unsent for status in statuses),
        sending=tuple(dict.fromkeys(text for status in statuses for text in status.sending)),
        failure=failed.failure if failed else "",
        misconfigured=failed is not None and failed.misconfigured,
        incomplete_line=next((feed.incomplete_line for feed in feeds if feed.incomplete_line is not None), None),
        replaced=replaced,
        pids=pids,
        ticks=ticks,
    )
