"""The part of `benchmarks.ingest` that reads a topic: from Kafka to durable and searchable.

The topic is taken by the engine of one process, without workers (the fast path), into a fresh
state each run. In the same run stand the bare embedder on the same texts, before and after, and
the bare `KafkaConsumer` on the same topic. Then it is taken with a worker, which is what a
machine can bear for long; records come at half of that rate, and each is watched until it is searchable.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from rich.console import Console

from benchmarks.kafka_broker import broker_at_hand
from raygam.memory.errors import Misconfigured
from raygam.memory.model import User
from raygam.pipeline import follow, kafka_runtime, runtime
from raygam.pipeline.config import Settings
from raygam.pipeline.jobs import TopicJob
from raygam.pipeline.local import LocalEngine
from raygam.pipeline.produce import produce
from raygam.pipeline.routing import Routing

console = Console(stderr=True)
_LOOK_SECONDS = 0.01
_STATUS_SECONDS = 0.1
_SEARCHED = 25


@dataclass(frozen=True, slots=True)
class Lag:
    """How long records took from being sent to being searchable.

    Attributes:
        seconds: of each record, `(records,)`.
        rate: records a second that were sent.
        searched: records that were asked for as soon as they counted as searchable.
        found: those of them that were the best memory of their own text.
    """

    seconds: np.ndarray
    rate: float
    searched: int
    found: int


@contextmanager
def broker(address: str) -> Iterator[str]:
    """The broker at an address, or with `auto` one of our own; gives its address."""
    if address != "auto":
        yield address
        return
    with tempfile.TemporaryDirectory(prefix="raygam-kafka-") as folder, broker_at_hand(Path(folder)) as found:
        if found is None:
            raise Misconfigured("there is no Kafka to start: set KAFKA_HOME to an unpacked release (and have Java)")
        yield found.address


def fill(source: Path, settings: Settings) -> None:
    """Make the topic, and send the file into it."""
    with kafka_runtime.open_cluster(settings) as cluster:
        cluster.create(settings.kafka_topic, settings.partitions, 1)
    producer = kafka_runtime.open_producer(settings)
    try:
        routing = Routing(settings.partitions, settings.partitioner)
        produce(runtime.open_source(source), producer, routing, max_record_bytes=settings.max_record_bytes)
    finally:
        producer.close()


def bare_consumer(settings: Settings, turns: int) -> float:
    """Read the whole topic with the bare client; return seconds from the first poll."""
    consumer = KafkaConsumer(
        bootstrap_servers=settings.kafka_brokers,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_bytes=16 * 1024 * 1024,
    )
    try:
        consumer.assign([TopicPartition(settings.kafka_topic, at) for at in range(settings.partitions)])
        found, started = 0, time.perf_counter()
        while found < turns:
            found += sum(map(len, consumer.poll(200, max_records=4096).values()))
        return time.perf_counter() - started
    finally:
        consumer.close()


def stream_topic(settings: Settings, state: Path, turns: int, *, workers: int) -> float:
    """Take the whole topic into a fresh state; return seconds until all is durable and searchable.

    With workers, until everything that can be is consolidated too.
    """
    engine = runtime.open_local(state, settings, workers=workers)
    try:
        engine.host.read(_job(engine, settings))
        started = time.perf_counter()
        while (accepted := _accepted(engine)) < turns or (workers and _open_tasks(engine)):
            time.sleep(_STATUS_SECONDS)  # a look costs a millisecond of the engine's own time
        seconds = time.perf_counter() - started
        assert accepted == turns, f"{accepted} of {turns} turns were accepted"
        return seconds
    finally:
        engine.close()


def lag_at(settings: Settings, state: Path, source: Path, rate: float, seconds: float) -> Lag:
    """Send records at a rate while the engine follows with a worker, and watch until each is searchable.

    Args:
        settings: the topic, which the state has taken already.
        state: where the engine went through it.
        source: dialogue whose message ids are new.
        rate: records a second.
        seconds: for so long.
    """
    engine = runtime.open_local(state, settings, workers=1)
    try:
        engine.host.read(_job(engine, settings))
        _wait(lambda: bool(engine.host.status().feeds[0].lag) and not _open_tasks(engine))
        return _Paced(engine, settings, source, rate, seconds).run()
    finally:
        engine.close()


class _Paced:
    """Records sent on their time by another process, and a look every ten milliseconds at how far each partition is."""

    def __init__(self, engine: LocalEngine, settings: Settings, source: Path, rate: float, seconds: float) -> None:
        self._engine = engine
        self._settings = settings
        self._source = source
        self._rate = rate
        self._count = int(rate * seconds)
        self._source_id = next(iter(engine.host.status().feeds)).job.source_id
        routing = Routing(settings.partitions, settings.partitioner)
        self._lines: dict[int, list[bytes]] = {at: [] for at in range(settings.partitions)}
        for line in _first_lines(source, self._count):
            self._lines[routing.of_record(line)[1]].append(line)
        self._base = {at: self._position(at) for at in self._lines}
        self._seen_at: dict[int, list[float]] = {at: [] for at in self._lines}  # of each record, by partition

    def run(self) -> Lag:
        here, there = multiprocessing.get_context("spawn").Pipe(duplex=False)
        sender = multiprocessing.get_context("spawn").Process(
            target=_send, args=(self._settings, self._source, self._count, self._rate, there), daemon=True
        )
        sender.start()
        next_search = time.perf_counter()
        answers: list[Future[bool]] = []
        with ThreadPoolExecutor(1) as pool:
            while sum(map(len, self._seen_at.values())) < self._count:
                now = time.perf_counter()
                latest = b""
                for at, lines in self._lines.items():
                    seen = self._seen_at[at]
                    new = self._position(at) - self._base[at] - len(seen)
                    seen += [now] * new
                    latest = lines[len(seen) - 1] if new else latest
                if latest and now >= next_search and len(answers) < _SEARCHED:
                    answers.append(pool.submit(self._is_found, latest))
                    next_search = now + 1.0
                time.sleep(_LOOK_SECONDS)
        sent_at: dict[int, list[float]] = here.recv()  # on the same clock: the machine's, since it was started
        sender.join()
        lags = [
            seen - sent for at, times in sent_at.items() for sent, seen in zip(times, self._seen_at[at], strict=True)
        ]
        return Lag(np.asarray(lags), self._rate, len(answers), sum(answer.result() for answer in answers))

    def _position(self, partition: int) -> int:
        held = self._engine.host.shard(partition).positions().get(self._source_id)
        return held.next_offset if held else 0

    def _is_found(self, line: bytes) -> bool:
        turn = json.loads(line)
        user = User("default", turn["user_id"])
        partition = self._engine.host.intake.partition_of(user)
        answer = self._engine.host.search(partition, user, turn["text"], None, {"k": 1, "mode": "flat"})
        return bool(answer["memories"]) and answer["memories"][0]["message_id"] == turn["message_id"]


def _first_lines(source: Path, count: int) -> list[bytes]:
    with source.open("rb") as file:
        return [line.rstrip() for line, _ in zip(file, range(count), strict=False)]


def _send(settings: Settings, source: Path, count: int, rate: float, answer: Connection) -> None:
    """Send lines on their time; answer per partition when each was handed to the client. Runs in its own process."""
    sent_at: dict[int, list[float]] = {at: [] for at in range(settings.partitions)}
    lines = _first_lines(source, count)
    producer = kafka_runtime.open_producer(settings)
    routing = Routing(settings.partitions, settings.partitioner)
    try:
        started = time.perf_counter()
        for number, line in enumerate(lines):
            time.sleep(max(0.0, started + number / rate - time.perf_counter()))
            key, partition = routing.of_record(line)
            sent_at[partition].append(time.perf_counter())
            producer.send(partition, key, line)
        producer.flush()
    finally:
        producer.close()
    answer.send(sent_at)


def spread(values: list[float]) -> tuple[float, dict[str, float]]:
    """The median, and what lies around it."""
    return statistics.median(values), {"min": round(min(values), 4), "max": round(max(values), 4), "runs": len(values)}


def _job(engine: LocalEngine, settings: Settings) -> TopicJob:
    return follow.job_for(settings, engine.facts, engine.readers, to_the_end=False)


def _accepted(engine: LocalEngine) -> int:
    feeds = engine.host.status().feeds
    for feed in feeds:
        assert not feed.failure, feed.failure
    return sum(feed.accepted for feed in feeds)


def _open_tasks(engine: LocalEngine) -> int:
    return sum(held.open_tasks for held in engine.host.status().partitions.values())


def _wait(met: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
