"""The state in a database: SIGKILL of the engine at named points, and of the server at random ones."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.postgres_server import GivenServer, PostgresServer

CHILD = Path(__file__).with_name("child.py")
POINTS = ("before_commit", "in_ingest", "after_commit", "after_claim", "after_proposal", "in_apply", "after_apply")
State = dict[str, Any]
StateOf = Callable[[Path | str], State]


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 240 turns of five users over two partitions, with late turns, duplicates and bad lines."""
    chance = random.Random(5)
    words = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()
    lines: list[str] = []
    for number in range(240):
        turn = {
            "message_id": f"m{number - (1 if number % 41 == 0 else 0)}",
            "user_id": f"u{chance.randrange(5)}",
            "session_id": f"s{number // 60}",
            "speaker": "Ana" if number % 2 else "Bo",
            "role": "user",
            "text": " ".join(chance.choices(words, k=12)) + ".",
            "timestamp": 1_700_000_000_000 + (number * 4 - (50 if number % 29 == 0 else 0)) * 60_000,
        }
        lines.append(json.dumps(turn))
        if number % 37 == 0:
            lines.append('{"message_id": ')
    path = tmp_path_factory.mktemp("source") / "dialogue.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory, state_of: StateOf) -> State:
    """What a run over SQLite ends with: a database must hold the same."""
    state = tmp_path_factory.mktemp("undisturbed") / "state"
    assert child(source, str(state)).wait() == 0
    return state_of(state)


def child(source: Path, state: str, point: str = "none", count: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(CHILD), str(source), state, point, str(count)])


def stored(url: str) -> int:
    """How many numbers the partitions have given to turns and commands."""
    with contextlib.suppress(psycopg.Error), psycopg.connect(url) as connection:
        found = connection.execute("SELECT coalesce(sum(next_seq - 1), 0) FROM raygam.partition").fetchone()
        return int(found[0]) if found else 0
    return 0


@pytest.mark.parametrize("point", POINTS)
def test_an_engine_killed_at_a_named_point(
    source: Path, undisturbed: State, postgres_url: str, point: str, state_of: StateOf
) -> None:
    assert child(source, postgres_url, point, 2).wait() == -signal.SIGKILL, f"{point} was not reached"
    assert child(source, postgres_url).wait() == 0
    assert state_of(postgres_url) == undisturbed


def test_a_server_killed_again_and_again(
    source: Path, undisturbed: State, postgres_server: GivenServer, postgres_url: str, state_of: StateOf
) -> None:
    """Each time some turns further, so that kills fall on every stage; the run ends or goes on, and is begun again."""
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("the server is somebody else's, and is not killed")
    chance = random.Random(13)
    kills = 0
    for _ in range(5):
        goal = stored(postgres_url) + chance.randrange(20, 60)
        process = child(source, postgres_url)
        while process.poll() is None and stored(postgres_url) < goal:
            pass
        if process.poll() is None:
            postgres_server.kill()
            postgres_server.start()
            kills += 1
        process.wait()
    assert child(source, postgres_url).wait() == 0
    assert kills > 2, "the runs were over before the server went"
    assert state_of(postgres_url) == undisturbed
