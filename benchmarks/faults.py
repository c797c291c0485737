"""Random kills at random times under load, and proof that nothing was lost, doubled or mixed.

    KAFKA_HOME=… python -m benchmarks.faults --minutes 3 --json OUT

Producers write a topic of a broker that the benchmark starts, an engine on Ray follows it, and again and again a
shard, a worker, the embedder, the supervisor, the broker or the database is killed, a shard is stopped, fenced and woken,
a partition is moved. At the end the topic is drained, and the state is held against what the producers were told, and
against the state of an undisturbed engine of one process that reads the same topic. Whatever deviates is printed, stands in
the results, and makes the exit code 1.

`recovery_seconds` is the time from a fault until a turn that was sent after it is found by search: in all partitions, or in each.
Where the broker or the database was killed, the pause before it is started again (up to 3 s) is part of it.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.fault_dialogue import Dialogue
from benchmarks.fault_figures import SHOWN, Outcome, Plan, Stores, report
from benchmarks.fault_kills import Faults, dealt
from benchmarks.fault_probes import Positions, Probes, search
from benchmarks.fault_producers import Producers, read_log
from benchmarks.fault_verdict import Deviation, LogRecord, Told, differences, found_by_search, verify, verify_messages
from benchmarks.ingest_ray import ray_running
from benchmarks.kafka_broker import KafkaBroker, kafka_home
from benchmarks.postgres_server import PostgresServer, find_binaries
from benchmarks.state_document import state_document
from raygam.actors.cluster import Cluster
from raygam.actors.driving import run_topic
from raygam.adapters.kafka_cluster import KafkaCluster
from raygam.adapters.kafka_connection import KafkaConnection
from raygam.memory.identity import partition_of, record_key
from raygam.pipeline import cli_stream, runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.interruption import Interruption

console = Console(stderr=True)
app = typer.Typer(add_completion=False)
PARTITIONS = 4
_MESSAGES = ("dead", "updates")
_SAMPLED = 200
_DRAIN_SECONDS = 180.0


def settings_for(address: str, topic: str) -> Settings:
    """Small batches, groups and buffers, so that a fault falls into the middle of everything."""
    return read_settings(
        embedder="stub",
        partitions=PARTITIONS,
        kafka_brokers=address,
        kafka_topic=topic,
        kafka_updates_topic=f"{topic}.updates",
        kafka_poll_records=64,
        max_buffer_tokens=200,
        max_resident_users=32,
        worker_group=4,
        max_open_tasks=300,
        ray_heartbeat_seconds=0.2,
        ray_stuck_seconds=3.0,
    )


class Following:
    """A run over a topic in a thread of its own."""

    def __init__(self, cluster: Cluster, settings: Settings, *, to_the_end: bool) -> None:
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._finished = False
        self._thread = threading.Thread(target=self._run, args=(cluster, settings, to_the_end), daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended it."""
        if self._failure is not None:
            raise self._failure

    def end(self, seconds: float, *, stop: bool) -> bool:
        """Wait for its end; return whether it came to the topic's.

        Raises:
            TimeoutError: it does not end.
        """
        if stop:
            self._stopping.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._stopping.set()
            raise TimeoutError(f"the engine has not ended reading within {seconds:g} s")
        self.check()
        return self._finished

    def _run(self, cluster: Cluster, settings: Settings, to_the_end: bool) -> None:
        try:
            report = run_topic(cluster, settings, to_the_end=to_the_end, stop=self._stopping.is_set)
            self._finished = report.finished
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._failure = error


