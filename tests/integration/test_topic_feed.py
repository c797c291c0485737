"""A topic followed by hosts between which partitions move: each record once, whatever was read ahead."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from raygam.adapters.faiss_index import FaissFlatIndex
from raygam.adapters.sqlite_store import SqliteStore
from raygam.adapters.stub_embedder import StubEmbedder
from raygam.memory.errors import Misconfigured, NotOwner, Refused, Retryable
from raygam.memory.identity import partition_of, record_key
from raygam.memory.model import User
from raygam.memory.writes import SourcePosition, StateFacts
from raygam.pipeline import backoff, follow
from raygam.pipeline.host import ShardHost
from raygam.pipeline.host_status import HostSettings
from raygam.pipeline.intake import Intake
from raygam.pipeline.jobs import TakenLog, TopicJob
from raygam.pipeline.kafka_config import KafkaFields
from raygam.pipeline.reading import Reading
from raygam.pipeline.records import RecordLimits
from raygam.pipeline.shard import ShardSettings
from raygam.pipeline.summary import totals

PARTITIONS = 3
RECORDS = 400
SOURCE = "kafka:an-id"
FACTS = StateFacts(PARTITIONS, "murmur2", "stub-8", 8, 1)


@dataclass(frozen=True)
class Part:
    partition: int
    records: list[tuple[int, bytes]]
    position: SourcePosition


class Log:
    """A topic in memory, and everything that its readers were asked."""

    def __init__(self) -> None:
        self.partitions: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.failures: list[Exception] = []
        self.opened = 0
        self.closed = 0
        for number in range(RECORDS):
            user = User("default", f"u{number % 20}")
            turn = {
                **{"message_id": f"m{number}", "user_id": user.user_id, "session_id": "s", "speaker": "Ana"},
                **{"role": "user", "text": f"turn {number}", "timestamp": 1_700_000_000_000 + number * 1000},
            }
            self.partitions[partition_of(record_key(user), PARTITIONS, "murmur2")].append(json.dumps(turn).encode())

    def reader(self, job: TopicJob) -> LogReader:
        self.opened += 1
        return LogReader(self)

    def ends(self) -> tuple[int, ...]:
        return tuple(len(records) for records in self.partitions)


class LogReader:
    """Reads the log; like a client of Kafka it belongs to one thread."""

    source_id = SOURCE

    def __init__(self, log: Log) -> None:
        self._log = log
        self._thread = threading.get_ident()
        self._next: dict[int, int] = {}
        self._paused: set[int] = set()

    @property
    def positions(self) -> dict[int, SourcePosition]:
        return {at: SourcePosition(offset, "dialogue") for at, offset in self._next.items()}

    def identify(self, known: Mapping[str, SourcePosition]) -> str:
        return self.source_id

    def assign(self, stored: Mapping[int, SourcePosition | None]) -> None:
        self._next |= {at: position.next_offset if position else 0 for at, position in stored.items()}

    def unassign(self, partition: int) -> None:
        del self._next[partition]

    def pause(self, partition: int) -> None:
        self._paused.add(partition)

    def resume(self, partition: int) -> None:
        self._paused.discard(partition)

    def poll(self, timeout_seconds: float, max_records: int | None = None) -> Sequence[Part]:
        assert threading.get_ident() == self._thread
        if self._log.failures:
            raise self._log.failures.pop(0)
        found = []
        for at in self._next.keys() - self._paused:
            first = self._next[at]
            records = self._log.partitions[at][first : first + (max_records or 1)]
            if records:
                self._next[at] = first + len(records)
                found.append(Part(at, list(enumerate(records, first)), SourcePosition(self._next[at], "dialogue")))
        if not found:
            time.sleep(0.001)
        return found

    def lag(self) -> dict[int, int]:
        return {at: len(self._log.partitions[at]) - offset for at, offset in self._next.items()}

    def close(self) -> None:
        assert threading.get_ident() == self._thread
        self._log.closed += 1


class Hosts:
    """Makes hosts over one state that follow one log."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.log = Log()
        self.hosts: list[ShardHost] = []

    def __call__(self, **limits: int) -> ShardHost:
        embedder = StubEmbedder(8)
        store = SqliteStore.join(self.state, FACTS, "here")
        index = FaissFlatIndex(8, 1 << 20)
        host = ShardHost(
            f"shard-{len(self.hosts)}",
            1,
            store,
            Reading(SqliteStore.open_read_only(self.state), embedder, index, max_users=8, context_tokens=100),
            Intake(FACTS, embedder, RecordLimits()),
            HostSettings(ShardSettings(), min_free_bytes=0, **limits),
            lambda: time.time_ns() // 1000,
            lambda path: None,
            self.state,
            open_topic=self.log.reader,
        )
        self.hosts.append(host)
        return host

    def texts(self) -> list[str]:
        """Of every event in the ledger, by partition and in its order."""
        store = SqliteStore.open_read_only(self.state)
        try:
            readers = [store.reader(at) for at in range(PARTITIONS)]
            return [
                event.message_id for reader in readers for row in reader.users() for event in reader.events(row.user)
            ]
        finally:
            store.close()


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path / "state")
    yield hosts
    for host in hosts.hosts:
        host.close()


def job(until: tuple[int, ...] | None = None, poll_records: int = 3) -> TopicJob:
    return TopicJob(KafkaFields.model_validate({"kafka_topic": "dialogue"}), SOURCE, poll_records, until)


