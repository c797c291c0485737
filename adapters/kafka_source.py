"""A Kafka topic as a source: some of its partitions, read in order from where the ledger stands.

Nothing is committed to Kafka and no group is joined: the ledger alone says how far a partition
is taken, in the transaction of the turns themselves.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition, errors

from ..memory.errors import Retryable
from ..memory.identity import TOPIC_SOURCE
from ..memory.writes import SourcePosition
from . import kafka_changes, kafka_errors
from .kafka_cluster import KafkaCluster, LogRange, TopicFacts
from .kafka_connection import KafkaConnection

log = logging.getLogger("raygam.kafka")

PROBE_SECONDS = 2.0
"""A poll that finds nothing looks so often whether there is a broker at all."""

ENDS_SECONDS = 1.0
"""While records come, what is said of the lag is so old at most."""

CHECK_SECONDS = 0.02
"""Records are handed on only if the topic was seen to be the same one so recently.

Deleting a topic, making it anew and filling it beyond what was read takes several times as long; asking takes
a millisecond.
"""

_ANSWER_MS = 1500
_SWEEP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """What one poll brought of one partition.

    Attributes:
        partition: the partition.
        records: `(offset, value)` in the order of the log; offsets have gaps. A record without a value has `b""`.
        position: where the partition stands behind them. It also moves over what is no record to a reader:
            markers and aborted records of transactions, so there may be a position and no records.
    """

    partition: int
    records: list[tuple[int, bytes]]
    position: SourcePosition


class KafkaReader:
    """Reads partitions of one topic for one owner. Not thread-safe: one thread makes, uses and closes it.

    Args:
        connection: where and as whom.
        topic: the topic's name.
        partitions: how many the topic must have; None takes it as it is.
        skip_lost: go on behind records that were removed before they were read, instead of stopping.
        accept: the id of a topic to take although another of its name was read before.
        max_poll_records: a poll returns at most so many.
        clock: monotonic seconds.
        wait: called with seconds, where there is nothing to poll.

    Raises:
        Misconfigured: what a person must mend: settings, rights, a topic that is missing or has other partitions.
        Retryable: no broker answers.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        *,
        partitions: int | None = None,
        skip_lost: bool = False,
        accept: str | None = None,
        max_poll_records: int = 4096,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connection = connection
        self._skip_lost = skip_lost
        self._accept = accept
        self._max_poll_records = max_poll_records
        self._clock = clock
        self._wait = wait
        self._next: dict[int, int] = {}  # per partition, what the caller has been given
        self._ends: dict[int, int] = {}  # per partition, where its log was last seen to end
        self._paused: set[int] = set()
        self._alive_at = self._same_at = self._swept_at = clock()
        self._ends_at = float("-inf")
        self._cluster = KafkaCluster(connection)
        try:
            self._facts = self._cluster.topic(topic)
            if not self._facts.readable:
                raise kafka_errors.no_right(connection, topic, "read")
            if partitions is not None and partitions != self._facts.partitions:
                raise kafka_changes.other_count(topic, self._facts.partitions, partitions)
            self._consumer: Any = _consumer(connection, topic)
        except BaseException:
            self._cluster.close()
            raise

    @property
    def topic(self) -> TopicFacts:
        """The topic, as it was when the reader was made."""
        return self._facts

    @property
    def source_id(self) -> str:
        """The topic as a source: by its id, so that another topic of the same name is another source."""
        return self._facts.source_id

    def identify(self, known: Mapping[str, SourcePosition]) -> str:
        """Return the source's id, if the topic is the one that was read before, or new.

        Args:
            known: sources that were read before, by id.

        Raises:
            Misconfigured: another topic of this name was read before.
        """
        name, topic_id = self._facts.name, self._facts.topic_id
        others = [
            source.removeprefix(TOPIC_SOURCE)
            for source, position in known.items()
            if source.startswith(TOPIC_SOURCE) and position.name == name and source != self.source_id
        ]
        if others and self.source_id not in known and self._accept != topic_id:
            raise kafka_changes.made_anew(name, others[-1], topic_id)
        return self.source_id

    def assign(self, stored: Mapping[int, SourcePosition | None]) -> None:
        """Read these partitions too, each from where it stands.

        Args:
            stored: per partition the ledger's position of this source; None reads it from its beginning.

        Raises:
            Misconfigured: a position lies outside of what the log holds.
            Retryable: the broker does not answer in time; nothing has changed.
        """
        ranges = self._ranges(sorted(stored))
        start = {}
        for at, position in stored.items():
            held = ranges[at]
            start[at] = held.beginning if position is None else self._inside(at, position.next_offset, held)
        for at, offset in start.items():
            self._next[at] = offset
            self._ends[at] = ranges[at].end
            self._paused.discard(at)
        self._fetch(sorted(start))

    def unassign(self, partition: int) -> None:
        """Read the partition no more; the others go on."""
        self._next.pop(partition, None)
        self._ends.pop(partition, None)
        self._paused.discard(partition)
        self._fetch([])

    @property
    def positions(self) -> dict[int, SourcePosition]:
        """Per assigned partition, the position behind what polls have returned."""
        return {at: SourcePosition(offset, self._facts.name) for at, offset in self._next.items()}

    def pause(self, partition: int) -> None:
        """Return nothing of the partition until it is resumed."""
        if partition in self._next and partition not in self._paused:
            self._paused.add(partition)
            self._fetch([])

    def resume(self, partition: int) -> None:
        """Return records of the partition again."""
        if partition in self._paused:
            self._paused.discard(partition)
            self._fetch([partition])

    @property
    def paused(self) -> frozenset[int]:
        """Assigned partitions of which polls return nothing."""
        return frozenset(self._paused)

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> list[PartitionRecords]:
        """Return what has come, at most one entry a partition.

        Whatever it raises, nothing is passed over: the next poll returns what this one did not. It takes
        up to `timeout_seconds`, and some seconds more where no broker answers.

        Raises:
            Retryable: the cluster does not answer; the same call succeeds once it does.
            Misconfigured: the topic is another one now, has another number of partitions, or has lost records.
        """
        try:
            if not self._reading():
                self._wait(timeout_seconds)  # the client would return at once, and its caller spin
                polled = {}
            else:
                polled = self._consumer.poll(
                    timeout_ms=int(timeout_seconds * 1000), max_records=max_records or self._max_poll_records
                )
            found = self._taken(polled)
            if found:
                self._alive_at = self._clock()
                self._check_topic()
                self._look_at_ends()
            elif self._next and self._clock() - self._alive_at >= PROBE_SECONDS:
                self.probe()
        except errors.OffsetOutOfRangeError:
            self._rewind()
            self._go_behind_lost_records()
            return []
        except errors.KafkaError as error:
            self._rewind()
            raise kafka_errors.explained(error, self._connection, self._facts.name) from None
        except Retryable:
            self._rewind()
            self._sweep()
            raise
        except BaseException:
            self._rewind()
            raise
        for part in found:
            self._next[part.partition] = part.position.next_offset
        return found

    def ends(self) -> list[int]:
        """Where every partition of the topic ends now, by partition.

        Raises:
            Retryable: the broker does not answer in time.
        """
        ranges = self._ranges(range(self._facts.partitions), only_ends=True)
        return [ranges[at].end for at in range(self._facts.partitions)]

    def probe(self) -> None:
        """Return if brokers answer for every assigned partition and the topic is the same; a poll alone hides both.

        Raises:
            Retryable: they do not; the message names the address.
            Misconfigured: the topic is another one now, or has another number of partitions.
        """
        self._same_at = float("-inf")
        self._check_topic()
        if self._next:
            self._ask_ends()
        self._alive_at = self._clock()

    def lag(self) -> dict[int, int]:
        """Per assigned partition, how many offsets lie behind what polls have returned. Asks nobody."""
        found = {}
        for at, offset in self._next.items():
            seen = None if at in self._paused else self._consumer.highwater(self._at(at))
            end = max(self._ends[at], seen or 0)
            found[at] = max(0, end - offset)
        return found

    def close(self) -> None:
        """Leave; waits for no broker."""
        self._consumer.close(autocommit=False, timeout_ms=_ANSWER_MS)
        self._cluster.close()

    def _taken(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> list[PartitionRecords]:
        """What a poll brought, with each partition's new position."""
        name = self._facts.name
        moved = [at.partition for at in polled] if polled else self._reading()  # markers alone end in an empty poll
        found = []
        for at in moved:
            offset = self._consumer.position(self._at(at), timeout_ms=0)
            if offset is None or offset <= self._next[at]:
                continue
            records = [(record.offset, record.value or b"") for record in polled.get(self._at(at), ())]
            found.append(PartitionRecords(at, records, SourcePosition(offset, name)))
        return found

    def _look_at_ends(self) -> None:
        """Ask now and then where the logs end: a fetch tells it of the partitions that it brought, not of those that wait."""
        if self._clock() - self._ends_at >= ENDS_SECONDS:
            with suppress(Retryable):  # what was read is here; what is wrong is the next poll's
                self._ask_ends()

    def _ask_ends(self) -> None:
        self._ends_at = self._clock()
        self._ends.update({at: held.end for at, held in self._ranges(sorted(self._next), only_ends=True).items()})

    def _rewind(self) -> None:
        """Stand where the caller stands: what was fetched and not returned comes again."""
        for at in self._reading():
            self._consumer.seek(self._at(at), self._next[at])

    def _sweep(self) -> None:
        """Close the sockets of failed attempts to connect: the client leaves them to the collector.

        Three a second stay open, and a process that waits makes too little garbage for the collector to come by.
        """
        now = self._clock()
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            gc.collect()

    def _reading(self) -> list[int]:
        return [at for at in self._next if at not in self._paused]

    def _fetch(self, sought: Sequence[int]) -> None:
        """Have the client fetch what is read now, the partitions in `sought` from where they stand.

        A paused partition is taken from the client altogether: one that it has paused itself may never come
        back, as what it holds of it is only looked at where nothing else was ever read (kafka-python 3.0.12).
        """
        self._consumer.assign([self._at(at) for at in self._reading()])
        for at in sought:
            self._consumer.seek(self._at(at), self._next[at])  # one that is not sought makes every poll raise

    def _check_topic(self) -> None:
        """Ask, if the last answer is not fresh, whether the topic is still the one that was opened.

        A fetch names the topic only: without this, one made anew under the name would be read from the middle.
        """
        now = self._clock()
        if now - self._same_at < CHECK_SECONDS:
            return
        facts = self._cluster.topic(self._facts.name)
        if facts.topic_id != self._facts.topic_id:
            raise kafka_changes.made_anew(facts.name, self._facts.topic_id, facts.topic_id)
        if facts.partitions != self._facts.partitions:
            raise kafka_changes.other_count(facts.name, facts.partitions, self._facts.partitions)
        self._same_at = now

    def _go_behind_lost_records(self) -> None:
        """Find the partitions whose position is not in the log any more; raise, or skip if that is wanted."""
        self._same_at = float("-inf")
        self._check_topic()
        for at, held in self._ranges(sorted(self._next)).items():
            self._next[at] = self._inside(at, self._next[at], held)
        self._rewind()

    def _inside(self, partition: int, offset: int, held: LogRange) -> int:
        """The offset to read from; another one than the position's only where lost records may be skipped."""
        if held.beginning <= offset <= held.end:
            return offset
        name = self._facts.name
        if offset > held.end:
            raise kafka_changes.shorter(name, partition, held.end, offset)
        lost = held.beginning - offset
        if not self._skip_lost:
            raise kafka_changes.records_lost(name, partition, held.beginning, offset)
        log.warning(
            "records were removed before they were read",
            extra={"topic": name, "partition": partition, "from": offset, "to": held.beginning, "lost": lost},
        )
        return held.beginning

    def _ranges(self, partitions: Sequence[int], *, only_ends: bool = False) -> dict[int, LogRange]:
        asked = [self._at(at) for at in partitions]
        try:
            last = self._consumer.end_offsets(asked, timeout_ms=_ANSWER_MS)
            first = {} if only_ends else self._consumer.beginning_offsets(asked, timeout_ms=_ANSWER_MS)
        except errors.KafkaError as error:
            raise kafka_errors.explained(error, self._connection, self._facts.name) from None
        return {at.partition: LogRange(first.get(at, 0), last[at]) for at in asked}

    def _at(self, partition: int) -> TopicPartition:
        return TopicPartition(self._facts.name, partition)


def _consumer(connection: KafkaConnection, topic: str) -> Any:
    try:
        return KafkaConsumer(
            **connection.client_options(),
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="none",  # latest would pass over records silently, earliest read them again
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=10_000,
            request_timeout_ms=10_000,
            fetch_max_wait_ms=200,  # a partition that joins waits for the fetch that is under way
            fetch_max_bytes=16 * 1024 * 1024,
            max_partition_fetch_bytes=1024 * 1024,
        )
    except errors.KafkaError as error:
        raise kafka_errors.explained(error, connection, topic) from None
