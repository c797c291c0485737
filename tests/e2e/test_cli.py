"""The command line as a person and a machine use it: real processes, real files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raygam import Memory, Rejected

RAYGAM = [sys.executable, "-m", "raygam"]
WARM = Path(__file__).with_name("warm_commands.py")


class Warm:
    """Commands in processes of their own, forked from one that has loaded what they need."""

    def __init__(self, folder: Path) -> None:
        self._out, self._err = folder / "out", folder / "err"
        self._process = subprocess.Popen(
            [sys.executable, str(WARM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        command = {
            "argv": arguments,
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
            "out": str(self._out),
            "err": str(self._err),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return code, self._out.read_text(), self._err.read_text()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


_warm: list[Warm] = []


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    _warm.append(Warm(tmp_path_factory.mktemp("warm")))
    yield
    _warm.pop().close()


def raygam(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    ended, out, err = _warm[0].run(list(map(str, arguments)))
    assert ended == code, err
    assert "Traceback" not in err
    return out, err


def test_a_cold_process_does_the_same(tmp_path: Path) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    source.write_text(line(0))
    run(source, state)
    arguments = ["search", "u1", "number0", "--state", str(state), "--json"]
    cold = subprocess.run([*RAYGAM, *arguments], capture_output=True, text=True, check=True, timeout=120)
    assert raygam(*arguments) == (cold.stdout, cold.stderr)
    wrong = subprocess.run([*RAYGAM, "serch"], capture_output=True, text=True, check=False, timeout=120)
    assert raygam("serch", code=wrong.returncode) == (wrong.stdout, wrong.stderr)
    assert wrong.returncode == 2


def as_json(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    document = json.loads(raygam(*arguments, "--json", code=code)[0])
    assert isinstance(document, dict)
    return document


def run(source: Path, state: Path) -> dict[str, Any]:
    return as_json("run", source, "--state", state, "--embedder", "stub")


def line(number: int, text: str = "fact", **more: Any) -> str:
    turn = {
        "message_id": f"m{number}",
        "user_id": "u1",
        "session_id": "s1",
        "speaker": "Ana",
        "role": "user",
        "text": f"{text} number{number}",
        "timestamp": 1_700_000_000_000 + number * 1000,
    }
    return json.dumps(turn | more) + "\n"


def found(state: Path, query: str, user: str = "u1") -> list[str]:
    answer = as_json("search", user, query, "--state", state, "-k", "50")
    return [memory["message_id"] for memory in answer["memories"]]


def test_run_search_show(tmp_path: Path) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    source.write_text("".join(line(at) for at in range(5)))
    report = run(source, state)
    assert (report["accepted"], report["dead_letters"], report["interrupted"]) == (5, 0, False)
    assert report["users"][0] | {"relations": 0} == {
        **{"tenant": "default", "user_id": "u1", "turns": 5, "episodes": 1, "topics": 1, "relations": 0}
    }
    answer = as_json("search", "u1", "number3", "--state", state)
    assert answer["memories"][0]["message_id"] == "m3"
    assert answer["memories"][0]["path"]["topic"]
    assert answer["known_user"]
    shown = as_json("show", "u1", "--state", state)
    assert shown["episodes"][0]["trigger"] == "flush"
    assert "number3" in raygam("search", "u1", "number3", "--state", state, "--explain")[0]
    assert "episodes" in raygam("show", "u1", "--state", state)[0]
    assert "stub" in json.dumps(as_json("doctor", "--state", state))


def test_the_same_file_an_appended_file_a_second_file_and_the_library(tmp_path: Path) -> None:
    first, second, state = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "state"
    first.write_text("".join(line(at) for at in range(3)))
    assert run(first, state)["accepted"] == 3
    again = run(first, state)
    assert (again["accepted"], again["duplicates"], again["started_at"]) == (0, 0, first.stat().st_size)
    with first.open("a") as file:
        file.write(line(3) + line(4))
    appended = run(first, state)
    assert (appended["accepted"], appended["duplicates"]) == (2, 0)
    with Memory(state) as memory:  # the API has a position of its own
        memory.add([json.loads(line(5)), json.loads(line(2))])
    second.write_text(line(4) + line(6))
    other = run(second, state)
    assert (other["accepted"], other["duplicates"], other["started_at"]) == (1, 1, 0)
    with first.open("a") as file:
        file.write(line(7))
    assert run(first, state)["accepted"] == 1
    assert sorted(found(state, "fact")) == [f"m{at}" for at in range(8)]


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    source.write_text(line(1))
    run(source, state)
    source.write_text(line(2) + line(3))
    _, error = raygam("run", source, "--state", state, code=2)
    assert "has changed since it was read" in error


def test_bad_input_becomes_dead_letters(tmp_path: Path) -> None:
    """Case empty-and-huge and the rest: nothing stops the run, all is counted and listed."""
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    bad = {
        "not json\n": "not_json",
        "\n": "blank",
        '{"message_id": "m"}\n': "missing_field",
        line(100, text="").replace(" number100", ""): "blank",
        line(101).replace("fact number101", "   "): "blank",
        line(102, text="x" * 2_000_000): "too_large",
        line(103).replace("fact", "\\u0000"): "invalid_text",
        line(104).replace("fact", "\\ud800"): "invalid_text",
        line(105, timestamp="soon"): "bad_time",
        line(106, speaker=7): "wrong_type",
        line(107, user_id=""): "bad_id",
    }
    emoji = line(1, text="🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂")
    source.write_text(emoji + "".join(bad) + line(2))
    report = run(source, state)
    assert (report["accepted"], report["dead_letters"]) == (2, len(bad))
    listed = as_json("dead-letters", "--state", state)
    assert listed["total"] == len(bad)
    letters = sorted(listed["dead_letters"], key=lambda letter: int(letter["offset"]))
    assert [letter["reason"] for letter in letters] == list(bad.values())
    assert letters[0]["text"] == "not json"
    assert letters[0]["source_name"] == str(source)
    (too_large,) = (letter for letter in letters if letter["reason"] == "too_large")
    assert "32768" in too_large["detail"]
    assert found(state, "🙂 number1")[0] == "m1"
    assert run(source, state)["totals"]["dead_letters"] == len(bad)
    assert "11 dead letters" in raygam("dead-letters", "--state", state)[0]


def test_an_unfinished_last_line_waits(tmp_path: Path) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    whole = line(2)
    source.write_text(line(1) + whole[:40])
    report = run(source, state)
    assert (report["accepted"], report["dead_letters"]) == (1, 0)
    assert report["incomplete_line"] == len(line(1))
    source.write_text(line(1) + whole.rstrip("\n"))
    assert run(source, state)["accepted"] == 1
    source.write_text(line(1) + whole + line(3))
    assert (run(source, state)["accepted"], run(source, state)["dead_letters"]) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "missing.jsonl", "--state", "s"], 2, "no file missing.jsonl"),
        (["run", ".", "--state", "s"], 2, "is a directory"),
        (["search", "u", "q", "--state", "nowhere"], 2, "no state at nowhere"),
        (["show", "u", "--state", "nowhere"], 2, "no state at nowhere"),
        (["dead-letters", "--state", "nowhere"], 2, "no state at nowhere"),
        (["tasks", "list", "--state", "nowhere"], 2, "no state at nowhere"),
        (["tasks", "retry", "--state", "nowhere"], 2, "--all"),
        (["search", "u", "q"], 2, "--state"),
        (["run", "x.jsonl", "--state", "s", "--flag"], 2, "--flag"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_wrong_use_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _, error = raygam(*arguments, code=code)
    assert says in error
    assert not (tmp_path / "nowhere").exists()


def test_wrong_values_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    source.write_text(line(1))
    run(source, state)
    assert "gam, flat" in raygam("search", "u1", "q", "--state", state, "--mode", "deep", code=2)[1]
    assert "blank" in raygam("search", "u1", " ", "--state", state, code=2)[1]
    assert "ISO 8601" in raygam("search", "u1", "q", "--state", state, "--as-of", "soon", code=2)[1]
    assert "nothing is known of user nobody" in raygam("show", "nobody", "--state", state, code=2)[1]
    _, error = raygam("search", "nobody", "q", "--state", state)
    assert "nothing is known of user nobody" in error
    monkeypatch.setenv("RAYGAM_PARTITIONS", "3")
    assert "partitions" in raygam("run", source, "--state", state, code=2)[1]
    monkeypatch.setenv("RAYGAM_PARTITIONS", "many")
    assert "partitions" in raygam("doctor", code=2)[1]


def test_an_empty_file_is_a_run_of_nothing(tmp_path: Path) -> None:
    source = tmp_path / "empty.jsonl"
    source.write_text("")
    assert run(source, tmp_path / "state")["accepted"] == 0
    source.write_text(line(1))
    assert run(source, tmp_path / "state")["accepted"] == 1


def test_ctrl_c_stops_at_an_edge_and_the_run_goes_on(tmp_path: Path) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    total = 60_000
    source.write_text("".join(line(at, user_id=f"u{at % 50}") for at in range(total)))
    process = subprocess.Popen(
        [*RAYGAM, "run", str(source), "--state", str(state), "--embedder", "stub", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (state / "state.db").exists():  # made once the engine is open and the signal is caught
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    stopped = json.loads(output)
    assert stopped["interrupted"]
    finished = run(source, state)
    assert stopped["accepted"] + finished["accepted"] == total
    assert finished["duplicates"] == 0


@pytest.mark.parametrize("module", ["typer", "numpy", "sqlalchemy", "rich.table"])
def test_ctrl_c_while_modules_are_loaded_is_one_line(tmp_path: Path, module: str) -> None:
    """The signal comes from inside the import, where libraries catch what they please."""
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    source.write_text(line(1))
    script = f"""
