"""`raygam serve` as a person or a service manager runs it: ready line, requests, a clean end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raygam.memory.identity import partition_of, record_key
from raygam.memory.model import User


def command(state: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "raygam", "serve", "--state", str(state), "--embedder", "stub", *more]


@contextmanager
def serving(state: Path, address: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen(
        command(state, "--port", "0", "--shards", "1", "--address", address, "--json", *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"RAYGAM_PARTITIONS": "2"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def post(url: str, document: Any) -> dict[str, Any]:
    asked = urllib.request.Request(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as response:
        found: dict[str, Any] = json.loads(response.read())
        return found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> Callable[[bytes], list[str]]:
    """Puts a record into a new topic; returns the options that follow it."""

    def put(record: bytes) -> list[str]:
        broker, make_topic = request.getfixturevalue("kafka"), request.getfixturevalue("make_topic")
        producer = request.getfixturevalue("make_producer")()
        name: str = make_topic(2)
        producer.send(name, record, partition=partition_of(record_key(User("default", "ana")), 2, "murmur2"))
        producer.flush(20)
        return ["--kafka", broker.address, "--topic", name]

    return put


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_serve_answers_until_it_is_stopped_and_keeps_what_it_acknowledged(
    ray_session: None, tmp_path: Path, number: signal.Signals, topic: Callable[[bytes], list[str]]
) -> None:
    """Once by the API alone, once while it follows a topic too."""
    import ray

    turn = {
        "message_id": "m1", "session_id": "s1", "speaker": "Ana", "role": "user",
        "text": "I moved to Porto.", "timestamp": "2025-03-04T09:00:00Z",
    }  # fmt: skip
    follow = (
        topic(json.dumps(turn | {"message_id": "m0", "user_id": "ana"}).encode()) if number == signal.SIGTERM else []
    )
    with serving(tmp_path / "state", ray.get_runtime_context().gcs_address, *follow) as (process, ready):
        assert (ready["partitions"], ready["shards"], ready["joined"]) == (2, 1, False)
        users = f"{ready['url']}/v1/users/ana"
        assert post(f"{users}/turns", {"turns": [turn]})["accepted"] == 1
        deadline = time.monotonic() + 30
        while len((found := post(f"{users}/search", {"query": "Where?", "mode": "flat"}))["memories"]) < 1 + bool(
            follow
        ):
            assert time.monotonic() < deadline, found
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert "Traceback" not in said
        assert "INFO" not in said
    asked = subprocess.run(
        [sys.executable, "-m", "raygam", "search", "ana", "Where?", "--mode", "flat", "--json",
         "--state", str(tmp_path / "state")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(asked.stdout) == found


def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            command(tmp_path / "state", "--port", port), capture_output=True, text=True, check=False, timeout=120
        )
    assert done.returncode == 2
    assert f"cannot listen at 127.0.0.1, port {port}" in done.stderr
    assert not (tmp_path / "state").exists()
