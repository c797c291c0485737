"""Several producers that write one topic at once, and remember what they were told."""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from benchmarks.fault_dialogue import Dialogue, Record
from benchmarks.fault_verdict import LogRecord, Told
from benchmarks.kafka_broker import KafkaBroker
from raygam.adapters.kafka_producer import let_go

PLAIN_PRODUCERS = 3
FLUSH_SECONDS = 90.0
_TRANSACTION_TIMEOUT_MS = 30_000
_TRANSACTIONAL_SHARE = 0.1
_TRANSACTION_TURNS = 4
_CLIENT: dict[str, Any] = {"reconnect_backoff_max_ms": 500, "acks": "all", "linger_ms": 5}


class Producers:
    """Threads that send a dialogue at a given rate, until they are stopped.

    Some send plainly, one in transactions, half of which it aborts.

    Args:
        broker: where to.
        topic: the topic.
        dialogue: what is said.
        told: what was sent and acknowledged goes here.
        rate: records a second, of all together.
        seed: of all choices; what is sent depends also on time.
    """

    def __init__(self, broker: KafkaBroker, topic: str, dialogue: Dialogue, told: Told, rate: float, seed: int) -> None:
        logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)  # of a broker that is gone it would say so every time
        self._address = broker.address
        self._topic = topic
        self._dialogue = dialogue
        self._told = told
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._failures: list[BaseException] = []
        self._transacting = threading.Lock()
        self._client: Any = None  # of the transactions
        plain = rate * (1 - _TRANSACTIONAL_SHARE) / PLAIN_PRODUCERS
        per_transaction = rate * _TRANSACTIONAL_SHARE / (0.5 * (1 + _TRANSACTION_TURNS))
        works: list[Callable[[random.Random], None]] = [
            *[functools.partial(self._send_plainly, plain)] * PLAIN_PRODUCERS,
            functools.partial(self._send_in_transactions, per_transaction),
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(work, random.Random(f"{seed}/{at}")), daemon=True)
            for at, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise what ended a producer."""
        if self._failures:
            raise self._failures[0]

    def abandon(self) -> None:
        """Send no more; what becomes of the rest is of no interest."""
        self._abandoned.set()
        self._stopping.set()

    def stop(self) -> None:
        """Send no more, and wait until everything that was sent is decided: acknowledged, or given up.

        Raises:
            TimeoutError: it is not; the broker does not answer.
        """
        self._stopping.set()
        deadline = time.monotonic() + FLUSH_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in self._threads):
            raise TimeoutError(f"the producers are not done {FLUSH_SECONDS:g} s after they were stopped")
        self.check()

    def _run(self, work: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            work(chance)
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._failures.append(error)

    def _paced(self, rate: float, chance: random.Random) -> bool:
        """Wait until it is time for the next; False when it is over."""
        return not self._stopping.wait(chance.expovariate(rate))

    def _send_plainly(self, rate: float, chance: random.Random) -> None:
        sender = Sender(self._address, self._topic, self._told)
        try:
            while self._paced(rate, chance):
                sender.send(self._dialogue.next(chance))
        finally:
            sender.close(wait=not self._abandoned.is_set())

    @contextmanager
    def without_transactions(self) -> Iterator[None]:
        """No transaction is open, and none begins, until the end of the block.

        One that a broker's death cuts off may hang in the client for ever, or come out as another than it was meant
        (kafka-python 3.0.12 passes through states that it does not allow itself).

        Raises:
            TimeoutError: one does not end.
        """
        if not self._transacting.acquire(timeout=FLUSH_SECONDS):
            raise TimeoutError(f"a transaction of the benchmark's own has not ended within {FLUSH_SECONDS:g} s")
        try:
            self._renew()
            yield
        finally:
            self._transacting.release()

    def _send_in_transactions(self, rate: float, chance: random.Random) -> None:
        name = f"faults-{self._topic}"
        try:
            while self._paced(rate, chance):
                with self._transacting:
                    if self._client is None:
                        self._client = self._transactional(name)
                    self._transact(self._client, chance)
        finally:
            self._renew()

    def _renew(self) -> None:
        if self._client is not None:
            let_go(self._client)
            self._client = None

    def _transactional(self, name: str) -> Any:
        client = KafkaProducer(
            bootstrap_servers=self._address,
            transactional_id=name,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            max_block_ms=60_000,
            **_CLIENT,
        )
        try:
            client.init_transactions()
        except BaseException:
            let_go(client)
            raise
        return client

    def _transact(self, client: Any, chance: random.Random) -> None:
        aborts = chance.random() < 0.5
        turns = [self._dialogue.fresh_turn(chance) for _ in range(chance.randint(1, _TRANSACTION_TURNS))]
        for turn in turns:
            assert turn.user is not None
            if aborts:
                self._told.aborted.add((turn.user, turn.message_id))
            else:
                self._told.texts[(turn.user, turn.message_id)] = turn.text
        client.begin_transaction()
        futures = [client.send(self._topic, turn.value, key=turn.key, partition=turn.partition) for turn in turns]
        if aborts:
            client.flush(FLUSH_SECONDS)
            client.abort_transaction()
            return
        client.commit_transaction()
        for turn, future in zip(turns, futures, strict=True):
            _note(self._told, turn, future.get(timeout=1))


class Sender:
    """A plain producer that notes what it sends and what is acknowledged.

    Args:
        address: a broker.
        topic: the topic.
        told: where it is noted.
    """

    def __init__(self, address: str, topic: str, told: Told) -> None:
        self._topic = topic
        self._told = told
        self._make = functools.partial(KafkaProducer, bootstrap_servers=address, delivery_timeout_ms=120_000, **_CLIENT)
        self._client: Any = self._make()
        self._client.partitions_for(topic)  # known before a broker is gone

    def send(self, record: Record) -> None:
        """Queue a record; it is noted as acknowledged once it is."""
        if record.user is not None and record.message_id:
            self._told.texts[(record.user, record.message_id)] = record.text
        elif record.reason and record.value is not None:
            self._told.bad[record.value] = record.reason
        try:
            future = self._client.send(self._topic, record.value, key=record.key, partition=record.partition)
        except KafkaError:  # this client has given up; what it had queued may be in the topic or not
            let_go(self._client)
            self._client = self._make()
            return
        future.add_callback(functools.partial(_note, self._told, record))

    def close(self, *, wait: bool = True) -> None:
        """Leave; first wait for what is queued, if that is wanted."""
        try:
            if wait:
                self._client.flush(FLUSH_SECONDS)
        finally:
            let_go(self._client)


def read_log(address: str, topic: str, partitions: int) -> list[LogRecord]:
    """Everything that a reader of committed records finds in a topic, up to where it ends now."""
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        places = [TopicPartition(topic, at) for at in range(partitions)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: list[LogRecord] = []
        deadline = time.monotonic() + FLUSH_SECONDS
        while any(consumer.position(place) < ends[place] for place in places):
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {topic} could not be read to its end within {FLUSH_SECONDS:g} s")
            for records in consumer.poll(200, max_records=5000).values():
                for record in records:
                    headers = {name: value.decode() for name, value in record.headers}
                    found.append(LogRecord(record.partition, record.offset, record.value, headers))
        return found
    finally:
        consumer.close()


def _note(told: Told, record: Record, where: Any) -> None:
    if record.message_id and record.user is not None:
        told.acknowledged[(record.user, record.message_id)] = (where.partition, where.offset)
    elif record.reason:
        told.bad_at[(where.partition, where.offset)] = record.reason
