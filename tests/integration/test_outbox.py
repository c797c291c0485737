"""A host tells other systems of what it takes and consolidates: each once, in order, whatever stands in the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raygam.adapters.sqlite_store import SqliteStore
from raygam.memory.errors import NotOwner, RaygamError, Retryable
from raygam.memory.identity import letter_id, record_key
from raygam.memory.model import User
from raygam.memory.writes import OutboxMessage, SourcePosition
from raygam.pipeline import backoff, runtime
from raygam.pipeline.config import read_settings
from raygam.pipeline.host import ShardHost
from raygam.pipeline.intake import Intake
from raygam.pipeline.local import HostPartition
from raygam.pipeline.metrics import NoMetrics
from raygam.pipeline.publisher import Publisher
from raygam.pipeline.worker import Worker

SOURCE = "kafka:an-id"
BASE: dict[str, Any] = {"embedder": "stub", "partitions": 2, "min_free_bytes": 0}


@dataclass(frozen=True)
class Part:
    partition: int
    records: list[tuple[int, bytes]]
    position: SourcePosition


class Receiver:
    """Takes messages, unless something stands in the way."""

    def __init__(self) -> None:
        self.messages: list[OutboxMessage] = []
        self.obstacle: RaygamError | None = None
        self.open = 0

    def make(self, job: object) -> Receiver:
        self.open += 1
        return self

    def deliver(self, messages: Sequence[OutboxMessage]) -> tuple[int, RaygamError | None]:
        if self.obstacle is not None:
            return 0, self.obstacle
        self.messages += messages
        return len(messages), None

    def close(self) -> None:
        self.open -= 1


class Gauges(NoMetrics):
    """Keeps the latest value of each gauge."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.values[name] = value


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Receiver:
    monkeypatch.setattr(backoff, "PAUSES", (0.01,))
    return Receiver()


Hosts = Callable[..., ShardHost]


@pytest.fixture
def make_host(tmp_path: Path, receiver: Receiver) -> Iterator[Hosts]:
    made: list[ShardHost] = []

    def make(**given: Any) -> ShardHost:
        told = {"kafka_brokers": "127.0.0.1:1", "kafka_updates_topic": "updates"}
        settings = read_settings(**(BASE | told | given))
        state = tmp_path / "state"
        facts = runtime.facts_for(state, settings)
        embedder = runtime.make_embedder("stub", settings)
        store = SqliteStore.join(state, facts, "a cluster")
        reading = runtime.reading_of(runtime.open_store(state), embedder, settings)
        intake = Intake(facts, embedder, settings.record_limits)
        host = ShardHost(
            *(f"shard-{len(made)}", 1, store, reading, intake, runtime.host_settings(settings)),
            *(lambda: time.time_ns() // 1000, runtime.open_source, state, Gauges()),
            make_sink=receiver.make,
        )
        made.append(host)
        host.open([0, 1])
        return host

    yield make
    for host in made:
        host.close()
    assert receiver.open == 0


def turn(number: int, user: str) -> bytes:
    fields: dict[str, Any] = {
        "message_id": f"m{number}",
        "user_id": user,
        "session_id": "s",
        "speaker": "Ana",
        "role": "user",
    }
    fields |= {"text": f"word{number} again and again", "timestamp": 1_700_000_000_000 + number * 3_600_000}
    return json.dumps(fields).encode()


def feed(host: ShardHost, count: int, start: int = 0) -> dict[int, list[tuple[int, bytes]]]:
    """A stretch of a topic, an hour between turns; every third record is one that nobody can take."""
    found: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}
    for number in range(start, start + count):
        user = User("default", f"u{number % 6}")
        at = host.intake.partition_of(user)
        found[at].append((number * 10, turn(number, user.user_id)))
        if number % 3 == 0:
            found[at].append((number * 10 + 5, b'{"user_id": "%s", "text": %d' % (user.user_id.encode(), number)))
    parts = [Part(at, held, SourcePosition(held[-1][0] + 1, "dialogue")) for at, held in found.items() if held]
    for batch in host.intake.part_batches(SOURCE, parts):
        host.ingest(batch)
    return found


def work(host: ShardHost, state: Path) -> None:
    worker = Worker(runtime.make_models(runtime.make_embedder("stub", read_settings(**BASE))))
    store = runtime.open_store(state)
    try:
        for partition in host.wait_for_tasks(0):
            while worker.work(HostPartition(host, partition, "worker"), store.reader(partition)).applied:
                pass
    finally:
        store.close()


