"""A host whose tasks or disk lag behind reads no further until they have caught up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raygam.adapters.sqlite_store import SqliteStore
from raygam.pipeline import capacity, runtime
from raygam.pipeline.config import read_settings
from raygam.pipeline.host import ShardHost
from raygam.pipeline.host_status import HostSettings
from raygam.pipeline.intake import Intake
from raygam.pipeline.jobs import FeedStatus, FileJob
from raygam.pipeline.local import HostPartition
from raygam.pipeline.worker import Worker

SETTINGS = read_settings(embedder="stub", partitions=2)
TURNS = 300


@pytest.fixture
def job(tmp_path: Path) -> FileJob:
    """Each turn is a session of its own, so that each makes a task; ten turns a chunk."""
    lines = [
        json.dumps(
            {
                **{"message_id": f"m{number}", "user_id": f"u{number % 20}", "session_id": f"s{number}"},
                **{"speaker": "Ana", "role": "user", "text": f"word{number} again"},
                "timestamp": 1_700_000_000_000 + number * 3_600_000,
            }
        )
        for number in range(TURNS)
    ]
    path = tmp_path / "dialogue.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return FileJob(str(path), runtime.open_source(path).identify({}), 1600)


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., ShardHost]]:
    made: list[ShardHost] = []

    def make(**limits: Any) -> ShardHost:
        state = tmp_path / "state"
        facts = runtime.facts_for(state, SETTINGS)
        embedder = runtime.make_embedder("stub", SETTINGS)
        host = ShardHost(
            "shard-0",
            1,
            SqliteStore.join(state, facts, "a cluster"),
            runtime.reading_of(runtime.open_store(state), embedder, SETTINGS),
            Intake(facts, embedder, SETTINGS.record_limits),
            HostSettings(SETTINGS.shard, **limits),
            lambda: time.time_ns() // 1000,
            runtime.open_source,
            state,
        )
        made.append(host)
        return host

    yield make
    for host in made:
        host.close()


def until(host: ShardHost, met: Callable[[FeedStatus], bool]) -> FeedStatus:
    deadline = time.monotonic() + 20
    while True:
        feed = host.status().feeds[0]
        if met(feed):
            return feed
        assert time.monotonic() < deadline, feed
        time.sleep(0.005)


def test_reading_waits_for_workers_and_goes_on_behind_them(
    tmp_path: Path, job: FileJob, make_host: Callable[..., ShardHost]
) -> None:
    host = make_host(max_open_tasks=10)
    host.open([0, 1], job)
    feed = until(host, lambda feed: "max_open_tasks" in feed.paused)
    assert sum(one.open_tasks for one in host.status().partitions.values()) > 10
    assert feed.accepted < TURNS / 2
    worker = Worker(runtime.make_models(runtime.make_embedder("stub", SETTINGS)))
    store = runtime.open_store(tmp_path / "state")
    try:
        while not (until(host, lambda feed: bool(feed.ended or feed.paused)).ended and not host.wait_for_tasks(0)):
            for partition in host.wait_for_tasks(0):
                worker.work(HostPartition(host, partition, "worker"), store.reader(partition))
    finally:
        store.close()
    assert host.status().feeds[0].accepted == TURNS
    assert host.status().feeds[0].flushed


def test_reading_waits_for_room_on_the_disk(
    job: FileJob, make_host: Callable[..., ShardHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [0]
    monkeypatch.setattr(capacity, "free_bytes", lambda path: free[0])
    host = make_host(max_open_tasks=10_000, min_free_bytes=1000)
    host.open([0, 1], job)
    feed = until(host, lambda feed: "min_free_bytes" in feed.paused)
    assert feed.accepted == 0
    free[0] = 2000
    assert until(host, lambda feed: feed.ended).accepted == TURNS


def test_a_host_that_closes_does_not_wait_for_workers(job: FileJob, make_host: Callable[..., ShardHost]) -> None:
    host = make_host(max_open_tasks=10)
    host.open([0, 1], job)
    until(host, lambda feed: bool(feed.paused))
    started = time.monotonic()
    host.close()
    assert time.monotonic() - started < 5.0
