"""What the Kafka tests share: topics of their own, and clients that stand for other people's producers."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from benchmarks.kafka_broker import GivenBroker, KafkaBroker
from raygam.adapters.kafka_connection import KafkaConnection
from raygam.adapters.kafka_source import KafkaReader, PartitionRecords
from raygam.memory.errors import Retryable

DEADLINE_SECONDS = 30.0

Collect = Callable[..., dict[int, list[PartitionRecords]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The client leaves the sockets of failed attempts to connect to the collector."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Before a test elsewhere meets what the client left."""
    yield
    gc.collect()


@pytest.fixture
def killable(kafka: KafkaBroker | GivenBroker) -> Iterator[KafkaBroker]:
    """The session's broker, if the tests own it."""
    if not isinstance(kafka, KafkaBroker):
        pytest.skip("the broker is somebody else's, and is not killed")
    client = logging.getLogger("kafka")
    before = client.level
    client.setLevel(logging.CRITICAL + 1)  # a captured line would hold the socket of the attempt that it tells of
    yield kafka
    gc.collect()
    client.setLevel(before)


@pytest.fixture
def connection(kafka: KafkaBroker | GivenBroker) -> KafkaConnection:
    """To the session's broker, without security."""
    return KafkaConnection(kafka.address)


@pytest.fixture
def make_consumer(kafka: KafkaBroker | GivenBroker) -> Callable[..., list[Any]]:
    """Reads the first records of a topic as anybody would."""

    def read(topic: str, partitions: int, count: int) -> list[Any]:
        consumer = KafkaConsumer(
            bootstrap_servers=kafka.address, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        try:
            consumer.assign([TopicPartition(topic, at) for at in range(partitions)])
            found: list[Any] = []
            deadline = time.monotonic() + DEADLINE_SECONDS
            while len(found) < count and time.monotonic() < deadline:
                for records in consumer.poll(100).values():
                    found += records
            return found
        finally:
            consumer.close()

    return read


@pytest.fixture
def make_reader(connection: KafkaConnection) -> Iterator[Callable[..., KafkaReader]]:
    """Readers of the session's broker."""
    with ExitStack() as stack:

        def make(topic: str, **options: Any) -> KafkaReader:
            reader = KafkaReader(connection, topic, **options)
            stack.callback(reader.close)
            return reader

        yield make


@pytest.fixture
def collect() -> Collect:
    return collected


def collected(
    reader: KafkaReader,
    until: Callable[[dict[int, int]], bool],
    *,
    max_records: int | None = None,
    over_outages: bool = False,
) -> dict[int, list[PartitionRecords]]:
    """Poll until the positions say enough; what each partition was given, poll by poll."""
    given: dict[int, list[PartitionRecords]] = {}
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not until({at: position.next_offset for at, position in reader.positions.items()}):
        assert time.monotonic() < deadline, f"stands at {reader.positions}, had {given}"
        try:
            parts = reader.poll(0.1, max_records)
        except Retryable:
            if not over_outages:
                raise
            continue
        for part in parts:
            given.setdefault(part.partition, []).append(part)
    return given
