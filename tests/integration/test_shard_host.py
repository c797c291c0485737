"""A host of several partitions, without Ray: openings, feeds and faults that meet."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raygam.adapters.faiss_index import FaissFlatIndex
from raygam.adapters.sqlite_store import SqliteStore
from raygam.adapters.stub_embedder import StubEmbedder
from raygam.memory.errors import Fenced, Misconfigured, NotOwner, Retryable
from raygam.memory.ports import Vectors
from raygam.memory.writes import StateFacts
from raygam.pipeline import backoff, runtime
from raygam.pipeline.host import ShardHost
from raygam.pipeline.host_status import HostSettings
from raygam.pipeline.intake import Intake
from raygam.pipeline.jobs import FileJob
from raygam.pipeline.reading import Reading
from raygam.pipeline.records import RecordLimits, from_mapping
from raygam.pipeline.shard import ShardSettings

FACTS = StateFacts(2, "murmur2", "stub-8", 8, 1)


class Embedder(StubEmbedder):
    """Waits, or fails, when it is told to."""

    def __init__(self) -> None:
        super().__init__(8)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.waits = threading.Event()
        self.failures: list[Exception] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        if texts and self.failures:
            raise self.failures.pop(0)
        if not self.may_go_on.is_set():
            self.waits.set()
            assert self.may_go_on.wait(30)
        return super().embed(texts)


class Hosts:
    """Makes hosts over one state, as the processes of one cluster."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.embedder = Embedder()
        self.hosts: list[ShardHost] = []

    def __call__(self, settings: HostSettings | None = None) -> ShardHost:
        store = SqliteStore.join(self.state, FACTS, "here")
        reading = Reading(
            SqliteStore.open_read_only(self.state), self.embedder, FaissFlatIndex(8, 1 << 20), max_users=8,
            context_tokens=100,
        )  # fmt: skip
        intake = Intake(FACTS, self.embedder, RecordLimits())
        host = ShardHost(
            f"shard-{len(self.hosts)}", os.getpid(), store, reading, intake, settings or HostSettings(min_free_bytes=0),
            lambda: time.time_ns() // 1000, runtime.open_source, self.state,
        )  # fmt: skip
        self.hosts.append(host)
        return host


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path / "state")
    yield hosts
    hosts.embedder.may_go_on.set()
    for host in hosts.hosts:
        host.close()


def turn(number: int, user: str = "") -> dict[str, Any]:
    return {
        "message_id": f"m{number}", "user_id": user or f"u{number % 20}", "session_id": "s", "speaker": "Ana",
        "role": "user", "text": f"turn {number}", "timestamp": 1_700_000_000_000 + number * 1000,
    }  # fmt: skip


def write(path: Path, numbers: range, mode: str = "w") -> Path:
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(turn(number)) + "\n" for number in numbers)
    return path


def job_of(path: Path, run: str = "1", chunk_bytes: int = 1024) -> FileJob:
    return FileJob(str(path), runtime.open_source(path).identify({}), chunk_bytes, run)