def disturb(
    broker: KafkaBroker,
    folder: Path,
    plan: Plan,
    stopped: Callable[[], bool] = lambda: False,
    database: PostgresServer | None = None,
) -> Outcome:
    """Run an engine over a state, with faults, and judge what it leaves.

    Args:
        broker: started by this thread; left running.
        folder: an empty directory.
        plan: what to do.
        database: holds the state, in a database of its own; None has it in a directory.
        stopped: asked all the time; True ends the faults, and what was done is judged.
    """
    topic = f"faults-{folder.name}-{plan.seed}".replace("_", "-")
    with KafkaCluster(KafkaConnection(broker.address)) as kafka:
        kafka.create(topic, PARTITIONS, 1)
        for kind in _MESSAGES:
            kafka.create(f"{topic}.{kind}", 1, 1)
    outcome, told = Outcome("sqlite" if database is None else "postgres"), Told()
    state = folder / "state" if database is None else database.database()
    settings = settings_for(broker.address, topic)
    chance = random.Random(f"{plan.seed}/{outcome.store}")
    cluster = Cluster.open(runtime.locate(state), settings, shards=plan.shards, workers=plan.workers)
    try:
        dialogue = Dialogue(plan.users, PARTITIONS, cluster.spec.facts.partitioner)
        following = Following(cluster, settings, to_the_end=False)
        with loaded(cluster, broker, topic, dialogue, told, plan) as (producers, probes, positions):
            faults = Faults(cluster, broker, database, chance, producers.without_transactions, plan.rate)
            for kind in _dealt(plan, chance, database, stopped, [following.check, producers.check]):
                _one_fault(kind, faults, probes, positions, outcome, stopped)
        outcome.deviations += probes.mixed
        following.end(_DRAIN_SECONDS, stop=True)
        draining = Following(cluster, settings, to_the_end=True)
        time.sleep(chance.uniform(0, 1))
        faults.kill_while_draining()
        if not draining.end(_DRAIN_SECONDS, stop=False):
            outcome.deviations.append(Deviation("lost", "the engine did not come to the topic's end"))
        outcome.deviations += _sampled(cluster, told, chance)
    finally:
        cluster.close()
    outcome.interrupted = stopped()
    console.print(f"{len(outcome.recoveries)} faults, {len(told.acknowledged):,} turns acknowledged; judging")
    log = read_log(broker.address, topic, PARTITIONS)
    messages = [record for kind in _MESSAGES for record in read_log(broker.address, f"{topic}.{kind}", 1)]
    _judge(outcome, state, folder, settings, told, log, messages)
    return outcome


@contextmanager
def loaded(
    cluster: Cluster, broker: KafkaBroker, topic: str, dialogue: Dialogue, told: Told, plan: Plan
) -> Iterator[tuple[Producers, Probes, Positions]]:
    """Producers, probes and a look at the positions; at the block's end everything that was sent is decided."""
    positions = Positions(cluster)
    probes = Probes(cluster, dialogue, broker.address, topic, told)
    producers = Producers(broker, topic, dialogue, told, plan.rate, plan.seed)
    try:
        yield producers, probes, positions
        producers.stop()
        probes.close()
    except BaseException:
        producers.abandon()
        probes.close(wait=False)
        raise
    finally:
        positions.close()


def _dealt(
    plan: Plan,
    chance: random.Random,
    database: PostgresServer | None,
    stopped: Callable[[], bool],
    checks: Sequence[Callable[[], None]],
) -> Iterator[str]:
    """The kinds of faults to come, each after a random pause, until the time is over."""
    end = time.monotonic() + plan.seconds
    for kind in plan.kinds or dealt(chance, database=database is not None):
        until = time.monotonic() + chance.uniform(0.2, 2.0)
        while time.monotonic() < until:
            if stopped() or (plan.kinds is None and time.monotonic() > end):
                return
            time.sleep(0.01)
        for check in checks:
            check()
        yield kind


def _one_fault(
    kind: str, faults: Faults, probes: Probes, positions: Positions, outcome: Outcome, stopped: Callable[[], bool]
) -> None:
    before = faults.settled(stopped)
    if before is None:
        if not stopped():
            what = (
                f"before {kind} the engine was not whole and less than a second behind again (is --rate too high here?)"
            )
            outcome.deviations.append(Deviation("unrecovered", what))
        return
    recovery = faults.recovery(kind, before, probes, positions)
    outcome.recoveries.append(recovery)
    if recovery.replaced_seconds is None or None in recovery.seconds.values():
        outcome.deviations.append(Deviation("unrecovered", str(recovery)))
    console.print(f"{len(outcome.recoveries):3}  {recovery}", markup=False, highlight=False)


