"""The publisher against outboxes in memory: order, troubles that stay where they are, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from raygam.memory.errors import Misconfigured, NotOwner, RaygamError, Rejected, Retryable
from raygam.memory.writes import OutboxMessage
from raygam.pipeline import backoff, publisher
from raygam.pipeline.metrics import NoMetrics
from raygam.pipeline.publisher import Publisher


class Counting(NoMetrics):
    """Keeps what is counted."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        key = f"{name} {labels['kind']}"
        self.counts[key] = self.counts.get(key, 0) + amount


class Outboxes:
    """Partitions with messages, some of them another's by now."""

    def __init__(self) -> None:
        self.held: dict[int, list[OutboxMessage]] = {}
        self.lost: set[int] = set()
        self.fails: list[Exception] = []
        self._numbers = 0

    def put(self, partition: int, kind: str, *names: str) -> None:
        for name in names:
            self._numbers += 1
            message = OutboxMessage(kind, name, None, (), b"", number=self._numbers)
            self.held.setdefault(partition, []).append(message)

    def partitions(self) -> list[int]:
        return sorted(self.held)

    @contextmanager
    def opened(self, partition: int) -> Iterator[Outbox]:
        if self.fails:
            raise self.fails.pop(0)
        if partition in self.lost:
            raise NotOwner("another's")
        yield Outbox(self, partition)

    def names(self) -> dict[int, list[str]]:
        return {partition: [one.id for one in held] for partition, held in self.held.items() if held}


