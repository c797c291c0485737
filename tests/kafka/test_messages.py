"""Dead letters and updates in their topics, over a real broker: each is there, with its id, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from benchmarks.kafka_broker import GivenBroker, KafkaBroker, free_ports
from raygam.adapters.kafka_connection import KafkaConnection
from raygam.adapters.kafka_messages import MessageProducer
from raygam.memory.errors import Misconfigured, Refused, Rejected, Retryable
from raygam.memory.identity import letter_id, record_key
from raygam.memory.model import User
from raygam.memory.writes import OutboxMessage
from raygam.pipeline import backoff, cli_kafka, cli_stream, runtime
from raygam.pipeline.config import Settings, read_settings

PARTITIONS = 2
Broker = KafkaBroker | GivenBroker


def settings(broker: Broker, topic: str, **changed: Any) -> Settings:
    values = {"embedder": "stub", "kafka_poll_records": 20, "kafka_brokers": broker.address, "kafka_topic": topic}
    return read_settings(**(values | {"kafka_updates_topic": f"{topic}.updates"} | changed))


def record(number: int, user: str, **fields: Any) -> bytes:
    turn = {"message_id": f"m{number}", "user_id": user, "session_id": "s", "speaker": "Ana", "role": "user"}
    turn |= {"text": f"word{number} again and again"}
    return json.dumps(turn | {"timestamp": 1_700_000_000_000 + number * 3_600_000} | fields).encode()


def lines(count: int, start: int = 0) -> list[bytes]:
    """Turns an hour apart, so that each is an episode, and every fourth line one that nobody can take."""
    made = []
    for number in range(start, start + count):
        made.append(record(number, f"u{number % 5}"))
        if number % 4 == 0:
            made.append([b"no record at all %d" % number, record(number, "u1", text=number)][number % 8 // 4])
    return made


def produce(path: Path, given: Settings, made: list[bytes]) -> None:
    path.write_bytes(b"\n".join(made) + b"\n")
    cli_kafka.produce(path, given, quiet=True)


def header(found: Any, name: str) -> str:
    return str(dict(found.headers)[name].decode())


def episode_ids(state: Path) -> set[str]:
    store = runtime.open_store(state)
    try:
        readers = [store.reader(at) for at in range(PARTITIONS)]
        return {one.id for reader in readers for row in reader.users() for one in reader.episodes(row.user)}
    finally:
        store.close()


def unsent(state: Path) -> int:
    store = runtime.open_store(state)
    try:
        return sum(store.reader(at).partition_info().unsent_messages for at in range(PARTITIONS))
    finally:
        store.close()


def letter_ids(state: Path) -> set[str]:
    store = runtime.open_store(state)
    try:
        return {
            letter_id(one.source, at, one.offset) for at in range(PARTITIONS) for one in store.reader(at).dead_letters()
        }
    finally:
        store.close()


def wait_for(met: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def test_letters_and_updates_arrive_with_keys_headers_and_ids(
    kafka: Broker, make_topic: Callable[..., str], make_consumer: Any, tmp_path: Path
) -> None:
    topic = make_topic(PARTITIONS)
    make_topic(1, f"{topic}.dead")
    make_topic(3, f"{topic}.updates")
    given, state = settings(kafka, topic), tmp_path / "state"
    made = lines(40)
    produce(tmp_path / "a.jsonl", given, made)
    report = cli_stream.run(state, given, to_the_end=True, quiet=True)
    assert (report["accepted"], report["dead_letters"]) == (40, 10)
    letters = make_consumer(f"{topic}.dead", 1, 10)
    assert sorted(found.value for found in letters) == sorted(one for one in made if one not in lines_taken(made))
    for found in letters:
        at, offset = int(header(found, "partition")), int(header(found, "offset"))
        assert header(found, "id") == letter_id(header(found, "source"), at, offset)
        assert (header(found, "source_name"), header(found, "source")) == (topic, report["source"])
        named = found.value.startswith(b"{")
        assert header(found, "reason") == ("wrong_type" if named else "not_json")
        assert found.key == (record_key(User("default", "u1")) if named else None)
        assert header(found, "detail")
    assert {header(found, "id") for found in letters} == letter_ids(state)
    updates = make_consumer(f"{topic}.updates", 3, 40)
    documents = {header(found, "id"): json.loads(found.value) for found in updates}
    assert documents.keys() == episode_ids(state)
    assert len(updates) == 40
    for found in updates:
        document = json.loads(found.value)
        assert document["id"] == header(found, "id")
        assert found.key == record_key(User("default", document["user_id"]))
    for user in range(5):
        mine = [json.loads(found.value) for found in updates if found.key == record_key(User("default", f"u{user}"))]
        assert [one["episode"]["message_ids"] for one in mine] == [[f"m{at}"] for at in range(user, 40, 5)]
    assert unsent(state) == 0


def lines_taken(made: list[bytes]) -> list[bytes]:
    return [one for one in made if one.startswith(b"{") and isinstance(json.loads(one)["text"], str)]


def test_a_topic_that_is_missing_is_told_and_filled_once_it_is_made(
    kafka: Broker, make_topic: Callable[..., str], make_consumer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "PAUSES", (0.2,))
    topic = make_topic(PARTITIONS)
    make_topic(1, f"{topic}.updates")
    given, state = settings(kafka, topic), tmp_path / "state"
    produce(tmp_path / "a.jsonl", given, lines(40))
    report = cli_stream.run(state, given, to_the_end=True, quiet=True)
    assert report["finished"], "letters that cannot be sent kept turns from being taken"
    assert unsent(state) == 10
    engine = runtime.open_local(state, given)
    try:
        wait_for(lambda: engine.host.status().sending != ())
        (obstacle,) = engine.host.status().sending
        assert f"there is no topic {topic}.dead" in obstacle
        assert f"raygam topics create {topic}.dead" in obstacle
        make_topic(1, f"{topic}.dead")
        wait_for(lambda: engine.host.status().unsent == 0)
        assert engine.host.status().sending == ()
    finally:
        engine.close()
    letters = make_consumer(f"{topic}.dead", 1, 10)
    assert {header(found, "id") for found in letters} == letter_ids(state)
    assert len(letters) == 10


def test_a_broker_killed_while_messages_wait(
    killable: KafkaBroker, make_topic: Callable[..., str], make_consumer: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    topic = make_topic(PARTITIONS)
    make_topic(1, f"{topic}.dead")
    make_topic(1, f"{topic}.updates")
    given, state = settings(killable, topic), tmp_path / "state"
    produce(tmp_path / "a.jsonl", given, lines(40))
    quiet = settings(killable, topic, kafka_brokers=f"127.0.0.1:{free_ports(1)[0]}")  # of messages alone
    monkeypatch.setattr(runtime, "message_sink", lambda _, job: _sink(quiet, job))
    assert cli_stream.run(state, given, to_the_end=True, quiet=True)["finished"]
    assert unsent(state) == 50
    monkeypatch.undo()
    monkeypatch.setattr(backoff, "PAUSES", (0.2,))
    killable.kill()
    engine = runtime.open_local(state, given)
    try:
        wait_for(lambda: len(engine.host.status().sending) == 2)
        assert all(f"no Kafka broker answers at {killable.address}" in why for why in engine.host.status().sending)
        assert engine.host.status().unsent == 50
        killable.start()
        wait_for(lambda: engine.host.status().unsent == 0)
    finally:
        engine.close()
    assert {header(found, "id") for found in make_consumer(f"{topic}.dead", 1, 10)} == letter_ids(state)
    assert {header(found, "id") for found in make_consumer(f"{topic}.updates", 1, 40)} == episode_ids(state)


def _sink(given: Settings, job: object) -> MessageProducer:
    return MessageProducer(KafkaConnection(given.kafka_brokers or ""), given.kafka_updates_topic)


_DYING = """
import os, signal, sys
from pathlib import Path
from raygam.pipeline import cli_stream
from raygam.pipeline.config import read_settings
from raygam.pipeline.shard import Shard

