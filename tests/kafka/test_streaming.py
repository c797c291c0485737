"""The engine over a topic, in one process: what a file would have given, whatever dies meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kafka_broker import GivenBroker, KafkaBroker
from benchmarks.postgres_server import GivenServer, PostgresServer
from raygam.memory.errors import Misconfigured
from raygam.memory.identity import partition_of, record_key
from raygam.memory.model import User
from raygam.pipeline import cli_kafka, cli_partitions, cli_run, cli_stream, follow, runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.location import AnyState

State = dict[str, Any]
PARTITIONS = 4
TURNS = 3000
WORDS = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Turns of 30 users of two tenants, with late ones, duplicates, session ends and bad lines."""
    chance = random.Random(11)
    lines: list[str] = []
    for number in range(TURNS):
        user = {"tenant": chance.choice(["default", "acme"]), "user_id": f"u{chance.randrange(15)}"}
        turn = user | {
            "message_id": f"m{number - (1 if number % 37 == 0 else 0)}",
            "session_id": f"s{number // 500}",
            "speaker": "Ana" if number % 2 else "Bo",
            "role": "user",
            "text": " ".join(chance.choices(WORDS, k=12)),
            "timestamp": 1_700_000_000_000 + (number * 2 - (50 if number % 29 == 0 else 0)) * 60_000,
        }
        lines.append(json.dumps(turn))
        if number % 97 == 0:
            lines.append('{"message_id": ')
            lines.append(json.dumps({"message_id": ""} | user))
        if number % 83 == 0:
            lines.append(json.dumps({"type": "session_end", "session_id": "s0", "timestamp": 0} | user))
    path = tmp_path_factory.mktemp("source") / "dialogue.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def settings(broker: KafkaBroker | GivenBroker, topic: str, **changed: Any) -> Settings:
    """Small polls and tasks, so that a kill falls into the middle of everything."""
    values: dict[str, Any] = {"embedder": "stub", "kafka_poll_records": 40, "worker_group": 4, "max_buffer_tokens": 200}
    return read_settings(**(values | {"kafka_brokers": broker.address, "kafka_topic": topic} | changed))


@pytest.fixture(scope="module")
def from_file(source: Path, tmp_path_factory: pytest.TempPathFactory, state_of: Callable[[Path], State]) -> State:
    """What the same records in a file give."""
    state = tmp_path_factory.mktemp("file") / "state"
    values = {"embedder": "stub", "partitions": PARTITIONS, "max_buffer_tokens": 200, "worker_group": 4}
    cli_run.run(source, state, read_settings(**values), quiet=True)
    return state_of(state)


def comparable(state: State) -> State:
    """Without what names the source: offsets and positions."""
    return {"users": state["users"], "dead_letters": sorted(letter[1:] for letter in state["dead_letters"])}


def filled(kafka: KafkaBroker | GivenBroker, make_topic: Callable[..., str], source: Path) -> str:
    topic = make_topic(PARTITIONS)
    cli_kafka.produce(source, settings(kafka, topic), quiet=True)
    return topic


def command(state: Path | str, *more: str) -> list[str]:
    return [sys.executable, "-m", "raygam", "run", "--state", str(state), *more]


def environment(given: Settings) -> dict[str, str]:
    named = {f"RAYGAM_{name.upper()}": str(getattr(given, name)) for name in given.model_fields_set}
    return os.environ | named


