"""SIGKILL at every step of a replay of dead letters: the next one ends in the state of an undisturbed one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raygam.adapters.sqlite_store import SqliteStore
from raygam.memory.writes import StoredLetter

CHILD = Path(__file__).with_name("replay_child.py")


def letters(state: Path) -> list[list[StoredLetter]]:
    with SqliteStore.open_read_only(state) as store:
        return [list(store.reader(at).letters()) for at in range(store.facts.partitions)]


def test_killed_at_every_step(tmp_path: Path, state_of: Callable[[Path], dict[str, Any]]) -> None:
    done = subprocess.run([sys.executable, str(CHILD), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert steps > 30
    made, undisturbed = state_of(tmp_path / "made"), state_of(tmp_path / "undisturbed")
    assert undisturbed["dead_letters"] == made["dead_letters"]
    topics = {name: offset for name, offset in undisturbed["positions"].items() if "replay:" not in name}
    assert topics == made["positions"], "a replay moved another source"
    assert len(undisturbed["positions"]) == len(topics) + 4, "each owner's partition has both ledgers' runs"
    for user in undisturbed["users"].values():
        assert sorted(user["events"]) == ["m1", "m2", "m3", "m4"]
        # m4 came behind the end of its session, and is live: an end that was taken twice would have closed it.
        live = [event for event, fields in user["events"].items() if fields["episode_id"] is None]
        assert "m4" in live
        assert not {"m1", "m2"} & set(live)
    marks = letters(tmp_path / "undisturbed")
    assert {(one.letter.reason, one.replayed) for held in marks for one in held} == {
        *(("wrong_partition", True), ("too_large", True), ("not_json", False)),
    }
    for step in range(1, steps + 1):
        state = tmp_path / f"killed-{step}"
        assert state_of(state) == undisturbed, f"killed at step {step}"
        assert letters(state) == marks, f"killed at step {step}"
