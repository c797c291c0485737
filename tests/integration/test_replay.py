"""Dead letters that are good by now go to their owners, once; the rest stays and says why."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raygam import Memory
from raygam.memory.errors import Misconfigured, StateLocked
from raygam.memory.writes import ReplayRun
from raygam.pipeline import cli_letters, cli_run, runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.replay import replay, source_of

State = dict[str, Any]
StateOf = Callable[[Path], State]
BINARY = b'{"text": "\xff\xfe"}'


def settings(**given: Any) -> Settings:
    return read_settings(**{"embedder": "stub", "partitions": 2, "workers": 0} | given)


def turn(number: int, user: str, text: str) -> str:
    fields = {"message_id": f"m{number}", "user_id": user, "session_id": "s", "speaker": "Ana", "role": "user"}
    return json.dumps(fields | {"text": text, "timestamp": 1_700_000_000_000 + number * 1000})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Ten turns of five users, of whom the odd ones' texts are too large; a line of no JSON, and one of no text."""
    lines = [turn(at, f"u{at % 5}", "short" if at % 2 == 0 else f"far too long a text {at}") for at in range(10)]
    source = tmp_path / "a.jsonl"
    source.write_bytes("\n".join([*lines, "no json"]).encode() + b"\n" + BINARY + b"\n")
    report = cli_run.run(source, tmp_path / "state", settings(max_text_bytes=10), quiet=True)
    assert (report["accepted"], report["dead_letters"]) == (5, 7)
    return tmp_path / "state"


def listed(state: Path) -> list[dict[str, Any]]:
    return list(cli_letters.listed(state, 100)["dead_letters"])


def names(document: State) -> set[str]:
    return {name for user in document["users"].values() for name in user["events"]}


def test_a_raised_limit_lets_letters_in_and_nothing_else_moves(state: Path, state_of: StateOf) -> None:
    before = state_of(state)
    report = cli_letters.replayed(state, settings(), None)
    assert (report["replayed"], report["accepted"], report["finished_before"]) == (5, 5, 0)
    assert report["still_bad"] == {"not_json": 1, "invalid_text": 1}
    after = state_of(state)
    assert names(after) == {f"m{at}" for at in range(10)}
    assert after["dead_letters"] == before["dead_letters"]
    moved = {name: offset for name, offset in after["positions"].items() if before["positions"].get(name) != offset}
    assert moved
    assert all(" replay:" in name for name in moved)
    assert {(one["reason"], one["replay"], one["replayed"]) for one in listed(state)} == {
        *(("too_large", 1, True), ("not_json", None, False), ("invalid_text", None, False)),
    }
    again = cli_letters.replayed(state, settings(), None)
    assert (again["replayed"], again["still_bad"]) == (0, report["still_bad"])
    assert state_of(state) == after


def test_a_reason_chooses(state: Path, state_of: StateOf) -> None:
    assert cli_letters.replayed(state, settings(), "blank")["replayed"] == 0
    assert cli_letters.replayed(state, settings(max_text_bytes=10), None)["still_bad"] == {
        **{"too_large": 5, "not_json": 1, "invalid_text": 1}
    }
    assert cli_letters.replayed(state, settings(), "too_large") | {"state": ""} == {
        **{"replayed": 5, "finished_before": 0, "accepted": 5, "duplicates": 0, "still_bad": {}, "state": ""}
    }
    with pytest.raises(Misconfigured, match="no letter is put aside for 'large'; the reasons are not_json"):
        cli_letters.replayed(state, settings(), "large")


def test_a_turn_that_came_otherwise_meanwhile_is_known(state: Path) -> None:
    with Memory(state) as memory:
        memory.add([json.loads(turn(1, "u1", "it came by another way"))])
    report = cli_letters.replayed(state, settings(), None)
    assert (report["replayed"], report["accepted"], report["duplicates"]) == (5, 4, 1)