def _sampled(cluster: Cluster, told: Told, chance: random.Random) -> list[Deviation]:
    """Search for some of the acknowledged turns by their own text."""
    found: list[Deviation] = []
    spec = cluster.spec
    for user, message_id in chance.sample(sorted(told.acknowledged), min(_SAMPLED, len(told.acknowledged))):
        partition = partition_of(record_key(user), spec.facts.partitions, spec.facts.partitioner)
        answer = search(cluster, partition, user, told.texts[(user, message_id)], 30.0)
        found += found_by_search(user, message_id, answer)
    return found


def _judge(
    outcome: Outcome,
    state: Path | str,
    folder: Path,
    settings: Settings,
    told: Told,
    log: Sequence[LogRecord],
    messages: Sequence[LogRecord],
) -> None:
    document = state_document(state)
    outcome.acknowledged, outcome.records = len(told.acknowledged), len(log)
    outcome.dead_letters = len(document["dead_letters"])
    outcome.deviations += verify(document, told, log)
    outcome.deviations += verify_messages(document, messages)
    plain = settings.model_copy(
        update={
            "kafka_dead_letters": False,
            "kafka_updates_topic": None,
            "kafka_poll_records": None,
            "worker_group": 128,
            "max_open_tasks": 2000,
        }
    )
    undisturbed = cli_stream.run(folder / "undisturbed", plain, to_the_end=True, quiet=True)
    if not undisturbed["finished"]:
        raise KeyboardInterrupt  # it, too, ends by a signal only
    outcome.deviations += differences(document, state_document(folder / "undisturbed"))


@app.command()
def main(
    minutes: Annotated[float, typer.Option(min=0.05, help="How long faults come.")] = 3.0,
    rate: Annotated[float, typer.Option(min=1, help="Records a second, of all producers together.")] = 300.0,
    users: Annotated[int, typer.Option(min=2)] = 300,
    shards: Annotated[int, typer.Option(min=1, max=PARTITIONS)] = 2,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    store: Annotated[
        Stores | None,
        typer.Option(help="Default: half of the time each, or sqlite alone where there is no PostgreSQL."),
    ] = None,
    seed: int = 7,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Kill and stop what an engine consists of, again and again, and judge what it leaves."""
    home = kafka_home()
    if home is None:
        console.print(
            "benchmarks.faults starts a broker: set KAFKA_HOME to an unpacked release of Apache Kafka, with Java"
        )
        raise typer.Exit(2)
    stores = [store] if store is not None else list(Stores)
    binaries = find_binaries() if Stores.POSTGRES in stores else None
    if store is Stores.POSTGRES and binaries is None:
        console.print(
            "benchmarks.faults starts a PostgreSQL server: have initdb and postgres on PATH, or --store sqlite"
        )
        raise typer.Exit(2)
    if binaries is None and Stores.POSTGRES in stores:
        console.print(
            "no PostgreSQL is at hand (initdb on PATH): the state is a directory all the time", style="yellow"
        )
        stores.remove(Stores.POSTGRES)
    plan = Plan(minutes * 60 / len(stores), rate, users, shards, workers, seed)
    interruption = Interruption("no more faults: what was done so far is judged")
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raygam-faults-")))
        stack.enter_context(ray_running())
        stack.enter_context(interruption.watching())  # now: Ray takes SIGTERM for itself when it starts
        (folder / "kafka").mkdir()
        broker = KafkaBroker(home, folder / "kafka")
        stack.callback(broker.stop)
        broker.start()
        for place in stores:
            if outcomes and interruption.asked:
                break
            (folder / place).mkdir()
            database = None
            if place is Stores.POSTGRES and binaries is not None:
                database = stack.enter_context(PostgresServer(binaries))
            outcomes.append(disturb(broker, folder / place, plan, lambda: interruption.asked, database))
    results = report(outcomes, plan)
    results.show()
    results.write(json_out)
    deviations = [one for outcome in outcomes for one in outcome.deviations]
    for deviation in deviations[:SHOWN]:
        console.print(f"DEVIATION {deviation}", markup=False, highlight=False, style="red")
    if len(deviations) > SHOWN:
        console.print(f"and {len(deviations) - SHOWN} more", style="red")
    sys.exit(1 if deviations else 130 if interruption.asked else 0)


if __name__ == "__main__":
    app()
