"""What may happen to a topic and its broker while it is read: nothing is lost or doubled, and errors say what to do."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import TopicPartition

from benchmarks.kafka_broker import KafkaBroker, free_ports
from raygam.adapters.kafka_cluster import KafkaCluster, TopicFacts
from raygam.adapters.kafka_connection import KafkaConnection
from raygam.adapters.kafka_producer import TopicProducer
from raygam.adapters.kafka_source import KafkaReader, PartitionRecords
from raygam.memory.errors import Misconfigured, Retryable
from raygam.memory.writes import SourcePosition

DEADLINE_SECONDS = 30.0


def fill(producer: Any, topic: str, partition: int, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        producer.send(topic, b"%d" % n, partition=partition)
    producer.flush(20)


def error_of(
    reader: KafkaReader,
    kind: type[Exception],
    given: list[dict[int, list[PartitionRecords]]] | None = None,
    max_records: int | None = None,
) -> str:
    """Poll until it raises; what comes before that is added to `given`."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        try:
            parts = reader.poll(0.1, max_records)
        except kind as error:
            return str(error)
        if given is not None and parts:
            given.append({part.partition: [part] for part in parts})
    raise AssertionError("no error came")


def _assert_sockets_are_swept(reader: KafkaReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may wait for hours, and a process that waits makes no work for the collector."""

    def open_files(seconds: float) -> int:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(Retryable):
                reader.poll(0.1)
        return len(os.listdir("/proc/self/fd"))

    gc.disable()
    try:
        monkeypatch.setattr("raygam.adapters.kafka_source._SWEEP_SECONDS", float("inf"))
        gathered = open_files(4)
        monkeypatch.setattr("raygam.adapters.kafka_source._SWEEP_SECONDS", 0.0)
        assert open_files(0.5) <= gathered - 5
    finally:
        gc.enable()
        monkeypatch.undo()


def test_a_killed_broker_comes_back_and_nothing_is_lost_or_doubled(
    killable: KafkaBroker,
    make_topic: Callable[..., str],
    make_producer: Any,
    make_reader: Any,
    collect: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(2)
    producer = make_producer()
    for at in range(2):
        fill(producer, topic, at, 3000)
    reader: KafkaReader = make_reader(topic)
    reader.assign({0: None, 1: None})
    before = collect(reader, lambda stands: sum(stands.values()) >= 700, max_records=70)
    killable.kill()
    try:
        given = [before]
        said = error_of(reader, Retryable, given, max_records=70)  # first comes what was fetched before
        assert f"no Kafka broker answers at {killable.address}" in said
        stood = reader.positions
        with pytest.raises(Retryable):
            reader.probe()
        assert reader.positions == stood
        _assert_sockets_are_swept(reader, monkeypatch)
    finally:
        killable.start()
    for at in range(2):
        fill(producer, topic, at, 500, start=3000)
    given.append(collect(reader, lambda stands: set(stands.values()) == {3500}, max_records=500, over_outages=True))
    for at in range(2):
        parts = [part for polled in given for part in polled.get(at, [])]
        assert [offset for part in parts for offset, _ in part.records] == list(range(3500))
        assert [value for part in parts for _, value in part.records] == [b"%d" % n for n in range(3500)]
    reader.probe()


def test_records_that_came_while_the_cluster_could_not_be_asked_come_again(
    make_topic: Callable[..., str],
    make_producer: Any,
    make_reader: Any,
    collect: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(1)
    fill(make_producer(), topic, 0, 300)
    reader: KafkaReader = make_reader(topic)
    reader.assign({0: None})
    asked = KafkaCluster.topic
    answers = iter([True, False, False, True, False])

    def sometimes(self: KafkaCluster, name: str) -> TopicFacts:
        if not next(answers, True):
            raise Retryable("the cluster is away")
        return asked(self, name)

    monkeypatch.setattr(KafkaCluster, "topic", sometimes)
    monkeypatch.setattr("raygam.adapters.kafka_source.CHECK_SECONDS", 0.0)
    given = collect(reader, lambda stands: stands == {0: 300}, max_records=40, over_outages=True)
    assert [offset for part in given[0] for offset, _ in part.records] == list(range(300))
    assert next(answers, None) is None


def test_a_dead_address_is_named_at_once() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    started = time.monotonic()
    with pytest.raises(Retryable, match=f"no Kafka broker answers at {address}.*is it running"):
        KafkaReader(KafkaConnection(address), "dialogue")
    assert time.monotonic() - started < 5


def test_one_broker_of_several_is_enough(connection: KafkaConnection, make_topic: Callable[..., str]) -> None:
    topic = make_topic(1)
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    with KafkaCluster(KafkaConnection(f"{dead}, {connection.brokers}")) as cluster:
        assert cluster.topic(topic).partitions == 1


def test_a_name_that_nobody_knows_is_said_to_be_unknown() -> None:
    with pytest.raises(Retryable, match=r"name of the Kafka broker nowhere\.invalid:9092 is not known"):
        KafkaReader(KafkaConnection("nowhere.invalid"), "dialogue")


def test_a_missing_topic_is_named(connection: KafkaConnection) -> None:
    with pytest.raises(Misconfigured, match=r"no topic missing at .*raygam topics create missing"):
        KafkaReader(connection, "missing")


def test_a_topic_with_other_partitions_is_refused(make_topic: Callable[..., str], make_reader: Any) -> None:
    topic = make_topic(3)
    with pytest.raises(Misconfigured, match=f"topic {topic} has 3 partitions, and the state 8.*--partitions 8"):
        make_reader(topic, partitions=8)


def test_partitions_that_are_added_while_reading_stop_it(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, admin: Any
) -> None:
    topic = make_topic(1)
    reader: KafkaReader = make_reader(topic, partitions=1)
    reader.assign({0: None})
    admin.create_partitions({topic: 2})
    assert f"topic {topic} has 2 partitions, and the state 1" in error_of(reader, Misconfigured)


def test_records_that_retention_removed_stop_it_and_are_counted(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, admin: Any
) -> None:
    topic = make_topic(1)
    fill(make_producer(), topic, 0, 10)
    admin.delete_records({TopicPartition(topic, 0): 6})
    reader: KafkaReader = make_reader(topic)
    with pytest.raises(
        Misconfigured, match=r"begins at offset 6, and was read up to 2: up to 4 records.*kafka_skip_lost"
    ):
        reader.assign({0: SourcePosition(2, topic)})
    assert reader.positions == {}


def test_records_that_go_while_reading_stop_it(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, admin: Any
) -> None:
    topic = make_topic(2)
    reader: KafkaReader = make_reader(topic)
    producer = make_producer()
    fill(producer, topic, 0, 10)
    reader.assign({0: None, 1: None})
    reader.pause(0)
    admin.delete_records({TopicPartition(topic, 0): 8})
    reader.resume(0)
    said = error_of(reader, Misconfigured)
    assert f"partition 0 of topic {topic} begins at offset 8, and was read up to 0: up to 8 records" in said
    assert reader.positions[0].next_offset == 0


def test_lost_records_are_skipped_only_where_that_is_asked_for(
    make_topic: Callable[..., str],
    make_producer: Any,
    make_reader: Any,
    admin: Any,
    collect: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic(2)
    producer = make_producer()
    for at in range(2):
        fill(producer, topic, at, 10)
    admin.delete_records({TopicPartition(topic, 1): 3})
    reader: KafkaReader = make_reader(topic, skip_lost=True)
    with caplog.at_level(logging.WARNING, "raygam.kafka"):
        reader.assign({0: SourcePosition(1, topic), 1: SourcePosition(2, topic)})
        reader.pause(0)
        admin.delete_records({TopicPartition(topic, 0): 5})
        reader.resume(0)
        given = collect(reader, lambda stands: set(stands.values()) == {10})
    assert {at: [offset for part in parts for offset, _ in part.records] for at, parts in given.items()} == {
        0: [5, 6, 7, 8, 9],
        1: [3, 4, 5, 6, 7, 8, 9],
    }
    assert sorted(record.__dict__["lost"] for record in caplog.records) == [1, 4]


def test_a_position_behind_the_end_stops_it(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any
) -> None:
    topic = make_topic(1)
    fill(make_producer(), topic, 0, 3)
    reader: KafkaReader = make_reader(topic)
    with pytest.raises(Misconfigured, match="ends at offset 3, and was read up to 9 before: 6 records are gone"):
        reader.assign({0: SourcePosition(9, topic)})


def test_a_topic_made_anew_is_another_source(make_topic: Callable[..., str], make_reader: Any, admin: Any) -> None:
    topic = make_topic(1)
    old: KafkaReader = make_reader(topic)
    known = {old.source_id: SourcePosition(5, topic), "kafka:other": SourcePosition(1, "other")}
    assert old.identify(known) == old.source_id == old.identify({})
    admin.delete_topics([topic])
    make_topic(1, topic)
    new: KafkaReader = make_reader(topic)
    assert new.source_id != old.source_id
    with pytest.raises(Misconfigured, match=f"topic {topic} was made anew.*kafka_accept_topic to {new.topic.topic_id}"):
        new.identify(known)
    accepting: KafkaReader = make_reader(topic, accept=new.topic.topic_id)
    assert accepting.identify(known) == new.source_id
    assert new.identify(known | {new.source_id: SourcePosition(1, topic)}) == new.source_id


@pytest.mark.parametrize("paused", [False, True])
def test_a_topic_made_anew_while_reading_hands_out_nothing_of_the_new_one(
    paused: bool, make_topic: Callable[..., str], make_producer: Any, make_reader: Any, admin: Any, collect: Any
) -> None:
    topic = make_topic(1)
    fill(make_producer(), topic, 0, 5)
    reader: KafkaReader = make_reader(topic)
    reader.assign({0: None})
    collect(reader, lambda stands: stands == {0: 5})
    if paused:  # no fetch of the reader's sees the deletion
        reader.pause(0)
    admin.delete_topics([topic])
    make_topic(1, topic)
    fill(make_producer(), topic, 0, 20)
    reader.resume(0)
    given: list[dict[int, list[PartitionRecords]]] = []
    assert f"topic {topic} was made anew" in error_of(reader, Misconfigured, given)
    assert given == []


def test_a_topic_that_is_deleted_while_reading_is_missed(
    make_topic: Callable[..., str], make_reader: Any, admin: Any
) -> None:
    topic = make_topic(1)
    reader: KafkaReader = make_reader(topic)
    reader.assign({0: None})
    admin.delete_topics([topic])
    assert f"there is no topic {topic}" in error_of(reader, Misconfigured)


def test_a_missing_codec_is_named(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(1)
    producer = make_producer(compression_type="lz4")
    producer.send(topic, b"the same words again " * 50, partition=0)
    producer.flush(20)
    reader: KafkaReader = make_reader(topic)
    reader.assign({0: None})
    monkeypatch.setattr("kafka.codec.has_lz4", lambda: False)
    assert "pip install 'kafka-python[crc32c,lz4,zstd,snappy]'" in error_of(reader, Misconfigured)
    monkeypatch.undo()
    assert reader.positions[0].next_offset == 0


def test_a_producer_leaves_while_no_broker_answers(killable: KafkaBroker, make_topic: Callable[..., str]) -> None:
    producer = TopicProducer(KafkaConnection(killable.address), make_topic(1), max_record_bytes=1000)
    producer.send(0, None, b"taken")
    producer.flush()
    killable.kill()
    try:
        producer.send(0, None, b"queued")
        started = time.monotonic()
        producer.close()
        assert time.monotonic() - started < 8
        assert producer.acknowledged == 1
        del producer
        gc.collect()  # a client that is not closed complains here
    finally:
        killable.start()
