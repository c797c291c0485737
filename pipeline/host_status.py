"""What a host is set to, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..memory.writes import SourcePosition
from .host_feed import FeedStatus, Job
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
    """

    shard: ShardSettings = field(default_factory=ShardSettings)
    max_open_tasks: int = 2000
    max_waiting_turns: int = 100_000
    min_free_bytes: int = 256 * 1024 * 1024
    read_ahead: int = 2


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One owned partition: the epoch of its opening, its tasks, and how far each source is taken."""

    epoch: int
    open_tasks: int
    parked_tasks: int
    positions: dict[str, SourcePosition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What a host says of itself: the partitions that it has, its feeds, and who holds leases."""

    name: str
    pid: int
    partitions: dict[int, PartitionStatus]
    feeds: list[FeedStatus]
    job: Job | None
    holders: tuple[str, ...] = ()