import os, signal, sys
from raygam.pipeline.cli import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError(name) from None

assert {module!r} not in sys.modules, "the entry point is light"
sys.meta_path.insert(0, Interrupting())
sys.argv = ["raygam", "run", {str(source)!r}, "--state", {str(state)!r}, "--embedder", "stub"]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "raygam: stopped\n")
    assert not state.exists()


@pytest.mark.parametrize("after_ms", [0, 300, 1000])
def test_ctrl_c_at_any_moment_leaves_no_traceback(tmp_path: Path, after_ms: int) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    source.write_text(line(1))
    run(source, state)
    script = """
import sys
from raygam.pipeline.cli import main

class Telling:
    def find_spec(self, name, path=None, target=None):
        if name == "raygam.pipeline.cli_commands":
            print("entered", flush=True)

sys.meta_path.insert(0, Telling())
main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, "search", "u1", "fact", "--state", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "entered\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_ms / 1000)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    # Once Python takes itself down, the signal ends the process as it ends any other.
    assert (process.returncode, error) in ((130, "raygam: stopped\n"), (0, ""), (-signal.SIGINT, ""))


def test_reading_beside_a_writer(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Memory(state, embedder="stub", partitions=2) as memory:
        memory.add([json.loads(line(1))])
        assert found(state, "number1") == ["m1"]
        memory.add([json.loads(line(2))])
        assert sorted(found(state, "fact")) == ["m1", "m2"]


def test_tasks_are_listed_parked_and_retried(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Memory(state, embedder="stub", partitions=1, workers=0) as memory:
        memory.add([json.loads(line(1, user_id="[/b]"))])
        memory._engine.flush()
        (task,) = as_json("tasks", "list", "--state", state)["tasks"]  # beside a writer
        assert "where no engine runs" in raygam("tasks", "park", task["id"], "--state", state, code=2)[1]
    assert (task["status"], task["trigger"], task["turns"], task["reason"]) == ("open", "flush", 1, None)
    parked = as_json("tasks", "park", task["id"][:6], "--state", state, "--reason", "looked [into]")
    assert parked["parked"] == [task["id"]]
    shown = raygam("tasks", "list", "--state", state, "--status", "parked")[0]
    assert "1 tasks" in shown
    assert "[/b]" in shown
    assert "1 tasks are open again" in raygam("tasks", "retry", "--all", "--state", state)[0]
    assert as_json("tasks", "list", "--state", state, "--status", "open")["total"] == 1


def test_a_bad_turn_refuses_the_whole_call(tmp_path: Path) -> None:
    with Memory(tmp_path / "state", embedder="stub", partitions=1) as memory:
        with pytest.raises(Rejected, match="turn 1: blank"):
            memory.add([json.loads(line(1)), json.loads(line(2)) | {"text": " "}])
        assert memory.search("u1", "fact").memories == ()


def test_text_that_looks_like_markup_or_commands_a_terminal_is_shown_as_text(tmp_path: Path) -> None:
    source, state = tmp_path / "a.jsonl", tmp_path / "state"
    source.write_text(line(1, "clear \x1b[2J screen", user_id="[/red]", session_id="[/b]"))
    run(source, state)
    assert "nothing is known of user [/x]" in raygam("search", "[/x]", "screen", "--state", state)[1]
    shown = raygam("search", "[/red]", "screen", "--state", state)[0]
    assert "\x1b[2J" not in shown
    assert "␛[2J" in shown
    assert "\x1b[2J" not in raygam("show", "[/red]", "--state", state)[0]


def test_an_error_names_its_path_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / ("a" * 100) / "state"
    assert str(missing) in raygam("show", "u1", "--state", missing, code=2)[1]