def test_a_topic_gives_what_a_file_gives_and_a_second_run_finds_nothing_new(
    kafka: Any, make_topic: Any, source: Path, from_file: State, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    given = settings(kafka, filled(kafka, make_topic, source))
    first = cli_stream.run(tmp_path / "state", given, to_the_end=True, quiet=True)
    assert comparable(state_of(tmp_path / "state")) == comparable(from_file)
    assert (first["finished"], first["lag"], first["interrupted"]) == (True, 0, False)
    assert first["accepted"] == from_file_count(from_file)
    shown = cli_partitions.partitions(tmp_path / "state", given)
    assert [one["kafka"]["offset"] for one in shown["partitions"]] == list(first["positions"].values())
    assert [one["kafka"]["lag"] for one in shown["partitions"]] == [0] * PARTITIONS
    assert shown["topic"]["source"] == first["source"]
    second = cli_stream.run(tmp_path / "state", given, to_the_end=True, quiet=True)
    assert (second["accepted"], second["duplicates"], second["dead_letters"]) == (0, 0, 0)
    assert second["positions"] == first["positions"]


def from_file_count(state: State) -> int:
    return sum(len(user["events"]) for user in state["users"].values())


def test_killed_again_and_again_it_ends_in_the_same_state(
    kafka: Any, make_topic: Any, source: Path, from_file: State, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    given = settings(kafka, filled(kafka, make_topic, source))
    state = tmp_path / "state"
    kills, chance = 0, random.Random(3)
    while kills < 2:
        process = subprocess.Popen(
            command(state), env=environment(given), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wanted = taken(state) + chance.randrange(100, 700)
            wait_for(lambda wanted=wanted: taken(state) >= wanted)  # type: ignore[misc]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        kills += 1
    assert taken(state) < TURNS * 0.95, "it was over before it could be killed"
    cli_stream.run(state, given, to_the_end=True, quiet=True)
    assert comparable(state_of(state)) == comparable(from_file)


def taken(state: AnyState) -> int:
    """Events in the ledger, by a reader beside the writer."""
    try:
        store = runtime.open_store(state)
    except Misconfigured:
        return 0
    try:
        return sum(store.reader(at).partition_info().events for at in range(store.facts.partitions))
    except Misconfigured:  # the state is being made
        return 0
    finally:
        store.close()


def wait_for(met: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def test_a_broker_that_dies_is_waited_for(
    killable: KafkaBroker,
    make_topic: Any,
    source: Path,
    from_file: State,
    tmp_path: Path,
    state_of: Callable[[Path], State],
) -> None:
    """The command goes on by itself, says meanwhile what it waits for, and ends with 0 when it is stopped."""
    given = settings(killable, filled(killable, make_topic, source))
    state, log = tmp_path / "state", tmp_path / "log"
    with log.open("w") as written:
        process = subprocess.Popen(
            command(state, "--json"), env=environment(given), stdout=subprocess.PIPE, stderr=written, text=True
        )
    try:
        wait_for(lambda: taken(state) >= 300)
        killable.kill()
        wait_for(lambda: "waits: " in log.read_text())
        assert f"no Kafka broker answers at {killable.address}" in log.read_text()
        killable.start()
        wait_for(lambda: taken(state) == from_file_count(from_file))
        process.send_signal(signal.SIGTERM)
        report = json.loads(process.communicate(timeout=30)[0])
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert (report["lag"], report["interrupted"], report["dead_letters"]) == (0, False, len(from_file["dead_letters"]))
    cli_stream.run(state, given, to_the_end=True, quiet=True)
    assert comparable(state_of(state)) == comparable(from_file)


@pytest.mark.long  # on Ray: `test_ray_postgres.py`, each time
def test_a_database_that_dies_is_waited_for(
    kafka: Any,
    postgres_server: GivenServer,
    make_topic: Any,
    source: Path,
    from_file: State,
    tmp_path: Path,
    state_of: Callable[[Path | str], State],
) -> None:
    """As for a broker; and a topic in a database gives what a file in a directory gives."""
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("the server is somebody else's, and is not killed")
    given = settings(kafka, filled(kafka, make_topic, source))
    url, log = postgres_server.database(), tmp_path / "log"
    place = runtime.locate(url)
    with log.open("w") as written:
        process = subprocess.Popen(
            command(url, "--json"), env=environment(given), stdout=subprocess.PIPE, stderr=written, text=True
        )
    try:
        wait_for(lambda: taken(place) >= 300)
        postgres_server.kill()
        try:
            wait_for(lambda: "waits: " in log.read_text())
        finally:
            postgres_server.start()
        assert place.name in log.read_text()
        wait_for(lambda: taken(place) == from_file_count(from_file))
        process.send_signal(signal.SIGTERM)
        report = json.loads(process.communicate(timeout=30)[0])
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert (report["lag"], report["interrupted"], report["state"]) == (0, False, place.name)
    cli_stream.run(place, given, to_the_end=True, quiet=True)
    assert comparable(state_of(url)) == comparable(from_file)


def test_what_does_not_belong_becomes_a_dead_letter_where_it_was_found(
    kafka: Any, make_topic: Any, make_producer: Any, tmp_path: Path
) -> None:
    topic = make_topic(PARTITIONS)
    user = User("default", "ana")
    home = partition_of(record_key(user), PARTITIONS, "murmur2")
    turn = {"message_id": "m1", "user_id": "ana", "session_id": "s", "speaker": "Ana", "role": "user", "text": "Hi."}
    good = json.dumps(turn | {"timestamp": "2025-03-04T09:00:00Z"}).encode()
    producer = make_producer()
    away = (home + 1) % PARTITIONS
    for partition, value in [(home, good), (away, good), (away, b"{"), (home, None), (home, b"[1]")]:
        producer.send(topic, value, key=b"any", partition=partition)
    producer.flush(20)
    report = cli_stream.run(tmp_path / "state", settings(kafka, topic), to_the_end=True, quiet=True)
    assert (report["accepted"], report["dead_letters"]) == (1, 4)
    store = runtime.open_store(tmp_path / "state")
    try:
        letters = {
            at: [(one.offset, one.reason, one.payload, one.detail) for one in store.reader(at).dead_letters()]
            for at in (home, away)
        }
    finally:
        store.close()
    assert [letter[:3] for letter in letters[home]] == [(1, "blank", b""), (2, "wrong_type", b"[1]")]
    assert [letter[:3] for letter in letters[away]] == [(0, "wrong_partition", good), (1, "not_json", b"{")]
    assert f"found in partition {away}, and user 'ana' of tenant 'default' belongs to {home}" in letters[away][0][3]
    assert "(setting partitioner)" in letters[away][0][3]


def test_a_topic_of_another_name_size_or_making_is_refused(
    kafka: Any, make_topic: Any, source: Path, tmp_path: Path, admin: Any
) -> None:
    state = tmp_path / "state"
    topic = make_topic(2)
    given = settings(kafka, topic)
    cli_stream.run(state, given, to_the_end=True, quiet=True)
    assert runtime.open_store(state).facts.partitions == 2, "a new state gets the topic's partitions"
    with pytest.raises(Misconfigured, match="has 3 partitions, and the state 2"):
        cli_stream.run(state, settings(kafka, make_topic(3)), to_the_end=True, quiet=True)
    cli_kafka.produce(source, given, quiet=True)
    before = cli_stream.run(state, given, to_the_end=True, quiet=True)["totals"]
    admin.delete_topics([topic])
    make_topic(2, topic)
    cli_kafka.produce(source, given, quiet=True)
    with pytest.raises(Misconfigured, match=f"topic {topic} was made anew: its id is (.*), and .* was read") as refused:
        cli_stream.run(state, given, to_the_end=True, quiet=True)
    accepted = str(refused.value).partition("its id is ")[2].partition(",")[0]
    after = cli_stream.run(state, settings(kafka, topic, kafka_accept_topic=accepted), to_the_end=True, quiet=True)
    assert after["accepted"] == 0
    assert after["totals"]["events"] == before["events"]
    assert after["duplicates"] > 0
    with pytest.raises(Misconfigured, match=f"no topic no-{topic}"):
        cli_stream.run(state, settings(kafka, f"no-{topic}"), to_the_end=True, quiet=True)


def test_a_stream_waits_for_its_workers_and_its_lag_is_told(
    kafka: Any, make_topic: Any, source: Path, tmp_path: Path
) -> None:
    """Without workers tasks pile up to the limit: the partitions are paused, and nothing is held beyond it."""
    given = settings(kafka, filled(kafka, make_topic, source), max_open_tasks=5)
    engine = runtime.open_local(tmp_path / "state", follow.fitting(given, made=False), workers=0)
    try:
        job = follow.job_for(given, engine.facts, engine.readers, to_the_end=True)
        engine.host.read(job)
        wait_for(lambda: "max_open_tasks" in engine.host.status().feeds[0].paused)
        stopped = engine.host.status().feeds[0]
        assert stopped.accepted < TURNS / 2
        assert sum(stopped.lag.values()) > TURNS / 2
        producer_lag = sum(stopped.lag.values())
        cli_kafka.produce(source, given, quiet=True)
        wait_for(lambda: sum(engine.host.status().feeds[0].lag.values()) > producer_lag + TURNS / 2)
        assert engine.host.status().feeds[0].accepted <= stopped.accepted + 4 * 40
    finally:
        engine.close()
    given = settings(kafka, job.settings.kafka_topic)
    behind = cli_partitions.partitions(tmp_path / "state", given)["partitions"]
    assert sum(one["kafka"]["lag"] for one in behind) > TURNS
    done = cli_stream.run(tmp_path / "state", given, to_the_end=True, quiet=True)
    assert done["lag"] == 0
