"""Makes a state with dead letters, and replays them in processes that end at every step in turn.

    python replay_child.py DIRECTORY

DIRECTORY gets `undisturbed`, and `killed-N` for each step N: a replay that ended there by SIGKILL, and one behind it.
Each is a fork of this process, so that loading is paid once. Prints how many steps there were.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raygam.adapters.ledger_writer import LedgerWriter
from raygam.memory.model import User
from raygam.memory.writes import SourcePosition
from raygam.pipeline import cli_letters, replay, runtime
from raygam.pipeline.config import read_settings

BASE: dict[str, Any] = {"embedder": "stub", "partitions": 2, "workers": 0, "worker_group": 4}


@dataclass(frozen=True)
class Part:
    partition: int
    records: list[tuple[int, bytes]]
    position: SourcePosition


def turn(number: int, user: str, minute: int, text: str) -> bytes:
    fields = {"message_id": f"m{number}", "user_id": user, "session_id": "s", "speaker": "Ana", "role": "user"}
    return json.dumps(fields | {"text": text, "timestamp": 1_700_000_000_000 + minute * 60_000}).encode()


def make(state: Path) -> None:
    """Letters of four users in both ledgers: too large by the limit, or in the other's partition; some stay bad.

    An end of each one's session lies between turns that come behind it: were it taken twice, it would close them too.
    """
    settings = read_settings(**BASE, max_text_bytes=40, kafka_updates_topic="updates", kafka_brokers="127.0.0.1:1")
    engine = runtime.open_engine(state, settings)
    found: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}
    homes = {f"u{at}": engine.intake.partition_of(User("default", f"u{at}")) for at in range(20)}
    users = [[user for user, home in homes.items() if home == at][:2] for at in range(2)]
    for at, user in enumerate(users[0] + users[1]):
        home = homes[user]
        end = json.dumps({"type": "session_end", "user_id": user, "session_id": "s", "timestamp": 0}).encode()
        for n, (where, raw) in enumerate(
            [
                (home, turn(1, user, 1, "fits")),
                (1 - home, turn(2, user, 2, "elsewhere")),
                (home, turn(3, user, 3, "too large by the limit " * 3)),
                (1 - home, end),
                (home, b'{"user_id": "%s"' % user.encode()),
                (1 - home, turn(4, user, 4, "behind the end")),
                (1 - home, turn(2, user, 2, "elsewhere")),
            ]
        ):
            found[where].append((at * 10 + n, raw))
    parts = [Part(at, held, SourcePosition(100, "dialogue")) for at, held in found.items()]
    engine.apply(engine.intake.part_batches("kafka:an-id", parts))
    engine.close()


def take_up(state: Path) -> None:
    settings = read_settings(**BASE, kafka_updates_topic="updates", kafka_brokers="127.0.0.1:1")
    cli_letters.replayed(state, settings, None)


def in_a_process(what: Callable[[], None]) -> int:
    """Run it in a fork; return the fork's exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            what()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying(state: Path, step: int) -> Callable[[], None]:
    """A replay that ends at a step: each transaction has one before it and one behind it."""

    def run() -> None:
        commit, left = LedgerWriter.commit, step

        def passed() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def armed(self: LedgerWriter, write: Any) -> None:
            passed()
            commit(self, write)
            passed()

        setattr(LedgerWriter, "commit", armed)  # noqa: B010 - a method of another class
        take_up(state)

    return run


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    replay._TOGETHER = 2
    made, undisturbed = directory / "made", directory / "undisturbed"
    assert in_a_process(lambda: make(made)) == 0
    shutil.copytree(made, undisturbed)
    assert in_a_process(lambda: take_up(undisturbed)) == 0
    step = 0
    while True:
        step += 1
        state = directory / f"killed-{step}"
        shutil.copytree(made, state)
        status = in_a_process(dying(state, step))
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        assert in_a_process(lambda: take_up(state)) == 0  # noqa: B023 - run at once
    sys.stdout.write(f"{step - 1}\n")