acknowledge, left = Shard.acknowledge, int(sys.argv[2])

def dying(self, kind, number, count):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # they are with the broker, and still in the ledger
    acknowledge(self, kind, number, count)

Shard.acknowledge = dying
cli_stream.run(Path(sys.argv[1]), read_settings(), to_the_end=True, quiet=True)
"""


def test_a_process_killed_between_send_and_delete_sends_again_under_the_same_ids(
    kafka: Broker, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic(PARTITIONS)
    make_topic(1, f"{topic}.dead")
    make_topic(1, f"{topic}.updates")
    given, state = settings(kafka, topic), tmp_path / "state"
    produce(tmp_path / "a.jsonl", given, lines(40))
    named = {f"RAYGAM_{name.upper()}": str(getattr(given, name)) for name in given.model_fields_set}
    kills = 0
    for passage in (1, 2, 1):
        done = subprocess.run(
            [sys.executable, "-c", _DYING, str(state), str(passage)], env=os.environ | named, check=False
        )
        kills += done.returncode == -signal.SIGKILL
    assert kills == 3
    assert cli_stream.run(state, given, to_the_end=True, quiet=True)["finished"]
    assert unsent(state) == 0
    total = 0
    for name, ids in ((f"{topic}.dead", letter_ids(state)), (f"{topic}.updates", episode_ids(state))):
        found = everything(kafka, name)
        total += len(found)
        assert {header(one, "id") for one in found} == ids
        by_id: dict[str, set[bytes]] = {}
        for one in found:
            by_id.setdefault(header(one, "id"), set()).add(one.value)
        assert all(len(values) == 1 for values in by_id.values())
    assert total > 50, "nothing came twice: no kill fell between send and delete"


def everything(broker: Broker, topic: str) -> list[Any]:
    """All records of a topic of one partition."""
    at = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        consumer.assign([at])
        end = consumer.end_offsets([at])[at]
        found: list[Any] = []
        deadline = time.monotonic() + 30
        while consumer.position(at) < end:
            assert time.monotonic() < deadline, f"{len(found)} records came of {end}"
            for records in consumer.poll(100).values():
                found += records
        return found
    finally:
        consumer.close()


def test_what_a_topic_refuses_is_told_with_what_arrived(
    connection: KafkaConnection, make_topic: Callable[..., str], make_consumer: Any
) -> None:
    topic = make_topic(1)
    make_topic(1, f"{topic}.dead", **{"max.message.bytes": "2000"})
    headers = (("id", "x"), ("source_name", topic), ("detail", "ü – lone \ud800"))
    small = OutboxMessage("dead_letter", "a", b"k", headers, b"small")
    large = OutboxMessage("dead_letter", "b", None, headers, os.urandom(5000))
    sink = MessageProducer(connection, None)
    try:
        delivered, error = sink.deliver([small, small, large, small])
        assert delivered == 2
        assert isinstance(error, Rejected)
        assert f"larger than topic {topic}.dead takes" in str(error)
    finally:
        sink.close()
    assert [found.value for found in make_consumer(f"{topic}.dead", 1, 2)][:2] == [b"small", b"small"]


def test_what_stands_in_the_way_is_named(connection: KafkaConnection, make_topic: Callable[..., str]) -> None:
    update = OutboxMessage("update", "a", None, (("id", "a"),), b"{}")
    for sink, kind, why in (
        (MessageProducer(connection, "missing-updates"), Refused, "there is no topic missing-updates"),
        (MessageProducer(connection, None), Misconfigured, "kafka_updates_topic is not set any more"),
        (MessageProducer(KafkaConnection("127.0.0.1:1"), "x"), Retryable, "no Kafka broker answers at 127.0.0.1:1"),
    ):
        delivered, error = sink.deliver([update])
        sink.close()
        assert (delivered, type(error)) == (0, kind)
        assert why in str(error)
