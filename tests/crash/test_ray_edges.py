"""What meets an engine on Ray at its edges: stopped actors, files one after another, runs beside each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scripted_model import ScriptedModel
from raygam import Memory
from raygam.memory.errors import Misconfigured
from raygam.pipeline import cli_run
from raygam.pipeline.cli_tasks import Wanted, listed
from raygam.pipeline.config import Settings, read_settings

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.long]


def settings(**changed: Any) -> Settings:
    values: dict[str, Any] = {"embedder": "stub", "partitions": 4, "max_buffer_tokens": 200}
    return read_settings(**(values | {"ray_heartbeat_seconds": 0.2, "ray_stuck_seconds": 3.0} | changed))


def write(path: Path, numbers: range, mode: str = "w") -> Path:
    with path.open(mode, encoding="utf-8") as file:
        for number in numbers:
            turn = {"message_id": f"{path.stem}-{number}", "user_id": f"u{number % 40}", "session_id": "s"}
            turn |= {"speaker": "Ana", "role": "user", "text": f"turn {number} of the garden"}
            file.write(json.dumps(turn | {"timestamp": 1_700_000_000_000 + number * 60_000}) + "\n")
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    from raygam.actors.cluster import Cluster

    opened = Cluster.open(tmp_path / "state", settings(), shards=2, workers=1)
    yield opened
    opened.close()


def test_files_one_after_another(cluster: Any, tmp_path: Path, state_of: Callable[[Path], dict[str, Any]]) -> None:
    """One that grew, another, the first again, one that is empty, one without a good line; as one process has them."""
    from raygam.actors.driving import run_file

    def steps(run: Callable[[Path], tuple[int, int]], folder: Path) -> list[tuple[int, int]]:
        folder.mkdir()
        a, b = folder / "a.jsonl", folder / "b.jsonl"
        empty, bad = folder / "empty.jsonl", folder / "bad.jsonl"
        empty.touch()
        bad.write_text("{\nnothing\n[]\n", encoding="utf-8")
        found = [run(write(a, range(100)))]
        found.append(run(write(a, range(100, 160), "a")))
        found.append(run(write(b, range(30))))
        return [*found, run(a), run(empty), run(bad)]

    def on_ray(path: Path) -> tuple[int, int]:
        report = run_file(cluster, path)
        assert not report.interrupted
        return report.accepted, report.dead_letters

    def in_one_process(path: Path) -> tuple[int, int]:
        report = cli_run.run(path, tmp_path / "reference", settings(), quiet=True)
        return report["accepted"], report["dead_letters"]

    expected = [(100, 0), (60, 0), (30, 0), (0, 0), (0, 0), (0, 3)]
    assert steps(on_ray, tmp_path / "first") == expected
    assert steps(in_one_process, tmp_path / "second") == expected
    assert state_of(tmp_path / "state") == state_of(tmp_path / "reference")


def test_another_file_while_one_is_read_is_refused(cluster: Any, tmp_path: Path) -> None:
    from raygam.actors.driving import run_file
    from raygam.actors.supervisor import Busy

    first, second = write(tmp_path / "a.jsonl", range(3000)), write(tmp_path / "b.jsonl", range(30))
    refused: list[str] = []

    def meanwhile(progress: Any) -> None:
        if not refused and not progress.finished:
            with pytest.raises(Busy) as error:
                run_file(cluster, second)
            refused.append(str(error.value))

    assert run_file(cluster, first, on_progress=meanwhile).accepted == 3000
    assert str(first) in refused[0]
    assert run_file(cluster, second).accepted == 30


def test_a_shard_that_stops_before_a_run_begins_holds_it_up_for_seconds(cluster: Any, tmp_path: Path) -> None:
    """No command waits for it: the supervisor would see nothing else meanwhile."""
    from raygam.actors.driving import run_file

    pids = cluster.ask("progress").pids
    os.kill(pids["shard-0"], signal.SIGSTOP)
    started = time.monotonic()
    assert run_file(cluster, write(tmp_path / "a.jsonl", range(200))).accepted == 200
    assert time.monotonic() - started < 25.0
    assert cluster.ask("progress").replaced == {"shard-0": 1}
    os.kill(cluster.ask("progress").pids["shard-1"], signal.SIGSTOP)
    started = time.monotonic()
    cluster.close()  # nor does the end
    assert time.monotonic() - started < 25.0


def test_a_run_without_workers_is_refused(tmp_path: Path) -> None:
    from raygam.actors.cluster import Cluster
    from raygam.actors.driving import run_file

    cluster = Cluster.open(tmp_path / "state", settings(partitions=1), shards=9, workers=0)
    try:
        assert set(cluster.ask("progress").owned.values()) == {"shard-0"}, "no shards without a partition"
        with pytest.raises(Misconfigured, match="--workers"):
            run_file(cluster, write(tmp_path / "a.jsonl", range(20)))
    finally:
        cluster.close()


def test_a_person_parks_and_retries_tasks_of_a_running_engine(tmp_path: Path) -> None:
    import ray

    from raygam.actors.cluster import Cluster

    state = tmp_path / "state"
    with Memory(state, embedder="stub", partitions=2, workers=0) as memory:
        memory.add([{"user_id": user, **said(1)} for user in ("ana", "bo", "cy")])
        memory._engine.flush()
    cluster = Cluster.open(state, settings(partitions=2), shards=2, workers=0)
    try:
        address = ray.get_runtime_context().gcs_address
        (task,) = listed(state, Wanted(user="ana"), 9)["tasks"]
        command = [sys.executable, "-m", "raygam", "tasks", "park", task["id"], "--state", str(state)]
        done = subprocess.run([*command, "--address", address, "--json"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["parked"] == [task["id"]]
        (parked,) = listed(state, Wanted(status="parked"), 9)["tasks"]
        assert (parked["id"], parked["parked_by_person"]) == (task["id"], True)
        assert _open_and_parked(cluster) == (2, 1)
        command[4:6] = ["retry", "--all"]
        done = subprocess.run([*command, "--address", address, "--json"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["retried"] == [task["id"]]
        assert _open_and_parked(cluster) == (3, 0)
        assert listed(state, Wanted(status="open"), 9)["total"] == 3
    finally:
        cluster.close()


def test_the_chat_model_of_a_running_engine_answers_a_question(tmp_path: Path) -> None:
    """Whoever asks needs to know where the engine is, and not which model it thinks with."""
    import ray

    from raygam.actors.cluster import Cluster

    state = tmp_path / "state"
    with Memory(state, embedder="stub", partitions=1, workers=0) as memory:
        memory.add([{"user_id": "ana", **said(1), "text": "The kiln stands in Porto."}])
    command = [sys.executable, "-m", "raygam", "answer", "ana", "Where does the kiln stand?", "--state", str(state)]
    with ScriptedModel(key="sesame") as model:
        cluster = Cluster.open(
            state, settings(partitions=1, chat_url=model.url, chat_key="sesame"), shards=1, workers=0
        )
        try:
            address = ray.get_runtime_context().gcs_address
            done = subprocess.run([*command, "--address", address, "--json"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert (answer["answer"], answer["model"]) == ("The kiln stands in Porto.", "scripted")
            assert [cited["message_id"] for cited in answer["citations"]] == ["m1"]
            both = [*command, "--address", address, "--chat-url", model.url]
            done = subprocess.run(both, capture_output=True, text=True)
            assert done.returncode == 2
            assert "leave one of them out" in done.stderr
        finally:
            cluster.close()


def said(number: int) -> dict[str, Any]:
    base = {"session_id": "s", "speaker": "Ana", "role": "user", "text": f"turn {number}"}
    return base | {"message_id": f"m{number}", "timestamp": 1_700_000_000_000}


def _open_and_parked(cluster: Any) -> tuple[int, int]:
    """By the engine's own word, which is as old as its last heartbeat."""
    before = cluster.ask("progress").ticks
    while (now := cluster.ask("progress")).ticks < before + 2:
        time.sleep(0.05)
    return now.open_tasks, now.parked_tasks