def wait_for(met: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def episodes(state: Path) -> dict[str, list[str]]:
    """Message ids of every episode that is stored."""
    found: dict[str, list[str]] = {}
    with SqliteStore.open_read_only(state) as store:
        for at in range(2):
            reader = store.reader(at)
            for row in reader.users():
                names = {event.seq: event.message_id for event in reader.events(row.user)}
                found |= {one.id: [names[seq] for seq in one.seqs] for one in reader.episodes(row.user)}
    return found


def test_letters_and_updates_are_told_once_and_leave_the_ledger(
    make_host: Hosts, receiver: Receiver, tmp_path: Path
) -> None:
    host = make_host()
    given = feed(host, 60)
    work(host, tmp_path / "state")
    host.flush(0)
    host.flush(1)
    work(host, tmp_path / "state")
    wait_for(lambda: host.status().unsent == 0)
    letters = [one for one in receiver.messages if one.kind == "dead_letter"]
    bad = {letter_id(SOURCE, at, offset): raw for at, held in given.items() for offset, raw in held if offset % 10}
    assert {one.id: one.value for one in letters} == bad
    assert len(letters) == len(bad) == 20
    headers = dict(letters[0].headers)
    assert (headers["source"], headers["source_name"], headers["reason"]) == (SOURCE, "dialogue", "not_json")
    assert letter_id(SOURCE, int(headers["partition"]), int(headers["offset"])) == headers["id"] == letters[0].id
    updates = [one for one in receiver.messages if one.kind == "update"]
    told = {one.id: json.loads(one.value or b"") for one in updates}
    assert {id_: document["episode"]["message_ids"] for id_, document in told.items()} == episodes(tmp_path / "state")
    assert len(updates) == len(told) == 60
    for one in updates:
        document = told[one.id]
        assert one.key == record_key(User(document["tenant"], document["user_id"]))
        for relation in document["relations"]:
            assert document["topic"]["id"] in (relation["source"], relation["target"])
    for at in range(6):  # a user's come in the order in which the memory changed
        mine = [document for document in told.values() if document["user_id"] == f"u{at}"]
        assert mine == sorted(mine, key=lambda document: str(document["episode"]["first"]))


def test_nobody_is_told_unless_it_is_wanted(make_host: Hosts, receiver: Receiver, tmp_path: Path) -> None:
    host = make_host(kafka_updates_topic=None, kafka_dead_letters=False)
    feed(host, 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"no record\n")
    work(host, tmp_path / "state")
    assert (host.status().unsent, receiver.messages) == (0, [])


def test_letters_of_files_are_told_to_nobody(make_host: Hosts, receiver: Receiver) -> None:
    host = make_host(kafka_updates_topic=None)
    for batch in host.intake.raw_batches("file:a", [(0, b"no record", 9)], SourcePosition(10, "a"), {0: 0, 1: 0}):
        assert host.ingest(batch).dead_letters == 1
    assert host.status().unsent == 0


def test_what_cannot_be_sent_shows_and_stops_reading_only_above_the_limit(
    make_host: Hosts, receiver: Receiver, tmp_path: Path
) -> None:
    """Dead letters stop nothing, however many: they stay in the ledger anyway."""
    host = make_host(max_unsent_updates=15)
    receiver.obstacle = Retryable("no Kafka broker answers")
    feed(host, 60)
    wait_for(lambda: host.status().sending != ())
    status = host.status()
    assert status.sending == ("messages (dead_letter) wait: no Kafka broker answers",)
    assert (status.unsent, host.obstruction(paused=False)) == (20, "")
    assert isinstance(host.metrics, Gauges)
    assert host.metrics.values["raygam_outbox_messages"] == 20
    work(host, tmp_path / "state")
    updates = host.status().unsent - 20
    assert updates > 15
    why = f"{updates} updates for other systems are not sent, of 15 at most (max_unsent_updates)"
    assert host.obstruction(paused=False) == why
    receiver.obstacle = None
    wait_for(lambda: host.status().unsent == 0)
    assert host.obstruction(paused=True) == ""
    assert host.status().sending == ()
    assert len({one.id for one in receiver.messages}) == len(receiver.messages) == 20 + updates


def test_what_a_host_leaves_is_sent_by_the_next(make_host: Hosts, receiver: Receiver) -> None:
    first = make_host()
    receiver.obstacle = Retryable("no Kafka broker answers")
    feed(first, 30)
    wait_for(lambda: first.status().sending != ())
    second = make_host()  # takes the partitions over
    receiver.obstacle = None
    wait_for(lambda: second.status().unsent == 0)
    assert len({one.id for one in receiver.messages}) == 10


def test_a_zombie_that_sends_deletes_nothing_of_its_heir(
    make_host: Hosts, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_host()
    receiver.obstacle = Retryable("no Kafka broker answers")
    feed(first, 30)
    at = next(at for at in (0, 1) if first.shard(at).unsent())
    waiting = first.shard(at).messages("dead_letter", 100, 1 << 20)
    first._publisher.close()
    monkeypatch.setattr(Publisher, "wake", lambda self: None)  # nobody sends but the test
    heir = make_host()
    feed(heir, 30, start=30)
    with pytest.raises(NotOwner), first._calling(at) as zombie:
        zombie.acknowledge("dead_letter", waiting[-1].number, len(waiting))
    held = heir.shard(at).messages("dead_letter", 100, 1 << 20)
    assert [one.id for one in held[: len(waiting)]] == [one.id for one in waiting]
    assert len(held) > len(waiting) > 0
