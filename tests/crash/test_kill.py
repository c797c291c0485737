"""SIGKILL of the real process at named points and at random ones: the state ends the same."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("child.py")
POINTS = ("before_commit", "in_ingest", "after_commit", "after_claim", "after_proposal", "in_apply", "after_apply")
State = dict[str, Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 240 turns of five users, with late turns, duplicates, session ends and bad lines."""
    chance = random.Random(3)
    words = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()
    lines: list[str] = []
    for number in range(240):
        user = chance.randrange(5)
        minute = number * 4 - (50 if number % 29 == 0 else 0)
        turn = {
            "message_id": f"m{number - (1 if number % 41 == 0 else 0)}",
            "user_id": f"u{user}",
            "session_id": f"s{number // 60}",
            "speaker": "Ana" if number % 2 else "Bo",
            "role": "user",
            "text": " ".join(chance.choices(words, k=12)) + (" yesterday?" if number % 7 == 0 else "."),
            "timestamp": 1_700_000_000_000 + minute * 60_000,
        }
        lines.append(json.dumps(turn))
        if number % 37 == 0:
            lines.append('{"message_id": ')
        if number % 53 == 0:
            end = {"type": "session_end", "user_id": f"u{user}", "session_id": f"s{number // 60}", "timestamp": 0}
            lines.append(json.dumps(end))
    path = tmp_path_factory.mktemp("source") / "dialogue.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("undisturbed") / "state"
    assert child(source, state, "none", 0).wait() == 0
    return state


def child(source: Path, state: Path, point: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(CHILD), str(source), str(state), point, str(count)])


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(
    source: Path, undisturbed: Path, tmp_path: Path, point: str, count: int, state_of: Callable[[Path], State]
) -> None:
    state = tmp_path / "state"
    assert child(source, state, point, count).wait() == -signal.SIGKILL, f"{point} was not reached {count} times"
    assert child(source, state, "none", 0).wait() == 0
    assert state_of(state) == state_of(undisturbed)


def test_killed_again_and_again_at_random(
    source: Path, undisturbed: Path, tmp_path: Path, state_of: Callable[[Path], State]
) -> None:
    """Each life is a little longer than the last, so that kills fall on every stage of the run."""
    chance = random.Random(11)
    state = tmp_path / "state"
    kills = 0
    for life in range(8):
        process = child(source, state, "none", 0)
        try:
            process.wait(timeout=0.25 + 0.15 * life + chance.random() * 0.3)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.wait()
    assert child(source, state, "none", 0).wait() == 0
    assert kills, "no process lived long enough to be killed"
    assert state_of(state) == state_of(undisturbed)


def test_acknowledged_means_stored(tmp_path: Path) -> None:
    """Case acknowledged-means-stored: killed right after the last acknowledgement, all 100 are found."""
    script = (
        "import os, signal, sys\n"
        "from raygam import Memory\n"
        "memory = Memory(sys.argv[1], embedder='stub', partitions=2)\n"
        "for n in range(100):\n"
        "    memory.add([{'message_id': f'm{n}', 'user_id': f'u{n % 7}', 'session_id': 's', 'speaker': 'Ana',\n"
        "                 'role': 'user', 'text': f'fact number{n}', 'timestamp': 1700000000000 + n * 1000}])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    state = tmp_path / "state"
    done = subprocess.run([sys.executable, "-c", script, str(state)], check=False)
    assert done.returncode == -signal.SIGKILL
    from raygam import Memory

    with Memory(state) as memory:
        for number in range(100):
            found = memory.search(f"u{number % 7}", f"number{number}", k=3)
            assert f"m{number}" in [one.event.message_id for one in found.memories]


def test_two_writers(tmp_path: Path) -> None:
    """The second writer is told who holds the directory, and the first is not disturbed."""
    from raygam import Memory

    source = tmp_path / "one.jsonl"
    source.write_text('{"message_id": "m"}\n')
    with Memory(tmp_path / "state", embedder="stub", partitions=1) as memory:
        started = time.monotonic()
        second = subprocess.run(
            [sys.executable, "-m", "raygam.pipeline.cli", "run", str(source), "--state", str(tmp_path / "state")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 2
        assert str(_own_pid()) in second.stderr
        assert time.monotonic() - started < 30
        memory.flush()


def _own_pid() -> int:
    import os

    return os.getpid()
