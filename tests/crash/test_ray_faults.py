"""Actors killed, stopped and doubled while a file streams: the state ends as without it."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raygam import Memory
from raygam.adapters.sqlite_store import SqliteStore
from raygam.pipeline import cli_run
from raygam.pipeline.config import Settings, read_settings

pytestmark = pytest.mark.usefixtures("ray_session")

State = dict[str, Any]
TURNS = 2400
WORDS = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()


def settings(**changed: Any) -> Settings:
    """Many small chunks and tasks, so that a kill falls into the middle of everything."""
    values: dict[str, Any] = {"embedder": "stub", "partitions": 4, "chunk_bytes": 4096, "worker_group": 4}
    values |= {"max_buffer_tokens": 200, "ray_heartbeat_seconds": 0.2, "ray_stuck_seconds": 3.0}
    return read_settings(**(values | changed))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Turns of 40 users, with late turns, duplicates, session ends and bad lines."""
    chance = random.Random(5)
    lines: list[str] = []
    for number in range(TURNS):
        user = f"u{chance.randrange(40)}"
        minute = number * 2 - (50 if number % 29 == 0 else 0)
        turn = {
            "message_id": f"m{number - (1 if number % 41 == 0 else 0)}",
            "user_id": user,
            "session_id": f"s{number // 400}",
            "speaker": "Ana" if number % 2 else "Bo",
            "role": "user",
            "text": " ".join(chance.choices(WORDS, k=12)) + (" yesterday?" if number % 7 == 0 else "."),
            "timestamp": 1_700_000_000_000 + minute * 60_000,
        }
        lines.append(json.dumps(turn))
        if number % 97 == 0:
            lines.append('{"message_id": ')
            lines.append(json.dumps({"message_id": "", "user_id": user}))
        if number % 83 == 0:
            lines.append(json.dumps({"type": "session_end", "user_id": user, "session_id": "s0", "timestamp": 0}))
    path = tmp_path_factory.mktemp("source") / "dialogue.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory, state_of: Callable[[Path], State]) -> State:
    state = tmp_path_factory.mktemp("undisturbed") / "state"
    cli_run.run(source, state, settings(), quiet=True)
    return state_of(state)


class Streaming:
    """A run on Ray in a thread, to be disturbed."""

    def __init__(self, cluster: Any, source: Path) -> None:
        self.cluster = cluster
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(source,))
        self._thread.start()

    def _run(self, source: Path) -> None:
        from raygam.actors.driving import run_file

        try:
            run_file(self.cluster, source)
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            self._failure = error

    def until(self, accepted: int, *, still_streaming: bool = True) -> Any:
        """Wait until so many turns are in, or it is over; return the progress.

        Args:
            accepted: turns, early enough in the file to come before its end on any machine.
            still_streaming: it must not be over by then.
        """
        progress = self.cluster.ask("progress")
        while progress.accepted < accepted and self._thread.is_alive():
            progress = self.cluster.ask("progress")
        if still_streaming:
            assert self._thread.is_alive(), f"the run was over before it could be disturbed: {self._failure}"
        return progress

    def end(self) -> Any:
        """Wait for the end; return the last progress."""
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), self.cluster.ask("progress")
        if self._failure is not None:
            raise self._failure
        return self.cluster.ask("progress")


@contextmanager
def streaming(source: Path, state: Path, **changed: Any) -> Iterator[Streaming]:
    from raygam.actors.cluster import Cluster

    cluster = Cluster.open(state, settings(**changed), shards=2, workers=1)
    try:
        yield Streaming(cluster, source)
    finally:
        cluster.close()


def wait_for(met: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def test_sigkill(source: Path, undisturbed: State, tmp_path: Path, state_of: Callable[[Path], State]) -> None:
    """Of a shard, a worker and an embedder at once, then of the other shard; in between the supervisor stands still.

    The shards notice that it does, and kill it; Ray starts it again.
    """
    first = ("shard-1", "worker-0", "embedder-0")
    with streaming(source, tmp_path / "state", chunk_bytes=1024) as run:
        before = run.until(100).pids
        for place in first:
            os.kill(before[place], signal.SIGKILL)
        wait_for(lambda: all(run.cluster.ask("progress").pids.get(at, before[at]) != before[at] for at in first))
        assert run.cluster.ask("progress").replaced == dict.fromkeys(first, 1)
        pid = run.cluster.ask("process").pid
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: not alive(pid), 40)
        wait_for(lambda: "shard-0" in run.cluster.ask("progress").pids)
        pid = run.cluster.ask("progress").pids["shard-0"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: run.cluster.ask("progress").pids.get("shard-0", pid) != pid)
        assert run.end().replaced == {"shard-0": 1}, "the supervisor that was started again counts anew"
    assert state_of(tmp_path / "state") == undisturbed


