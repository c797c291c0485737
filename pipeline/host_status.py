"""What a host is set to, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..memory.writes import SourcePosition
from .jobs import FeedStatus, FileJob, Job
from .metrics import Metrics
from .shard import ShardSettings


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Settings of a host.

    Attributes:
        shard: settings of each partition's writer.
        max_open_tasks: reading waits while more tasks of the host are open.
        max_waiting_turns: and while more turns wait, in memory, for open tasks of their users.
        min_free_bytes: reading waits while the state's disk has less room.
        read_ahead: chunks decoded and embedded before their turn.
        max_unsent_updates: reading waits while more updates for other systems are not sent.
    """

    shard: ShardSettings = field(default_factory=ShardSettings)
    max_open_tasks: int = 2000
    max_waiting_turns: int = 100_000
    min_free_bytes: int = 256 * 1024 * 1024
    read_ahead: int = 2
    max_unsent_updates: int = 10_000


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One owned partition: the epoch of its opening, its tasks, and how far each source is taken."""

    epoch: int
    open_tasks: int
    parked_tasks: int
    positions: dict[str, SourcePosition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What a host says of itself: the partitions that it has, its feeds, and who holds leases.

    `unsent` messages wait for other systems; `sending` says what stands in their way.
    """

    name: str
    pid: int
    partitions: dict[int, PartitionStatus]
    feeds: list[FeedStatus]
    job: Job | None
    holders: tuple[str, ...] = ()
    unsent: int = 0
    sending: tuple[str, ...] = ()


class HostGauges:
    """Shows a host's status as gauges."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lags_shown: set[int] = set()

    def set(self, status: HostStatus) -> None:
        """Set all of them; a partition that went shows no lag here any more."""
        gauge, shard = self._metrics.gauge, status.name
        held = status.partitions.values()
        files = [feed for feed in status.feeds if isinstance(feed.job, FileJob) and not feed.ended]
        lags = {at: behind for feed in status.feeds for at, behind in feed.lag.items() if at in status.partitions}
        gauge("raygam_partitions", len(held), shard=shard)
        gauge("raygam_open_tasks", sum(one.open_tasks for one in held), shard=shard)
        gauge("raygam_parked_tasks", sum(one.parked_tasks for one in held), shard=shard)
        gauge("raygam_outbox_messages", status.unsent, shard=shard)
        gauge("raygam_reading_paused", float(any(feed.paused for feed in status.feeds)), shard=shard)
        gauge("raygam_source_lag_bytes", sum(feed.size - feed.offset for feed in files), shard=shard)
        for at in self._lags_shown - lags.keys():
            gauge("raygam_source_lag_records", 0, shard=shard, partition=str(at))
        for at, behind in lags.items():
            gauge("raygam_source_lag_records", behind, shard=shard, partition=str(at))
        self._lags_shown = set(lags)