def wait_for(met: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.002)


def positions(hosts: Sequence[ShardHost]) -> dict[int, int]:
    return {
        at: held.positions[SOURCE].next_offset if SOURCE in held.positions else 0
        for host in hosts
        for at, held in host.status().partitions.items()
    }


@pytest.mark.parametrize("seed", range(8))
def test_partitions_that_move_to_and_fro_take_each_record_once_and_in_order(make_host: Hosts, seed: int) -> None:
    """Also those that come back before what was read ahead for them is gone."""
    chance = random.Random(seed)
    hosts = [make_host(), make_host()]
    wanted = job()
    hosts[0].open(range(PARTITIONS), wanted)
    hosts[1].open([], wanted)
    where = dict.fromkeys(range(PARTITIONS), 0)
    while sum(positions(hosts).values()) < RECORDS * 0.9:
        at = chance.randrange(PARTITIONS)
        if chance.random() < 0.5:
            hosts[where[at]].give_up(at)
        to = chance.choice([where[at], 1 - where[at]])
        hosts[to].open([at], wanted)
        where[at] = to
        time.sleep(chance.random() * 0.004)
    wait_for(lambda: sum(positions(hosts).values()) == RECORDS)
    assert not [feed.failure for host in hosts for feed in host.status().feeds if feed.failure]
    found = make_host.texts()
    assert len(found) == len(set(found)) == RECORDS


def test_what_was_read_ahead_for_an_earlier_opening_is_dropped(
    make_host: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches wait behind one that is being applied; meanwhile the partition leaves and comes back."""
    host = make_host()
    applied = threading.Event()
    go_on = threading.Event()
    ingest = host.ingest

    def held_up(batch: object) -> object:
        applied.set()
        assert go_on.wait(20)
        return ingest(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(host, "ingest", held_up)
    host.open([0, 1], job(poll_records=5))
    assert applied.wait(20)
    feed = host._feeds[0]
    feed.forget(1)  # as when a newer epoch was met, and the partition came back at once
    assert feed.take([1])
    go_on.set()
    ends = make_host.log.ends()
    wait_for(lambda: positions([host]) == {0: ends[0], 1: ends[1]})
    assert len(set(make_host.texts())) == ends[0] + ends[1]


def test_it_waits_for_capacity_and_pauses(make_host: Hosts) -> None:
    host = make_host(max_waiting_turns=-1)
    host.open(range(PARTITIONS), job())
    wait_for(lambda: "max_waiting_turns" in host.status().feeds[0].paused)
    stands = positions([host])
    make_host.log.partitions[0] += make_host.log.partitions[0][:1]
    wait_for(lambda: sum(host.status().feeds[0].lag.values()) == RECORDS + 1 - sum(positions([host]).values()))
    assert sum(positions([host]).values()) <= sum(stands.values()) + 3 * 3 * 2


def test_what_was_left_is_by_the_ledgers_word(make_host: Hosts) -> None:
    """A stop comes at any edge: what was applied after the status was last told is not still to be taken."""
    host = make_host()
    ends = make_host.log.ends()
    before = TakenLog(2, ends[0])
    host.open([0, 1], job(poll_records=5))
    wait_for(lambda: positions([host]) == {0: ends[0], 1: ends[1]})
    logs = {0: before, 1: TakenLog(0, ends[1] + 7), 2: TakenLog(30, 50)}  # of 2 the ledger has nothing: it began at 30
    store = SqliteStore.open_read_only(make_host.state)
    readers = [store.reader(at) for at in range(PARTITIONS)]
    report = follow.reported(job(), readers, totals(readers), logs=logs, finished=False)
    store.close()
    assert before.lag > 0
    assert (report.lag, report.positions) == (0 + 7 + 20, {0: ends[0], 1: ends[1]})


def test_an_obstacle_is_got_over_and_an_error_ends_it(make_host: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "PAUSES", (0.0,))
    host = make_host()
    make_host.log.failures += [Retryable("no broker answers"), Refused("a broker that is starting knows no topic")]
    host.open([0], job())
    wait_for(lambda: positions([host])[0] == make_host.log.ends()[0])
    make_host.log.failures.append(Misconfigured("the topic was made anew"))
    wait_for(lambda: host.status().feeds[0].ended)
    ended = host.status().feeds[0]
    assert (ended.failure, ended.misconfigured) == ("the topic was made anew", True)
    wait_for(lambda: make_host.log.closed == make_host.log.opened == 3)


def test_a_topic_taken_to_its_end_waits_for_partitions_that_come(make_host: Hosts) -> None:
    host = make_host()
    until = job(make_host.log.ends())
    host.open([0], until)
    wait_for(lambda: host.status().feeds[0].ended)
    assert host.status().feeds[0].flushed
    host.open([1, 2], until)
    wait_for(lambda: all(feed.flushed and feed.ended for feed in host.status().feeds))
    assert {at for feed in host.status().feeds for at in feed.partitions} == {0, 1, 2}
    assert sum(positions([host]).values()) == RECORDS
    assert host.shard(2).task_counts()[0] > 0, "the end was not flushed"


def test_a_host_that_closes_ends_its_reading(make_host: Hosts) -> None:
    host = make_host()
    host.open(range(PARTITIONS), job())
    wait_for(lambda: host.status().feeds[0].accepted > 0)
    host.close()
    wait_for(lambda: make_host.log.closed == 1)
    with pytest.raises(NotOwner):
        host.open([0], job())
