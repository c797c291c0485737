"""`raygam run --ray` and `raygam partitions` as a person uses them: real processes, stopped and killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from raygam.adapters.sqlite_store import SqliteStore
from raygam.memory.errors import Misconfigured
from raygam.pipeline import cli_run
from raygam.pipeline.config import read_settings

pytestmark = pytest.mark.usefixtures("ray_session")

RAYGAM = [sys.executable, "-m", "raygam"]
SMALL = {"PARTITIONS": "4", "CHUNK_BYTES": "4096", "WORKER_GROUP": "4", "MAX_BUFFER_TOKENS": "200"}
"""Many small chunks and tasks, so that a signal falls into the middle."""
TURNS = 3000
WORDS = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()
State = dict[str, Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(7)
    path = tmp_path_factory.mktemp("source") / "dialogue.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(TURNS):
            turn = {
                "message_id": f"m{number}",
                "user_id": f"u{chance.randrange(40)}",
                "session_id": f"s{number // 500}",
                "speaker": "Ana" if number % 2 else "Bo",
                "role": "user",
                "text": " ".join(chance.choices(WORDS, k=12)),
                "timestamp": 1_700_000_000_000 + number * 120_000,
            }
            file.write(json.dumps(turn) + "\n")
    return path


@pytest.fixture(scope="module")
def in_one_process(source: Path, tmp_path_factory: pytest.TempPathFactory, state_of: Callable[[Path], State]) -> State:
    state = tmp_path_factory.mktemp("reference") / "state"
    settings = read_settings(embedder="stub", **{name.lower(): value for name, value in SMALL.items()})
    cli_run.run(source, state, settings, quiet=True)
    return state_of(state)


def environment(**more: str) -> dict[str, str]:
    return os.environ | {f"RAYGAM_{name}": value for name, value in (SMALL | more).items()}


def command(source: Path, state: Path, *more: str) -> list[str]:
    return [*RAYGAM, "run", str(source), "--state", str(state), "--embedder", "stub", "--json", *more]


def as_json(*arguments: str | Path) -> dict[str, Any]:
    done = subprocess.run(
        [*RAYGAM, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Running:
    """A run in a process group of its own, as a terminal starts it."""

    def __init__(self, source: Path, state: Path, *more: str, **given: str) -> None:
        self.state = state
        self.process = subprocess.Popen(
            command(source, state, *more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**given),
            start_new_session=True,
        )

    def until(self, turns: int) -> None:
        """Wait until so many turns are stored."""
        deadline = time.monotonic() + 120
        while stored(self.state) < turns:
            assert self.process.poll() is None, f"it ended before it could be disturbed: {self.process.communicate()}"
            assert time.monotonic() < deadline, "nothing came in"
            time.sleep(0.02)

    def family(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def family_with(self, titles: set[str]) -> list[psutil.Process]:
        """Wait until processes of these titles run; return all."""
        deadline = time.monotonic() + 120
        while True:
            found = self.family()
            if titles <= {titled(one) for one in found if alive(one)}:
                return found
            assert time.monotonic() < deadline, found

    def end(self, code: int) -> dict[str, Any]:
        """Wait for its end; its standard output is one object and its standard error has no trace."""
        output, said = self.process.communicate(timeout=120)
        assert self.process.returncode == code, said
        assert "Traceback" not in said
        assert "raylet" not in said
        report: dict[str, Any] = json.loads(output)
        return report


@contextmanager
def running(source: Path, state: Path, *more: str, **given: str) -> Iterator[Running]:
    run = Running(source, state, *more, **given)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


def stored(state: Path) -> int:
    try:
        store = SqliteStore.open_read_only(state)
    except Misconfigured:  # it is not made yet
        return 0
    try:
        return sum(store.reader(at).partition_info().events for at in range(store.facts.partitions))
    finally:
        store.close()


def titled(process: psutil.Process) -> str:
    return str(process.name()).partition(".")[0]


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long  # of one process: `test_cli.py`, each time
def test_ctrl_c_stops_at_an_edge_and_a_second_run_goes_on(
    source: Path, in_one_process: State, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    """The first on a Ray of its own; the second on one that runs, where a shard is killed."""
    import ray

    state = tmp_path / "state"
    with running(source, state, "--ray") as run:
        run.until(150)
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it too
        stopped = run.end(130)
        assert stopped["interrupted"]
        assert 150 <= stopped["accepted"] < TURNS
        assert stopped["ray"]["replaced"] == {}
    with running(source, state, "--ray", "--shards", "3", "--address", ray.get_runtime_context().gcs_address) as run:
        run.until(stopped["accepted"] + 150)
        victim = next(one for one in psutil.process_iter() if is_shard_of(one, state))
        victim.kill()
        finished = run.end(0)
        assert not finished["interrupted"]
        assert finished["ray"]["shards"] == 3
        assert sum(finished["ray"]["replaced"].values()) == 1
        assert stopped["accepted"] + finished["accepted"] == TURNS
    assert state_of(state) == in_one_process


@pytest.mark.long  # of the engine itself: `tests/crash/test_ray_faults.py`, each time
def test_a_killed_driver_leaves_no_process_and_a_state_that_goes_on(
    source: Path, in_one_process: State, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    state = tmp_path / "state"
    with running(source, state, "--ray", MAX_OPEN_TASKS="1") as run:  # it reads no faster than its worker thinks
        whole = {"raylet", "gcs_server", "ray::ShardActor", "ray::Supervisor"}
        # Known before the first turn is in: to look for all takes longer than to take the file.
        family = run.family_with(whole)
        run.until(1)
        run.process.send_signal(signal.SIGKILL)
        # Ray's agents of the node look for it from time to time only; they hold nothing of the state.
        holding = [one for one in family if not titled(one).endswith("Agent")]
        _, left = psutil.wait_procs(holding, timeout=15)
        assert not [one for one in left if alive(one)]
    assert stored(state) < TURNS
    done = subprocess.run(
        command(source, state), capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert state_of(state) == in_one_process


def is_shard_of(process: psutil.Process, state: Path) -> bool:
    """Whether the process is a shard actor that has a partition of the state open."""
    try:
        return process.name().startswith("ray::ShardActor") and any(
            file.path.startswith(str(state)) and file.path.endswith(".db") for file in process.open_files()
        )
    except psutil.Error:
        return False


def test_partitions_are_shown(tmp_path: Path) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    turn = {"message_id": "m1", "user_id": "ana", "session_id": "s1", "speaker": "Ana", "role": "user"}
    source.write_text(json.dumps(turn | {"text": "I moved to Porto.", "timestamp": 1_700_000_000_000}) + "\n")
    subprocess.run(command(source, state), check=True, capture_output=True, timeout=120, env=environment())
    found = as_json("partitions", "--state", state)
    assert (found["partitioner"], [one["partition"] for one in found["partitions"]]) == ("murmur2", [0, 1, 2, 3])
    assert sum(one["users"] for one in found["partitions"]) == 1
    assert sum(one["events"] for one in found["partitions"]) == 1
    for one in found["partitions"]:
        assert (one["epoch"], one["open_tasks"], one["parked_tasks"], one["dead_letters"]) == (1, 0, 0, 0)
        assert "process" in one["opened_by"]
        (held,) = one["positions"].values()
        assert held == {"next_offset": source.stat().st_size, "name": str(source)}
    shown = subprocess.run([*RAYGAM, "partitions", "--state", state], capture_output=True, text=True, check=True)
    assert "4 partitions, placed by murmur2" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shards", "2"], "--shards and --address go with --ray"),
        (["--address", "auto"], "--shards and --address go with --ray"),
        (["--ray", "--shards", "0"], "--shards"),
        (["--ray", "--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
    ],
)
def test_wrong_use_says_what_to_do(tmp_path: Path, arguments: list[str], says: str) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    source.write_text("")
    done = subprocess.run(command(source, state, *arguments), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not state.exists()