def test_a_shard_stopped_inside_a_transaction_is_killed_first(
    source: Path, undisturbed: State, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    """Ray does not notice that it stands still: the supervisor does, by its silence.

    It holds SQLite's lock, so that nobody can open its partition before it is gone.
    """
    with streaming(source, tmp_path / "state") as run:
        progress = run.until(200)
        mine = [at for at, shard in progress.owned.items() if shard == "shard-0"]
        pid = progress.pids["shard-0"]
        stop(pid, tmp_path / "state", mine, inside=True)
        assert run.end().replaced == {"shard-0": 1}
        assert not alive(pid)
    assert state_of(tmp_path / "state") == undisturbed


def test_a_zombie_wakes_and_is_fenced(
    source: Path, undisturbed: State, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    """Its partitions were opened elsewhere while it stood still; what it writes after that is refused."""
    with streaming(source, tmp_path / "state", ray_stuck_seconds=20.0) as run:
        progress = run.until(200)
        mine = [at for at, shard in progress.owned.items() if shard == "shard-0"]
        stop(progress.pids["shard-0"], tmp_path / "state", mine, inside=False)
        fence = SqliteStore.join(tmp_path / "state", run.cluster.spec.facts, run.cluster.spec.cluster)
        try:
            for partition in mine:
                fence.writer(partition).close()  # an opening elsewhere: the epoch is one higher
        finally:
            os.kill(progress.pids["shard-0"], signal.SIGCONT)
            fence.close()
        after = run.end()
        assert after.replaced == {}
        assert {after.epochs[partition] for partition in mine} == {3}, "it went on under the epoch that was fenced"
    assert state_of(tmp_path / "state") == undisturbed


@pytest.mark.long  # of a topic: `test_ray_kafka.py`, each time
def test_partitions_move_while_they_stream(
    source: Path, undisturbed: State, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    """There and back, then to a third shard that comes."""
    with streaming(source, tmp_path / "state") as run:
        owner = run.until(200).owned[0]
        assert run.cluster.move(0, 1 - int(owner[-1])) < 5.0
        owner = run.until(500, still_streaming=False).owned[1]
        moved = engine_command("move", "1", str(1 - int(owner[-1])), state=tmp_path / "state")
        assert moved["seconds"] < 5.0
        run.until(900, still_streaming=False)
        run.cluster.ask("resize", "shard", 3)
        progress = run.end()
        wait_for(lambda: len(set(run.cluster.ask("progress").owned.values())) == 3)
        assert progress.replaced == {}
    assert state_of(tmp_path / "state") == undisturbed


def test_two_supervisors(source: Path, undisturbed: State, tmp_path: Path, state_of: Callable[[Path], State]) -> None:
    """The second rules, the first stands by; a shard that dies is replaced once. Then the second dies too."""
    import ray

    from raygam.actors.cluster import start_supervisor

    with streaming(source, tmp_path / "state", ray_stuck_seconds=2.0) as run:
        run.until(200)
        other = start_supervisor(run.cluster.spec, f"{run.cluster.spec.prefix}another")
        try:
            wait_for(lambda: ray.get(other.progress.remote(), timeout=10).ready)
            progress = run.until(500, still_streaming=False)
            os.kill(progress.pids["shard-0"], signal.SIGKILL)
            wait_for(lambda: ray.get(other.progress.remote(), timeout=10).replaced == {"shard-0": 1})
        finally:
            ray.kill(other, no_restart=True)
        run.end()
        pid = run.cluster.ask("progress").pids["shard-1"]
        os.kill(pid, signal.SIGKILL)  # the first takes over
        wait_for(lambda: run.cluster.ask("progress").pids.get("shard-1", pid) != pid, 30)
    assert state_of(tmp_path / "state") == undisturbed


def stop(pid: int, state: Path, partitions: list[int], *, inside: bool) -> None:
    """Stop a shard's process inside a write transaction, or outside of every one."""
    for _ in range(2000):
        os.kill(pid, signal.SIGSTOP)
        wait_until_stopped(pid)
        if any(is_locked(state / f"partition-{at:04d}.db") for at in partitions) == inside:
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)
    raise AssertionError(f"the process was never met {'inside' if inside else 'outside'} a transaction")


def wait_until_stopped(pid: int) -> None:
    """Its threads stop one by one, and on a busy machine one may run on into a transaction meanwhile."""

    def state(thread: Path) -> str:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            return (thread / "stat").read_text().rpartition(")")[2].split()[0]
        return "T"

    wait_for(lambda: all(state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir()))


def is_locked(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


def test_the_users_of_the_other_shard_see_no_gap(tmp_path: Path) -> None:
    """1,000 users stream and ask; one of two shards is killed, and answers again within 10 s."""
    from benchmarks.ingest import write_dialogue
    from benchmarks.recovery import kill_and_watch, probed

    write_dialogue(tmp_path / "dialogue.jsonl", 20_000, 1000, 7)
    with streaming(tmp_path / "dialogue.jsonl", tmp_path / "state", chunk_bytes=32 * 1024) as run:
        run.until(2000)
        with probed(run.cluster, 1000) as probe:
            wait_for(lambda: all(answers.at for answers in probe.answers.values()))
            found = kill_and_watch(run.cluster, probe, "shard-0")
        assert max(found.seconds) < 10.0
        assert (found.others_failed, found.gap_seconds < 2.0) == (0, True), found
        run.end()
    with Memory(tmp_path / "state") as memory:
        assert sum(len(memory.show(f"user-{number}")["episodes"]) > 0 for number in range(1000)) == 1000


def make_forgetful(name: str, spec: Any) -> Any:
    """A host that commits what it is told, and then raises: the first three calls of each kind."""
    from raygam.actors.cluster import make_host
    from raygam.memory.errors import Retryable

    host = make_host(name, spec)

    def forgets(method: str) -> None:
        inner = getattr(host, method)
        left = 3

        def lost(*arguments: Any) -> Any:
            nonlocal left
            result = inner(*arguments)
            if result != [] and left > 0:  # a claim of nothing commits nothing
                left -= 1
                with (spec.state.directory.parent / "lost").open("a") as file:
                    file.write(f"{method}\n")
                raise Retryable("the answer was lost on its way")
            return result

        setattr(host, method, lost)

    for method in ("open", "ingest", "claim", "submit"):
        forgets(method)
    return host


@pytest.mark.long  # killed after a commit, before its reply: `test_kill.py`, each time
def test_calls_that_raise_although_they_committed(
    source: Path,
    undisturbed: State,
    tmp_path: Path,
    state_of: Callable[[Path], State],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray import cloudpickle

    from raygam.actors import cluster

    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(sys.modules[__name__])  # actors cannot import a test
    monkeypatch.setitem(cluster.KINDS, "shard", replace(cluster.KINDS["shard"], make=make_forgetful))
    # What was claimed in vain comes again when its lease has run out.
    with streaming(source, tmp_path / "state", lease_seconds=3.0) as run:
        run.end()
    lost = (tmp_path / "lost").read_text().split()
    assert {method: lost.count(method) for method in set(lost)} == {"open": 2, "ingest": 6, "claim": 6, "submit": 6}
    assert state_of(tmp_path / "state") == undisturbed


def test_the_driver_is_killed_and_another_goes_on(
    source: Path, undisturbed: State, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    """On a cluster that outlives it: the shards go on, and the next driver joins them."""
    import ray

    from raygam.actors.cluster import Cluster
    from raygam.actors.driving import run_file

    address = ray.get_runtime_context().gcs_address
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(source), str(tmp_path / "state"), address])
    state = tmp_path / "state"
    try:
        wait_for(lambda: driver.poll() is not None or events(state) > 300, 60)
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.wait()
    seen = events(state)
    assert seen < TURNS * 0.9, "the driver was killed too late"
    cluster = Cluster.open(state, settings(), shards=2, workers=2)
    try:
        assert cluster.joined
        wait_for(lambda: events(state) > seen)  # with nobody there to drive
        run_file(cluster, source)
    finally:
        cluster.close(end=True)
    assert state_of(state) == undisturbed


DRIVER = """
import sys
from pathlib import Path
from raygam.actors.cluster import Cluster
from raygam.actors.driving import run_file
from raygam.pipeline.config import read_settings

settings = read_settings(
    embedder="stub", partitions=4, chunk_bytes=4096, worker_group=4, max_buffer_tokens=200, ray_heartbeat_seconds=0.2
)
cluster = Cluster.open(Path(sys.argv[2]), settings, shards=2, workers=2, address=sys.argv[3])
run_file(cluster, Path(sys.argv[1]))
"""


def engine_command(*arguments: str, state: Path) -> dict[str, Any]:
    """What an operator types in another terminal."""
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "raygam", "engine", *arguments, "--state", str(state), "--address", address]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def events(state: Path) -> int:
    """Turns stored so far."""
    if SqliteStore.recorded_facts(state) is None:
        return 0
    with SqliteStore.open_read_only(state) as store:
        return sum(store.reader(at).partition_info().events for at in range(store.facts.partitions))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