def test_what_was_taken_up_goes_to_its_end_whatever_the_limits_are_by_then(state: Path) -> None:
    engine = runtime.open_engine(state, settings())
    for at, reader in enumerate(engine.readers):
        numbers = [one.number for one in reader.letters() if one.letter.reason == "too_large"]
        engine.shards[at].begin_replay(ReplayRun(7, tuple(numbers)))
    engine.close()
    assert {one["replay"] for one in listed(state) if not one["replayed"]} == {None, 7}
    report = cli_letters.replayed(state, settings(max_text_bytes=10), "blank")
    assert (report["replayed"], report["finished_before"], report["accepted"]) == (5, 5, 5)
    assert {one["replayed"] for one in listed(state) if one["reason"] == "too_large"} == {True}
    engine = runtime.open_engine(state, settings())
    try:
        assert any(source_of(0, 7) in shard.positions() for shard in engine.shards)
    finally:
        engine.close()


def test_what_was_taken_up_and_cannot_be_read_is_told(state: Path) -> None:
    engine = runtime.open_engine(state, settings())
    try:
        at, number = next(
            (at, one.number)
            for at, reader in enumerate(engine.readers)
            for one in reader.letters()
            if one.letter.reason == "not_json"
        )
        engine.shards[at].begin_replay(ReplayRun(1, (number,)))
        why = rf"letter {number} of partition {at}.*cannot be read by this raygam.*replay with the raygam"
        with pytest.raises(Misconfigured, match=why):
            replay(engine, settings().record_limits)
    finally:
        engine.close()


def test_a_state_that_an_engine_has_is_left_alone(state: Path, tmp_path: Path) -> None:
    with Memory(state), pytest.raises(StateLocked, match=r"this process itself.*where no engine runs: end it.*replay"):
        cli_letters.replayed(state, settings(), None)
    nowhere = tmp_path / "nowhere"
    with pytest.raises(Misconfigured, match="no state at"):
        cli_letters.replayed(nowhere, settings(), None)
    assert not nowhere.exists()


def test_letters_are_written_out_mended_and_sent_again(state: Path, tmp_path: Path, state_of: StateOf) -> None:
    file = tmp_path / "letters.jsonl"
    assert cli_letters.exported(file, state) == {"exported": 7, "file": str(file)}
    written = [json.loads(line) for line in file.read_text().splitlines()]
    (binary,) = (one for one in written if "base64" in one)
    assert base64.b64decode(binary["base64"]) == BINARY
    assert {one["source_name"] for one in written} == {str(tmp_path / "a.jsonl")}
    assert {(one["partition"], one["offset"], one["reason"]) for one in written} == {
        (one["partition"], one["offset"], one["reason"]) for one in listed(state)
    }
    mended = tmp_path / "mended.jsonl"
    mended.write_text(
        "".join(
            one["text"].replace("far too long a text", "now") + "\n" for one in written if one["reason"] == "too_large"
        )
    )
    assert cli_run.run(mended, state, settings(max_text_bytes=10), quiet=True)["accepted"] == 5
    assert names(state_of(state)) == {f"m{at}" for at in range(10)}
    with pytest.raises(Misconfigured, match="is there already, and may have been mended"):
        cli_letters.exported(file, state)
    with pytest.raises(Misconfigured, match="cannot write"):
        cli_letters.exported(tmp_path / "no" / "folder", state)


def test_the_commands(state: Path, tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        done = CliRunner().invoke(cli_letters.letters, [*arguments, "--state", str(state)])
        assert done.exit_code == 0, done.output
        return done.output

    assert "7 dead letters" in said()
    assert json.loads(said("--json", "--limit", "2"))["total"] == 7
    assert "7 dead letters are in" in said("export", str(tmp_path / "out.jsonl"))
    told = said("replay")
    assert "5 dead letters were taken up: 5 new turns, 0 known" in told
    assert json.loads(said("replay", "--json"))["still_bad"] == {"not_json": 1, "invalid_text": 1}
    done = CliRunner().invoke(cli_letters.letters, ["--state", str(state), "replay"])
    assert done.exit_code == 2
