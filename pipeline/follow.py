"""What every run over a topic does before it reads, and what it says meanwhile."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..memory.ports import Reader
from ..memory.writes import StateFacts
from . import kafka_runtime
from .config import Settings
from .jobs import TakenLog, TopicJob
from .run import furthest_positions
from .summary import gained, totals


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A topic that is being followed, at a glance.

    Attributes:
        accepted: new turns of this run.
        lag: records that are not searchable yet.
        logs: how far each partition has its log.
        open_tasks: tasks that workers will take.
        waits: what stands in the way, in words; empty if nothing.
        finished: it came to the end that was asked for.
        unsent: why messages for other systems are not sent, in words; reading goes on.
    """

    accepted: int = 0
    lag: int = 0
    logs: Mapping[int, TakenLog] = field(default_factory=dict)
    open_tasks: int = 0
    waits: tuple[str, ...] = ()
    finished: bool = False
    unsent: tuple[str, ...] = ()


@dataclass(slots=True)
class StreamReport:
    """What a run over a topic did.

    Attributes:
        topic: the topic's name.
        source: the topic as a source, by its id.
        accepted: new turns.
        duplicates: turns that were stored before.
        dead_letters: records put aside.
        lag: records that were not taken yet when it ended.
        finished: it came to the end that was asked for.
        positions: per partition, the next offset.
    """

    topic: str
    source: str
    accepted: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    lag: int = 0
    finished: bool = False
    positions: dict[int, int] = field(default_factory=dict)


def fitting(settings: Settings, *, made: bool) -> Settings:
    """Look at the topic before anything is started for it; a state that is to be made gets as many partitions.

    Args:
        settings: where Kafka is and which topic.
        made: there is a state already.

    Raises:
        Misconfigured: it is missing, or the settings are refused; the message names the one to change.
        Retryable: no broker answers.
    """
    with kafka_runtime.open_cluster(settings) as cluster:
        facts = cluster.topic(settings.kafka_topic)
    if made or "partitions" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"partitions": facts.partitions})


def job_for(settings: Settings, facts: StateFacts, readers: Sequence[Reader], *, to_the_end: bool) -> TopicJob:
    """Say what a host shall read.

    Args:
        settings: where Kafka is and which topic.
        facts: what the state was made with; the topic must have as many partitions.
        readers: of every partition: what the state has read before.
        to_the_end: stop where the topic ends now.

    Raises:
        Misconfigured: the topic is not the one that was read before, or has other partitions.
        Retryable: no broker answers.
    """
    known = furthest_positions(reader.partition_info().positions for reader in readers)
    reader = kafka_runtime.open_reader(settings, facts.partitions)
    try:
        source_id = reader.identify(known)
        until = tuple(reader.ends()) if to_the_end else None
    finally:
        reader.close()
    return TopicJob(
        settings.kafka_fields(), source_id, settings.poll_records_for(facts.embedder), until, secrets.token_hex(8)
    )


def reported(
    job: TopicJob, readers: Sequence[Reader], before: Mapping[str, Any], *, logs: Mapping[int, TakenLog], finished: bool
) -> StreamReport:
    """What a run did, by the ledger's word.

    Args:
        job: what was read.
        readers: of every partition.
        before: the `totals` of when it began.
        logs: how far each partition was last seen to have its log; by the ledger it may have more of it since.
        finished: it came to the end that was asked for.
    """
    held = [reader.partition_info().positions.get(job.source_id) for reader in readers]
    positions = {at: position.next_offset for at, position in enumerate(held) if position is not None}
    return StreamReport(
        topic=job.settings.kafka_topic,
        source=job.source_id,
        **gained(before, totals(readers)),
        lag=sum(replace(log, offset=positions.get(at, log.offset)).lag for at, log in logs.items()),
        finished=finished,
        positions=positions,
    )
