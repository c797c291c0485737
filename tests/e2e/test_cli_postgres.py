"""The command line over a database: the same commands, and what they say when it refuses or is gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from typer.testing import CliRunner

from benchmarks.postgres_server import GivenServer
from raygam import Memory, RaygamError
from raygam.pipeline import cli_commands, runtime
from raygam.pipeline.cli import exit_code

PASSWORD = "zinc/foil:hat"  # characters that a URL writes otherwise
IN_URL = "zinc%2Ffoil%3Ahat"
TURNS = 5


def raygam(*arguments: str | Path, code: int = 0, environment: dict[str, str] | None = None) -> tuple[str, str]:
    """Run a command in this process, which has loaded everything already; return what it printed and said."""
    done = CliRunner().invoke(cli_commands.app, list(map(str, arguments)), env=environment)
    said = done.stderr
    if isinstance(done.exception, RaygamError):
        said += str(done.exception)
    elif done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert (exit_code(done.exception) if isinstance(done.exception, RaygamError) else done.exit_code) == code, said
    assert_no_password(done.stdout + said)
    return done.stdout, said


def process(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """Run a command as a person does."""
    done = subprocess.run(
        [sys.executable, "-m", "raygam", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert_no_password(done.stdout + done.stderr)
    return done.stdout, done.stderr


def assert_no_password(text: str) -> None:
    for written in (PASSWORD, IN_URL, "zinc", "foil"):
        assert written not in text


def as_json(*arguments: str | Path, environment: dict[str, str] | None = None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(raygam(*arguments, "--json", environment=environment)[0])
    return document


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "a.jsonl"
    turn = {"user_id": "u1", "session_id": "s1", "speaker": "Ana", "role": "user"}
    lines = [
        json.dumps(
            turn | {"message_id": f"m{at}", "text": f"fact number{at}", "timestamp": 1_700_000_000_000 + at * 1000}
        )
        for at in range(TURNS)
    ]
    path.write_text("\n".join([*lines, "not json"]) + "\n")
    return path


@pytest.fixture(scope="module")
def url(postgres_server: GivenServer, source: Path) -> str:
    """A database that a run has filled."""
    made = postgres_server.database()
    report = json.loads(process("run", source, "--state", made, "--embedder", "stub", "--json")[0])
    assert (report["accepted"], report["dead_letters"], report["interrupted"]) == (TURNS, 1, False)
    assert report["totals"]["events"] == TURNS
    return made


def test_every_command_takes_a_database(url: str, source: Path) -> None:
    again = as_json("run", source, "--state", url)
    assert (again["accepted"], again["duplicates"], again["dead_letters"]) == (0, 0, 0)
    assert again["started_at"] == source.stat().st_size
    answer = as_json("search", "u1", "number3", "--state", url)
    assert answer["memories"][0]["message_id"] == "m3"
    assert as_json("show", "u1", "--state", url)["episodes"][0]["trigger"] == "flush"
    (letter,) = as_json("dead-letters", "--state", url)["dead_letters"]
    assert letter["reason"] == "not_json"
    shown = as_json("partitions", "--state", url)
    assert sum(one["events"] for one in shown["partitions"]) == TURNS
    assert {one["epoch"] for one in shown["partitions"]} == {2}
    assert shown["state"] == again["state"] == as_json("doctor", "--state", url)["state"]["database"]
    with Memory(url) as memory:  # and the library
        assert memory.search("u1", "number2").memories[0].event.message_id == "m2"


def test_a_password_is_found_where_it_is_and_shown_nowhere(
    secretive: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, at = secretive.url, f"{secretive.host}:{secretive.port}/{secretive.database}"
    with_password = f"postgresql://secretive:{IN_URL}@{at}"
    report = json.loads(process("run", source, "--state", with_password, "--embedder", "stub", "--json")[0])
    assert (report["accepted"], report["state"]) == (TURNS, name)
    described, opened_by = "SELECT described FROM raygam.holder", "SELECT opened_by FROM raygam.opening"
    with psycopg.connect(with_password) as connection:
        kept = str(connection.execute(described).fetchall() + connection.execute(opened_by).fetchall())
    assert "-m raygam run" in kept
    assert_no_password(kept)
    assert as_json("partitions", "--state", name, environment={"PGPASSWORD": PASSWORD})["state"] == name
    spelt = {"PGHOST": secretive.host, "PGPORT": str(secretive.port), "PGDATABASE": secretive.database}
    spelt |= {"PGUSER": "secretive", "PGPASSWORD": PASSWORD}
    assert as_json("partitions", "--state", "postgresql://", environment=spelt)["state"] == name
    stored = tmp_path / "pgpass"
    stored.write_text(f"{secretive.host}:{secretive.port}:*:secretive:zinc/foil\\:hat\n")
    stored.chmod(0o600)
    with monkeypatch.context() as patch:
        patch.setenv("PGPASSFILE", str(stored))
        assert as_json("partitions", "--state", name)["state"] == name
        for_actors = runtime.for_all_nodes(runtime.locate(name))
    store = runtime.open_store(for_actors)  # as elsewhere, where there is no such file
    assert store.facts.partitions == 8
    store.close()
    _, without = raygam("search", "u1", "x", "--state", name, code=2)
    _, wrong = process("search", "u1", "x", "--state", f"postgresql://secretive:guess@{at}", code=2)
    for said in (without, wrong):
        assert f"{name} does not let this user in" in said
        assert "PGPASSWORD or ~/.pgpass" in said


def test_what_is_not_there_says_what_to_do(postgres_server: GivenServer, source: Path) -> None:
    def at(**parts: str) -> str:
        given = conninfo.conninfo_to_dict(postgres_server.url) | parts
        host = str(given.get("host", "localhost"))
        return f"postgresql://{given['user']}@{host}:{given.get('port', 5432)}/{given['dbname']}"

    empty = postgres_server.database()
    _, said = raygam("search", "u1", "x", "--state", empty, code=2)
    assert "no state at postgresql://" in said
    assert "`raygam run SOURCE --state postgresql://" in said
    for command in (("run", source), ("search", "u1", "x"), ("partitions",)):
        _, said = raygam(*command, "--state", at(dbname="nowhere"), code=2)
        assert 'database "nowhere" does not exist' in said
        assert "createdb" in said
    with socket.socket() as taken:  # bound and not listening: a server that is down
        taken.bind(("127.0.0.1", 0))
        down = at(host="127.0.0.1", port=str(taken.getsockname()[1]))
        for asked in (["run", str(source), "--embedder", "stub"], ["search", "u1", "x"], ["show", "u1"], ["doctor"]):
            _, said = raygam(*asked, "--state", down, code=75)
            assert f"cannot reach PostgreSQL at {down}" in said
            assert "check that it runs" in said


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("mysql://anna:zinc%2Ffoil%3Ahat@h/x", "no state at an address that begins with mysql://"),
        ("postgres:/anna@h/x", "write postgresql://USER@HOST:PORT/DATABASE"),
        ("postgresql://anna:zinc/foil:hat@h/x", "characters such as @ : / in a password as %40 %3A %2F"),
    ],
)
def test_an_address_that_is_none_is_refused(state: str, says: str) -> None:
    assert says in raygam("show", "u1", "--state", state, code=2)[1]


def test_one_engine_writes_a_database(url: str, source: Path) -> None:
    with Memory(url):
        _, said = raygam("run", source, "--state", url, code=2)
        assert f"is being written by this process itself (pid {os.getpid()})" in said
        as_json("search", "u1", "number3", "--state", url)
