"""How long a killed shard's users wait, and whether anybody else does.

    python -m benchmarks.recovery --users 1000 --kills 5 --json OUT
    python -m benchmarks.recovery --kafka auto --json OUT

Two shards stream, a file or a topic; queries go to users of all partitions all the time. Again and again
one shard is killed: `recovery_seconds` is how long each of its partitions gave no
answer, `gap_seconds` the longest time without an answer of the other's meanwhile.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.ingest import write_dialogue
from benchmarks.ingest_ray import ray_running
from benchmarks.results import Results
from raygam.actors.cluster import Cluster
from raygam.actors.driving import run_file, run_topic
from raygam.memory import identity
from raygam.memory.errors import Retryable
from raygam.memory.model import User
from raygam.pipeline.config import read_settings

console = Console(stderr=True)
app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Answers:
    """When a partition's users were answered, on `time.monotonic`'s clock; errors of the rest."""

    at: list[float] = field(default_factory=list)
    failed: int = 0

    def longest_gap(self, start: float, end: float) -> float:
        """The longest time without an answer within a stretch."""
        inside = [start, *(one for one in self.at if start <= one <= end), end]
        return max(later - earlier for earlier, later in itertools.pairwise(inside))

    def first_after(self, moment: float) -> float | None:
        """The first answer after a moment."""
        return next((one for one in self.at if one > moment), None)


class Probe:
    """Asks one user of every partition, each partition in a thread of its own, as fast as it answers."""

    def __init__(self, cluster: Cluster, users: int) -> None:
        facts = cluster.spec.facts
        self._cluster = cluster
        self._stopping = threading.Event()
        self.answers: dict[int, Answers] = {}
        self._threads = []
        chosen: dict[int, User] = {}
        for number in range(users):
            user = User("default", f"user-{number}")
            chosen.setdefault(
                identity.partition_of(identity.record_key(user), facts.partitions, facts.partitioner), user
            )
        for partition, user in sorted(chosen.items()):
            self.answers[partition] = Answers()
            thread = threading.Thread(target=self._ask, args=(partition, user), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, partition: int, user: User) -> None:
        answers = self.answers[partition]

        def search(shard: Any) -> Any:
            return shard.search.remote(partition, user, "the garden by the river", None, {"k": 5, "mode": "gam"})

        while not self._stopping.is_set():
            try:
                self._cluster.routes.call(partition, search, 0.5)
                answers.at.append(time.monotonic())
            except Retryable:
                answers.failed += 1
            self._stopping.wait(0.05)


@contextmanager
def probed(cluster: Cluster, users: int) -> Iterator[Probe]:
    """A probe that stops with the block."""
    probe = Probe(cluster, users)
    try:
        yield probe
    finally:
        probe.stop()


@dataclass(frozen=True, slots=True)
class Recovery:
    """What one kill cost.

    Attributes:
        seconds: per partition of the killed shard, from the kill to the next answer.
        gap_seconds: the longest time without an answer of a partition of the other shards meanwhile.
        others_failed: calls of theirs that failed meanwhile.
    """

    seconds: list[float]
    gap_seconds: float
    others_failed: int


def kill_and_watch(cluster: Cluster, probe: Probe, place: str, limit: float = 60.0) -> Recovery:
    """Kill a shard with SIGKILL and wait until all of its partitions answer again.

    Raises:
        TimeoutError: they do not within `limit` seconds.
    """
    while not (progress := cluster.ask("progress")).ready or len(progress.pids) < 4:
        time.sleep(0.05)  # a shard that was killed before is not all back
    killed = [at for at, owner in progress.owned.items() if owner == place]
    others = [at for at, owner in progress.owned.items() if owner != place]
    failed_before = sum(probe.answers[at].failed for at in others)
    os.kill(progress.pids[place], signal.SIGKILL)
    moment = time.monotonic()
    time.sleep(0.2)  # answers that were under way when it died are none of its successor's
    while any(probe.answers[at].first_after(moment + 0.2) is None for at in killed):
        if time.monotonic() - moment > limit:
            raise TimeoutError(f"partitions {killed} of {place} do not answer {limit:g} s after it was killed")
        time.sleep(0.01)
    end = time.monotonic()
    found = [probe.answers[at].first_after(moment + 0.2) for at in killed]
    return Recovery(
        [one - moment for one in found if one is not None],
        max(probe.answers[at].longest_gap(moment, end) for at in others),
        sum(probe.answers[at].failed for at in others) - failed_before,
    )


@app.command()
def main(
    users: Annotated[int, typer.Option(min=1)] = 1000,
    turns: Annotated[int, typer.Option(min=1, help="Turns that stream meanwhile.")] = 200_000,
    kills: Annotated[int, typer.Option(min=1)] = 5,
    embedder: Annotated[str, typer.Option(help="stub or minilm")] = "stub",
    kafka: Annotated[
        str | None, typer.Option("--kafka", help="Stream a topic: host:port of brokers, or auto to start one.")
    ] = None,
    seed: int = 7,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Kill shards while users stream and ask."""
    results = Results("recovery", seed)
    seconds: list[float] = []
    gaps: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raygam-recovery-")))
        settings = read_settings(embedder=embedder, chunk_bytes=64 * 1024, kafka_poll_records=256)
        source = folder / "dialogue.jsonl"
        write_dialogue(source, turns, users, seed)
        stopping = threading.Event()
        stream = threading.Thread(
            target=lambda: (
                run_file(cluster, source, stop=stopping.is_set)
                if kafka is None
                else run_topic(cluster, settings, to_the_end=True, stop=stopping.is_set)
            )
        )
        if kafka is not None:
            from benchmarks import ingest_kafka as topic

            where = {
                "kafka_brokers": stack.enter_context(topic.broker(kafka)),
                "kafka_topic": f"raygam-{time.time_ns()}",
            }
            settings = settings.model_copy(update=where)
            topic.fill(source, settings)
        stack.enter_context(ray_running())
        cluster = Cluster.open(folder / "state", settings, shards=2, workers=1)
        try:
            stream.start()
            with probed(cluster, users) as probe:
                while cluster.ask("progress").accepted < users:
                    time.sleep(0.05)
                for kill in range(kills):
                    found = kill_and_watch(cluster, probe, f"shard-{kill % 2}")
                    seconds += found.seconds
                    gaps.append(found.gap_seconds)
                    streaming = stream.is_alive()
                    console.print(
                        f"kill {kill + 1}: answers after {max(found.seconds):.2f} s, "
                        f"longest gap of the others {found.gap_seconds:.2f} s, still streaming: {streaming}"
                    )
        finally:
            stopping.set()
            stream.join()
            cluster.close()
    params = {"users": users, "kills": kills, "embedder": embedder, "shards": 2, "source": "kafka" if kafka else "file"}
    results.add("recovery_seconds_p50", statistics.median(seconds), "s", **params)
    results.add("recovery_seconds_p99", sorted(seconds)[int(0.99 * (len(seconds) - 1))], "s", **params)
    results.add("gap_seconds_max", max(gaps), "s", of="the other shard's users", **params)
    results.show()
    results.write(json_out)


if __name__ == "__main__":
    app()