class Outbox:
    def __init__(self, outboxes: Outboxes, partition: int) -> None:
        self._outboxes = outboxes
        self._partition = partition

    def unsent(self) -> dict[str, int]:
        kinds = [one.kind for one in self._outboxes.held[self._partition]]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def messages(self, kind: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        return [one for one in self._outboxes.held[self._partition] if one.kind == kind][:limit]

    def acknowledge(self, kind: str, number: int, count: int) -> None:
        held = self._outboxes.held[self._partition]
        left = [one for one in held if one.kind != kind or one.number > number]
        assert len(held) - len(left) == count
        self._outboxes.held[self._partition] = left


class Sink:
    """Takes messages; refuses those that it is told to, as brokers do: what comes behind them arrives."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.refuses: dict[str, RaygamError] = {}
        self.made = 0
        self.open = 0
        self.not_to_be_made: RaygamError | None = None

    def make(self) -> Sink:
        if self.not_to_be_made is not None:
            raise self.not_to_be_made
        self.made += 1
        self.open += 1
        return self

    def deliver(self, messages: Sequence[OutboxMessage]) -> tuple[int, RaygamError | None]:
        refused = [at for at, one in enumerate(messages) if one.id in self.refuses]
        self.arrived += [one.id for one in messages if one.id not in self.refuses]
        return (refused[0], self.refuses[messages[refused[0]].id]) if refused else (len(messages), None)

    def close(self) -> None:
        self.open -= 1


@pytest.fixture
def outboxes() -> Outboxes:
    return Outboxes()


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def metrics() -> Counting:
    return Counting()


@pytest.fixture
def sending(outboxes: Outboxes, sink: Sink, metrics: Counting, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.setattr(backoff, "PAUSES", (0.01,))
    made = Publisher("shard-0", outboxes.partitions, outboxes.opened, sink.make, metrics)
    yield made
    made.close()
    assert sink.open == 0


def wait_for(met: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.002)


def test_everything_is_sent_once_in_order_and_deleted(
    outboxes: Outboxes, sink: Sink, sending: Publisher, metrics: Counting
) -> None:
    names = [f"a{at}" for at in range(1200)]
    outboxes.put(0, "update", *names)
    outboxes.put(0, "dead_letter", "x", "y")
    outboxes.put(1, "update", "b")
    sending.wake()
    wait_for(lambda: not outboxes.names())
    assert [name for name in sink.arrived if name.startswith("a")] == names
    assert sorted(sink.arrived) == sorted([*names, "x", "y", "b"])
    assert metrics.counts == {"raygam_messages_sent_total update": 1201, "raygam_messages_sent_total dead_letter": 2}
    assert (sending.unsent().total(), sending.obstacles()) == (0, ())


def test_no_client_is_made_where_there_is_nothing_to_send(outboxes: Outboxes, sink: Sink, sending: Publisher) -> None:
    outboxes.held[0] = []
    looked = threading.Event()
    partitions = outboxes.partitions

    def looking() -> list[int]:
        if len(looks) > 2:
            looked.set()
        looks.append(1)
        sending.wake()
        return partitions()

    looks: list[int] = []
    sending._partitions = looking
    sending.wake()
    assert looked.wait(10)
    assert sink.made == 0


def test_a_kind_that_cannot_be_sent_holds_up_no_other(
    outboxes: Outboxes, sink: Sink, sending: Publisher, metrics: Counting
) -> None:
    sink.refuses["x"] = Misconfigured("there is no topic dialogue.dead")
    outboxes.put(0, "dead_letter", "x", "y")
    outboxes.put(0, "update", "a")
    outboxes.put(1, "update", "b")
    sending.wake()
    wait_for(lambda: outboxes.names() == {0: ["x", "y"]})
    wait_for(lambda: metrics.counts.get("raygam_messages_failed_total dead_letter", 0) > 3)
    (told,) = sending.obstacles()
    assert told == "messages (dead_letter) wait: there is no topic dialogue.dead"
    assert sending.unsent().total() == 2
    assert sink.arrived.count("y") == 1, "what is behind one that cannot be sent came again and again"
    del sink.refuses["x"]
    wait_for(lambda: not outboxes.names())
    assert sending.obstacles() == ()
    assert sink.arrived[-2:] == ["x", "y"]


def test_a_message_that_is_refused_holds_up_its_own_partition_only(
    outboxes: Outboxes, sink: Sink, sending: Publisher
) -> None:
    sink.refuses["large"] = Rejected("larger than topic dialogue.dead takes")
    outboxes.put(0, "dead_letter", "first", "large", "behind")
    outboxes.put(1, "dead_letter", "other")
    sending.wake()
    wait_for(lambda: outboxes.names() == {0: ["large", "behind"]})
    wait_for(lambda: sending.obstacles() != ())
    assert "of partition 0" in sending.obstacles()[0]
    outboxes.put(1, "dead_letter", "another")
    wait_for(lambda: outboxes.names() == {0: ["large", "behind"]})


def test_it_goes_on_once_brokers_are_back(outboxes: Outboxes, sink: Sink, sending: Publisher) -> None:
    sink.not_to_be_made = Retryable("no Kafka broker answers")
    outboxes.put(0, "update", "a")
    sending.wake()
    wait_for(lambda: sending.obstacles() == ("messages (update) wait: no Kafka broker answers",))
    assert outboxes.names() == {0: ["a"]}
    sink.not_to_be_made = None
    wait_for(lambda: not outboxes.names())
    assert sink.arrived == ["a"]


def test_another_s_partition_is_left_alone(outboxes: Outboxes, sink: Sink, sending: Publisher) -> None:
    outboxes.put(0, "update", "a")
    outboxes.put(1, "update", "b")
    outboxes.lost.add(0)
    sending.wake()
    wait_for(lambda: outboxes.names() == {0: ["a"]})
    assert (sink.arrived, sending.obstacles(), sending.unsent().total()) == (["b"], (), 0)


def test_a_partition_lost_behind_the_send_is_sent_again_by_its_heir(
    outboxes: Outboxes, sink: Sink, sending: Publisher
) -> None:
    """At least once: nobody may take a message for sent because somebody else has tried."""
    outboxes.put(0, "update", "a")
    deliver = sink.deliver

    def losing(messages: Sequence[OutboxMessage]) -> tuple[int, RaygamError | None]:
        outboxes.lost.add(0)
        return deliver(messages)

    sink.deliver = losing  # type: ignore[method-assign]
    sending.wake()
    wait_for(lambda: sink.arrived == ["a"])
    sending.close()
    assert outboxes.names() == {0: ["a"]}


def test_a_ledger_that_is_busy_and_a_fault_are_told_and_tried_again(
    outboxes: Outboxes, sink: Sink, sending: Publisher
) -> None:
    outboxes.put(0, "update", "a")
    outboxes.fails = [Retryable("the file is busy"), TypeError("unheard of")]
    told: list[str] = []
    note = sending._note

    def noting(kind: str, partition: int | None, error: RaygamError) -> None:
        told.append(str(error))
        note(kind, partition, error)

    sending._note = noting  # type: ignore[method-assign]
    sending.wake()
    wait_for(lambda: not outboxes.names())
    assert told == ["the file is busy", "TypeError: unheard of. This is a fault in raygam; please report it"]


def test_what_is_left_goes_when_it_ends(outboxes: Outboxes, sink: Sink, metrics: Counting) -> None:
    entered, may_go_on = threading.Event(), threading.Event()
    deliver = sink.deliver

    def slow(messages: Sequence[OutboxMessage]) -> tuple[int, RaygamError | None]:
        entered.set()
        assert may_go_on.wait(10)
        return deliver(messages)

    sink.deliver = slow  # type: ignore[method-assign]
    outboxes.put(0, "update", "a")
    sending = Publisher("shard-0", outboxes.partitions, outboxes.opened, sink.make, metrics)
    sending.wake()
    assert entered.wait(10)
    outboxes.put(0, "update", "b")
    closing = threading.Thread(target=sending.close)
    closing.start()
    wait_for(sending._stopping.is_set)
    may_go_on.set()
    closing.join()
    assert (outboxes.names(), sink.arrived, sink.open) == ({}, ["a", "b"], 0)


def test_it_ends_in_time_whatever_its_sink_does(outboxes: Outboxes, sink: Sink, metrics: Counting) -> None:
    may_go_on = threading.Event()
    entered = threading.Event()

    def stuck(messages: Sequence[OutboxMessage]) -> tuple[int, RaygamError | None]:
        entered.set()
        may_go_on.wait(10)
        return 0, Retryable("no answer")

    sink.deliver = stuck  # type: ignore[method-assign]
    outboxes.put(0, "update", "a")
    sending = Publisher("shard-0", outboxes.partitions, outboxes.opened, sink.make, metrics)
    sending.wake()
    assert entered.wait(10)
    started = time.monotonic()
    sending.close(0.05)
    assert time.monotonic() - started < 5
    may_go_on.set()
    wait_for(lambda: sink.open == 0)
    assert outboxes.names() == {0: ["a"]}


def test_a_sink_that_nobody_needs_is_closed(
    outboxes: Outboxes, sink: Sink, sending: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_IDLE_SECONDS", 0.0)
    outboxes.put(0, "update", "a")
    sending.wake()
    wait_for(lambda: not outboxes.names() and sink.open == 0)
    outboxes.put(0, "update", "b")
    sending.wake()
    wait_for(lambda: sink.arrived == ["a", "b"])
    assert sink.made == 2


def test_without_a_sink_nothing_is_sent_and_nothing_runs(outboxes: Outboxes, metrics: Counting) -> None:
    outboxes.put(0, "update", "a")
    sending = Publisher("shard-0", outboxes.partitions, outboxes.opened, None, metrics)
    sending.wake()
    assert (sending._thread, sending.unsent().total(), sending.obstacles()) == (None, 0, ())
    sending.close()
    assert replace(outboxes.held[0][0], number=0) == OutboxMessage("update", "a", None, (), b"")