def wait_for(met: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def accepted(host: ShardHost) -> int:
    return sum(feed.accepted for feed in host.status().feeds)


def all_flushed(host: ShardHost) -> bool:
    feeds = host.status().feeds
    return bool(feeds) and all(feed.flushed and feed.ended for feed in feeds)


def test_a_partition_that_goes_while_it_is_counted_does_not_end_the_reading_of_others(
    make_host: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    host.open([0, 1])
    make_host().open([0])
    shard = host.shard(0)
    counts = shard.task_counts

    def fenced_meanwhile() -> tuple[int, int]:
        with pytest.raises(NotOwner):
            host.ingest(host.intake.empty_batch(0, "file:x", runtime.open_source(Path(__file__)).position(10)))
        return counts()

    monkeypatch.setattr(shard, "task_counts", fenced_meanwhile)
    host.wait_for_capacity(lambda: False, lambda why: None)
    assert list(host.status().partitions) == [1]


def test_a_refused_write_of_an_earlier_opening_drops_no_later_one(
    make_host: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = make_host()
    job = job_of(write(tmp_path / "a.jsonl", range(40)))
    host.open([0, 1])

    def meanwhile_opened_again(users: object) -> int:
        host.give_up(0)
        host.open([0], job)
        raise Fenced("the earlier opening's writer was refused")

    monkeypatch.setattr(host.shard(0), "flush", meanwhile_opened_again)
    with pytest.raises(NotOwner):
        host.flush(0)
    assert host.partitions() == [0, 1]
    wait_for(lambda: all_flushed(host))
    assert sorted(at for feed in host.status().feeds for at in feed.partitions) == [0, 1]


def test_a_broken_partition_holds_up_no_other(make_host: Hosts) -> None:
    host = make_host()
    (make_host.state / "partition-0000.db").rename(make_host.state / "elsewhere")
    with pytest.raises(Misconfigured, match="partition-0000"):
        host.open([0, 1])
    assert host.partitions() == [1]


@contextmanager
def opening_slowly(host: ShardHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Thread]:
    """Partition 0 is being opened inside the block, and opens behind it."""
    writer, entered, may_go_on = host._store.writer, threading.Event(), threading.Event()

    def slow(partition: int, opened_by: str = "") -> Any:
        entered.set()
        assert may_go_on.wait(30)
        return writer(partition, opened_by)

    monkeypatch.setattr(host._store, "writer", slow)
    opening = threading.Thread(target=host.open, args=([0],))
    opening.start()
    try:
        assert entered.wait(20)
        yield opening
    finally:
        may_go_on.set()
        opening.join()


def test_a_partition_that_opens_slowly_holds_up_no_other(make_host: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file may be locked for seconds by a process that was stopped."""
    host = make_host()
    host.open([1])

    def ask() -> None:
        host.status()
        host.flush(1)
        host.give_up(1)

    with opening_slowly(host, monkeypatch):
        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(timeout=10)
        assert not asking.is_alive()
        assert host.partitions() == []
    assert host.partitions() == [0]


def test_opened_twice_at_once_is_once(make_host: Hosts) -> None:
    host = make_host()
    opening = [threading.Thread(target=host.open, args=([0, 1],)) for _ in range(8)]
    for thread in opening:
        thread.start()
    for thread in opening:
        thread.join()
    assert {at: held.epoch for at, held in host.status().partitions.items()} == {0: 1, 1: 1}


def test_a_closed_host_leaves_nothing_open_that_was_under_way(
    make_host: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    with opening_slowly(host, monkeypatch):
        closing = threading.Thread(target=host.close)
        closing.start()
        wait_for(lambda: host._closed)
    closing.join()
    assert host.partitions() == []
    with pytest.raises(NotOwner):
        host.open([0])


def test_what_is_appended_is_read_by_the_next_run(make_host: Hosts, tmp_path: Path) -> None:
    host = make_host()
    path = write(tmp_path / "a.jsonl", range(40))
    host.open([0, 1], job_of(path))
    wait_for(lambda: all_flushed(host))
    write(path, range(40, 60), "a")
    host.read(job_of(path, "2"))
    wait_for(lambda: all_flushed(host) and accepted(host) == 20)


def test_a_run_that_failed_is_tried_again_by_the_next(make_host: Hosts, tmp_path: Path) -> None:
    host = make_host()
    make_host.embedder.failures = [Misconfigured("no weights")]
    path = write(tmp_path / "a.jsonl", range(40))
    host.open([0, 1], job_of(path))
    wait_for(lambda: [feed.failure for feed in host.status().feeds if feed.ended] == ["no weights"])
    host.read(job_of(path, "1"))
    assert [feed.failure for feed in host.status().feeds] == ["no weights"], "the same command again changes nothing"
    host.read(job_of(path, "2"))
    wait_for(lambda: all_flushed(host) and accepted(host) == 40)


def test_the_next_job_ends_the_one_before(make_host: Hosts, tmp_path: Path) -> None:
    host = make_host()
    make_host.embedder.may_go_on.clear()
    host.open([0, 1], job_of(write(tmp_path / "a.jsonl", range(40))))
    assert make_host.embedder.waits.wait(20)
    host.read(job_of(write(tmp_path / "b.jsonl", range(40, 60))))
    make_host.embedder.may_go_on.set()
    wait_for(lambda: all_flushed(host))
    assert accepted(host) == 20


def test_stopping_waits_for_no_embedder(make_host: Hosts, tmp_path: Path) -> None:
    host = make_host()
    make_host.embedder.may_go_on.clear()
    host.open([0, 1], job_of(write(tmp_path / "a.jsonl", range(40))))
    assert make_host.embedder.waits.wait(20)
    stopping = threading.Thread(target=host.stop_reading)
    stopping.start()
    stopping.join(timeout=5)
    assert not stopping.is_alive()


def test_after_progress_the_first_retry_is_at_once(
    make_host: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "PAUSES", (0.0, 600.0))
    host = make_host(HostSettings(min_free_bytes=0, read_ahead=1))
    make_host.embedder.may_go_on.clear()
    host.open([0, 1], job_of(write(tmp_path / "a.jsonl", range(400))))
    assert make_host.embedder.waits.wait(20)
    make_host.embedder.may_go_on.set()
    wait_for(lambda: accepted(host) > 0)
    make_host.embedder.failures = [Retryable("no replica")]
    wait_for(lambda: all_flushed(host) and accepted(host) == 400)


def test_a_feed_for_nobody_ends(make_host: Hosts, tmp_path: Path) -> None:
    host = make_host()
    make_host.embedder.may_go_on.clear()
    job = job_of(write(tmp_path / "a.jsonl", range(40)))
    host.open([0, 1], job)
    assert make_host.embedder.waits.wait(20)
    for partition in (0, 1):
        host.give_up(partition)
    make_host.embedder.may_go_on.set()
    wait_for(lambda: all(feed.ended for feed in host.status().feeds))
    assert not any(feed.flushed for feed in host.status().feeds), "it read on to the end"


def test_moves_leave_no_feeds_and_no_writers_behind(make_host: Hosts, tmp_path: Path) -> None:
    host = make_host()
    job = job_of(write(tmp_path / "a.jsonl", range(10)))
    for _ in range(20):
        host.open([0, 1], job)
        host.give_up(0)
    host.open([0, 1], job)
    assert [feed.partitions for feed in host.status().feeds] == [(1,), (0,)]
    assert len(host._store._opened) <= 2  # type: ignore[attr-defined]


def test_a_flush_of_many_users_holds_up_no_report(make_host: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor replaces a shard that reports nothing for seconds."""
    host = make_host(HostSettings(ShardSettings(max_resident_users=5)))
    host.open([0, 1])
    turns = [from_mapping(turn(number, f"v{number}"), RecordLimits()) for number in range(400)]
    for batch in host.intake.checked_batches("api", turns):
        host.ingest(batch)
    answered: list[int] = []
    flushing = threading.Thread(target=lambda: answered.append(-host.flush(0)))
    flushing.start()
    while flushing.is_alive():
        answered.append(host.status().partitions[0].open_tasks)
    flushing.join()
    assert min(answered) < -100
    assert len({seen for seen in answered if 0 < seen < -min(answered)}) > 2
