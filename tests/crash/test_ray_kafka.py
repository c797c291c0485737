"""Shards that follow a topic: killed, moved and joined by another, with a broker that dies. The state ends as without."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kafka_broker import GivenBroker, KafkaBroker
from raygam.pipeline import cli_stream, kafka_runtime, runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.produce import produce
from raygam.pipeline.routing import Routing

pytestmark = pytest.mark.usefixtures("ray_session")

State = dict[str, Any]
PARTITIONS = 4
TURNS = 3000
MOVING_SECONDS = 5.0
"""What the issue of streams allows a moving partition."""
WORDS = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()


def settings(broker: KafkaBroker | GivenBroker, topic: str) -> Settings:
    return read_settings(
        kafka_brokers=broker.address,
        kafka_topic=topic,
        embedder="stub",
        partitions=PARTITIONS,
        kafka_poll_records=20,
        worker_group=4,
        max_buffer_tokens=200,
        ray_heartbeat_seconds=0.2,
        ray_stuck_seconds=3.0,
    )


def dialogue(folder: Path, parts: int) -> list[Path]:
    """Turns of 60 users, with late ones, duplicates and bad lines, in files to be sent one behind the other."""
    chance = random.Random(8)
    lines = []
    for number in range(TURNS):
        turn = {
            "message_id": f"m{number - (1 if number % 41 == 0 else 0)}",
            "user_id": f"u{chance.randrange(60)}",
            "session_id": f"s{number // 400}",
            "speaker": "Ana" if number % 2 else "Bo",
            "role": "user",
            "text": " ".join(chance.choices(WORDS, k=12)),
            "timestamp": 1_700_000_000_000 + (number * 2 - (50 if number % 29 == 0 else 0)) * 60_000,
        }
        lines.append(json.dumps(turn) + "\n" + ('{"message_id": \n' if number % 97 == 0 else ""))
    size = len(lines) // parts
    paths = [folder / f"part-{at}.jsonl" for at in range(parts)]
    for at, path in enumerate(paths):
        path.write_text("".join(lines[at * size : (at + 1) * size]), encoding="utf-8")
    return paths


class Following:
    """An engine on Ray that follows a topic, to be disturbed while records come."""

    def __init__(self, cluster: Any, given: Settings) -> None:
        self.cluster = cluster
        self._given = given
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [self._start(self._follow)]

    def produce(self, path: Path) -> None:
        """Send a part of the dialogue; whoever calls goes on meanwhile."""
        self._threads.append(self._start(lambda: send(path, self._given)))

    def until(self, met: Callable[[Any], bool], seconds: float = 60.0) -> Any:
        """Wait for the engine's progress to be so, and return it."""
        deadline = time.monotonic() + seconds
        while not met(progress := self.cluster.ask("progress")):
            assert not self._failures, self._failures
            assert time.monotonic() < deadline, progress
            time.sleep(0.02)
        return progress

    def end(self) -> None:
        """Stop following; raise what failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]

    def _follow(self) -> None:
        from raygam.actors.driving import run_topic

        run_topic(self.cluster, self._given, stop=self._stop.is_set)

    def _start(self, work: Callable[[], object]) -> threading.Thread:
        def noted() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - `end` raises it
                self._failures.append(error)

        thread = threading.Thread(target=noted)
        thread.start()
        return thread


def send(path: Path, given: Settings) -> None:
    """What `raygam produce` does, in any thread."""
    producer = kafka_runtime.open_producer(given)
    try:
        routing = Routing(PARTITIONS, given.partitioner)
        produce(runtime.open_source(path), producer, routing, max_record_bytes=given.max_record_bytes)
    finally:
        producer.close()


@contextmanager
def following(given: Settings, state: Path) -> Iterator[Following]:
    from raygam.actors.cluster import Cluster

    cluster = Cluster.open(state, given, shards=2, workers=1)
    try:
        yield Following(cluster, given)
    finally:
        cluster.close()


def test_a_topic_is_followed_through_everything(
    kafka: KafkaBroker | GivenBroker,
    make_topic: Callable[..., str],
    tmp_path: Path,
    state_of: Callable[[Path], State],
) -> None:
    from raygam.actors.driving import run_topic

    given = settings(kafka, make_topic(PARTITIONS))
    parts = dialogue(tmp_path, 4)
    with following(given, tmp_path / "state") as run:
        run.produce(parts[0])
        before = run.until(lambda now: now.offset > 50).pids
        for place in ("shard-1", "worker-0", "embedder-0"):
            os.kill(before[place], signal.SIGKILL)
        run.until(lambda now: now.ready and now.pids["shard-1"] != before["shard-1"] and now.offset > 500)

        run.produce(parts[1])
        run.until(lambda now: now.offset > 700)
        if isinstance(kafka, KafkaBroker):
            kafka.kill()
            run.until(lambda now: any("no Kafka broker answers" in one for one in now.obstacles))
            kafka.start()
        run.until(lambda now: now.offset > 1300)
        os.kill(run.cluster.ask("process").pid, signal.SIGKILL)

        run.produce(parts[2])
        owner = run.until(lambda now: 0 in now.owned).owned[0]  # the new supervisor asks its shards first
        assert run.cluster.move(0, 1 - int(owner[-1])) < MOVING_SECONDS
        run.cluster.ask("resize", "shard", 3)
        run.produce(parts[3])
        run.until(lambda now: len(set(now.owned.values())) == 3)
        run.until(lambda now: now.lag == 0 and now.offset > 3000 and not now.obstacles)
        run.end()
        report = run_topic(run.cluster, given, to_the_end=True)
        assert report.finished
    cli_stream.run(tmp_path / "undisturbed", given, to_the_end=True, quiet=True)
    assert state_of(tmp_path / "state") == state_of(tmp_path / "undisturbed")
