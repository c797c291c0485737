"""`raygam produce` and `raygam topics`, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raygam.adapters.kafka_connection import KafkaConnection
from raygam.memory.errors import Misconfigured, Retryable
from raygam.memory.identity import partition_of, record_key
from raygam.memory.model import User
from raygam.pipeline.cli import exit_code


def raygam(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAYGAM_")}
    return subprocess.run(
        [sys.executable, "-m", "raygam", *arguments],
        cwd=cwd,
        env=plain | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def turn(n: int, user: str, **fields: Any) -> bytes:
    record = {
        "message_id": f"m{n}",
        "user_id": user,
        "session_id": "s",
        "speaker": user,
        "role": "user",
        "text": f"line {n} of {user}",
        "timestamp": "2026-01-05T10:00:00Z",
    }
    return json.dumps(record | fields).encode()


@pytest.fixture
def dialogue(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """Three users, lines that nobody can read, and a last line that is not complete."""
    lines = [turn(n, f"user-{n % 3}") for n in range(60)]
    lines[10:10] = [b"no json at all", b"", turn(99, "user-1", text=None), b'{"user_id": "user-2"}']
    path = tmp_path / "dialogue.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n" + b'{"message_id": "cut o')
    return path, lines


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
def test_a_file_is_sent_keyed_and_in_order(
    partitioner: str,
    dialogue: tuple[Path, list[bytes]],
    connection: KafkaConnection,
    make_topic: Callable[..., str],
    make_consumer: Any,
    tmp_path: Path,
) -> None:
    path, lines = dialogue
    topic = make_topic(4)
    done = raygam(
        *(
            "produce",
            str(path),
            "--kafka",
            connection.brokers,
            "--topic",
            topic,
            "--partitioner",
            partitioner,
            "--json",
        ),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["sent"], report["without_owner"], report["too_large"]) == (64, 2, 0)
    assert report["incomplete_line"] == path.stat().st_size - len(b'{"message_id": "cut o')
    given = make_consumer(topic, 4, 64)
    assert sorted(record.value for record in given) == sorted(lines)
    for record in given:
        if record.key is None:
            assert record.value in (b"no json at all", b"")
            assert record.partition == partition_of(record.value, 4, partitioner)
        else:
            user = json.loads(record.value)["user_id"]
            assert record.key == record_key(User("default", user))
            assert record.partition == partition_of(record.key, 4, partitioner)
    for user in ("user-0", "user-1", "user-2"):
        key = record_key(User("default", user))
        of_user = [line for line in lines if f'"{user}"'.encode() in line]
        assert [record.value for record in given if record.key == key] == of_user


def test_a_record_that_no_broker_takes_is_said_to_stay_behind(
    connection: KafkaConnection, make_topic: Callable[..., str], make_consumer: Any, tmp_path: Path
) -> None:
    topic = make_topic(1)
    path = tmp_path / "large.jsonl"
    path.write_bytes(turn(1, "ann") + b"\n" + turn(2, "ann", text="x" * 3000) + b"\n" + turn(3, "ann") + b"\n")
    done = raygam(
        *("produce", str(path), "--kafka", connection.brokers, "--topic", topic),
        cwd=tmp_path,
        RAYGAM_MAX_RECORD_BYTES="2000",
    )
    assert done.returncode == 1
    assert f"1 were not sent: larger than max_record_bytes (at bytes {len(turn(1, 'ann')) + 1})" in done.stderr
    assert [record.value for record in make_consumer(topic, 1, 2)] == [turn(1, "ann"), turn(3, "ann")]


def test_a_topic_is_made_and_shown(connection: KafkaConnection, admin: Any, make_producer: Any, tmp_path: Path) -> None:
    name = f"made-by-command-{os.getpid()}"
    (tmp_path / "raygam.toml").write_text(f'kafka_brokers = "{connection.brokers}"\n')
    made = raygam("topics", "create", name, "--partitions", "3", "--replication", "1", "--json", cwd=tmp_path)
    try:
        assert made.returncode == 0, made.stderr
        facts = json.loads(made.stdout)
        assert (facts["partitions"], facts["replicas"]) == (3, 1)
        producer = make_producer()
        producer.send(name, b"x", partition=2)
        producer.flush(10)
        dead = json.loads(made.stdout)["dead_letters"]
        assert (dead["name"], dead["partitions"]) == (f"{name}.dead", 3)
        shown = json.loads(raygam("topics", "show", name, "--json", cwd=tmp_path).stdout)
        assert shown["topic_id"] == facts["topic_id"]
        assert shown["source"] == f"kafka:{facts['topic_id']}"
        assert shown["offsets"] == [{"beginning": 0, "end": 0}] * 2 + [{"beginning": 0, "end": 1}]
        again = raygam("topics", "create", name, cwd=tmp_path)
        assert again.returncode == exit_code(Misconfigured())
        assert f"there is a topic {name} already" in again.stderr
    finally:
        admin.delete_topics([name, f"{name}.dead"], raise_errors=False)


def test_commands_say_what_is_missing(tmp_path: Path, dialogue: tuple[Path, list[bytes]]) -> None:
    path, _ = dialogue
    nobody = raygam("topics", "show", "dialogue", cwd=tmp_path)
    assert nobody.returncode == exit_code(Misconfigured())
    assert "give --kafka host:port, or set kafka_brokers" in nobody.stderr
    dead = raygam("produce", str(path), "--kafka", "127.0.0.1:1", cwd=tmp_path)
    assert dead.returncode == exit_code(Retryable())
    assert "no Kafka broker answers at 127.0.0.1:1" in dead.stderr
    assert len(dead.stderr.splitlines()) <= 3  # the client's own lines stay away
