"""Reading a topic: order, positions, gaps, and partitions that come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka import TopicPartition

from raygam.adapters.kafka_source import KafkaReader, PartitionRecords
from raygam.memory.writes import SourcePosition


def fill(producer: Any, topic: str, partition: int, values: list[bytes]) -> None:
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.flush(10)


def values(parts: list[PartitionRecords]) -> list[bytes]:
    return [value for part in parts for _, value in part.records]


def offsets(parts: list[PartitionRecords]) -> list[int]:
    return [offset for part in parts for offset, _ in part.records]


def test_every_partition_comes_in_its_order(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(3)
    producer = make_producer()
    sent = {at: [b"%d-%d" % (at, n) for n in range(700)] for at in range(3)}
    for at in range(3):
        fill(producer, topic, at, sent[at])
    reader = make_reader(topic, partitions=3)
    reader.assign({0: None, 1: None, 2: None})
    given = collect(reader, lambda stands: set(stands.values()) == {700}, max_records=100)
    assert {at: values(parts) for at, parts in given.items()} == sent
    for parts in given.values():
        assert all(len(part.records) <= 100 for part in parts)
        assert [part.position.next_offset for part in parts] == [part.records[-1][0] + 1 for part in parts]
        assert {part.position.name for part in parts} == {topic}
    assert reader.lag() == {0: 0, 1: 0, 2: 0}


def test_reading_goes_on_from_the_stored_position(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(2)
    producer = make_producer()
    fill(producer, topic, 0, [b"a", b"b", b"c"])
    fill(producer, topic, 1, [b"x", b"y"])
    reader = make_reader(topic)
    reader.assign({0: SourcePosition(2, topic), 1: SourcePosition(0, topic)})
    assert reader.lag() == {0: 1, 1: 2}
    given = collect(reader, lambda stands: stands == {0: 3, 1: 2})
    assert {at: values(parts) for at, parts in given.items()} == {0: [b"c"], 1: [b"x", b"y"]}


def test_the_lag_is_of_all_partitions_whichever_a_poll_brought(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(3)
    producer = make_producer()
    now = 1000.0
    reader = make_reader(topic, clock=lambda: now)
    reader.assign({0: None, 1: None, 2: None})
    taken = 0
    for burst in (1, 2):
        for at in range(3):
            fill(producer, topic, at, [b"%d" % n for n in range(200)])
        now += 1.5
        while not (found := reader.poll(0.2, max_records=10)):
            pass
        taken += len(values(found))
        assert sum(reader.lag().values()) == burst * 600 - taken


def test_gaps_of_transactions_are_passed_over(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(1)
    producer = make_producer(transactional_id=f"{topic}-writer")
    producer.init_transactions()
    for word, commits in ((b"kept", True), (b"dropped", False), (b"late", True)):
        producer.begin_transaction()
        for n in range(5):
            producer.send(topic, b"%s-%d" % (word, n), partition=0)
        producer.flush(10)
        (producer.commit_transaction if commits else producer.abort_transaction)()
    reader = make_reader(topic)
    reader.assign({0: None})
    given = collect(reader, lambda stands: stands == {0: 18})  # three markers, the last one at 17
    assert values(given[0]) == [b"kept-%d" % n for n in range(5)] + [b"late-%d" % n for n in range(5)]
    assert offsets(given[0]) == [0, 1, 2, 3, 4, 12, 13, 14, 15, 16]
    assert reader.lag() == {0: 0}


def test_an_open_transaction_is_not_read_before_its_end(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(1)
    fill(make_producer(), topic, 0, [b"before"])
    producer = make_producer(transactional_id=f"{topic}-writer")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0)
    producer.flush(10)
    reader = make_reader(topic)
    reader.assign({0: None})
    assert values(collect(reader, lambda stands: stands == {0: 1})[0]) == [b"before"]
    assert reader.poll(0.3) == []
    producer.commit_transaction()
    assert values(collect(reader, lambda stands: stands == {0: 3})[0]) == [b"open"]


def test_only_aborted_records_move_the_position(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(1)
    producer = make_producer(transactional_id=f"{topic}-writer")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"never", partition=0)
    producer.flush(10)
    producer.abort_transaction()
    reader = make_reader(topic)
    reader.assign({0: None})
    given = collect(reader, lambda stands: stands == {0: 2})
    assert [(part.records, part.position.next_offset) for part in given[0]] == [([], 2)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(
    codec: str | None, make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(1)
    sent = [b"%d " % n + b"the same words again and again " * 20 for n in range(200)]
    fill(make_producer(compression_type=codec, linger_ms=50), topic, 0, sent)
    reader = make_reader(topic)
    reader.assign({0: None})
    assert values(collect(reader, lambda stands: stands == {0: 200})[0]) == sent


def test_a_record_without_a_value_is_empty(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(1)
    producer = make_producer()
    producer.send(topic, None, key=b"7:default:ann", partition=0)
    producer.flush(10)
    reader = make_reader(topic)
    reader.assign({0: None})
    assert collect(reader, lambda stands: stands == {0: 1})[0][0].records == [(0, b"")]


def test_a_paused_partition_waits_and_loses_nothing(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(2)
    producer = make_producer()
    for at in range(2):
        fill(producer, topic, at, [b"%d" % n for n in range(50)])
    reader: KafkaReader = make_reader(topic)
    reader.assign({0: None, 1: None})
    first = collect(reader, lambda stands: stands[0] > 0, max_records=10)
    reader.pause(0)
    stood = reader.positions[0].next_offset
    rest = collect(reader, lambda stands: stands[1] == 50, max_records=10)
    assert 0 not in rest
    assert reader.positions[0].next_offset == stood
    reader.resume(0)
    after = collect(reader, lambda stands: stands[0] == 50, max_records=10)
    assert values(first[0] + after[0]) == [b"%d" % n for n in range(50)]


def test_partitions_come_and_go_and_the_others_go_on(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(3)
    producer = make_producer()
    for at in range(3):
        fill(producer, topic, at, [b"%d" % n for n in range(20)])
    reader: KafkaReader = make_reader(topic)
    reader.assign({0: None, 1: None})
    collect(reader, lambda stands: stands == {0: 20, 1: 20})
    reader.unassign(0)
    reader.assign({2: SourcePosition(15, topic)})
    for at in range(3):
        fill(producer, topic, at, [b"new"])
    given = collect(reader, lambda stands: stands == {1: 21, 2: 21})
    assert {at: values(parts) for at, parts in given.items()} == {
        1: [b"new"],
        2: [b"15", b"16", b"17", b"18", b"19", b"new"],
    }
    reader.unassign(1)
    reader.unassign(2)
    assert reader.poll(0.1) == []


def test_offsets_that_compaction_left_are_enough(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any, admin: Any
) -> None:
    topic = make_topic(1)
    producer = make_producer()
    fill(producer, topic, 0, [b"%d" % n for n in range(10)])
    admin.delete_records({TopicPartition(topic, 0): 4})
    reader = make_reader(topic)
    reader.assign({0: None})
    given = collect(reader, lambda stands: stands == {0: 10})
    assert offsets(given[0]) == [4, 5, 6, 7, 8, 9]


def test_everything_may_be_paused(
    make_topic: Callable[..., str], make_producer: Any, make_reader: Any, collect: Any
) -> None:
    topic = make_topic(1)
    fill(make_producer(), topic, 0, [b"a"])
    waited: list[float] = []
    reader: KafkaReader = make_reader(topic, wait=waited.append)
    assert reader.poll(0.25) == []
    reader.assign({0: None})
    reader.pause(0)
    assert reader.poll(0.5) == []
    assert waited == [0.25, 0.5]
    assert reader.lag() == {0: 1}
    assert reader.paused == {0}
    reader.resume(0)
    assert values(collect(reader, lambda stands: stands == {0: 1})[0]) == [b"a"]
