"""A real `raygam run` that kills itself with SIGKILL at a named point.

    python child.py SOURCE STATE POINT COUNT

STATE is a directory, or the URL of a PostgreSQL database.
The points are reached by wrapping what the run calls, so the product itself knows
nothing of them. COUNT says at which passage to die.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raygam.adapters import sqlite_connection, sqlite_writer
from raygam.adapters.ledger_writer import LedgerWriter
from raygam.adapters.postgres_session import PostgresSession
from raygam.memory.errors import RaygamError
from raygam.pipeline import cli_run, runtime
from raygam.pipeline.config import read_settings
from raygam.pipeline.shard import Shard

POINTS = ("before_commit", "in_ingest", "after_commit", "after_claim", "after_proposal", "in_apply", "after_apply")


def die() -> None:
    """End as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def counted(count: int) -> Callable[[], None]:
    """Return a function whose `count`-th call is the process' last."""
    left = count

    def passed() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    return passed


def wrap(
    owner: Any, name: str, *, before: Callable[[Any], None] | None = None, after: Callable[[Any], None] | None = None
) -> None:
    """Call `before` and `after` around a method with its first argument."""
    inner = getattr(owner, name)

    def outer(self: Any, argument: Any, *rest: Any) -> Any:
        if before is not None:
            before(argument)
        result = inner(self, argument, *rest)
        if after is not None:
            after(argument)
        return result

    setattr(owner, name, outer)


def arm(point: str, count: int) -> None:
    """Make the named point deadly."""
    passed = counted(count)
    if point == "before_commit":
        wrap(LedgerWriter, "commit", before=lambda write: passed() if write.events else None)
    elif point == "after_commit":
        wrap(LedgerWriter, "commit", after=lambda write: passed() if write.events else None)
    elif point == "after_claim":
        wrap(Shard, "claim", after=lambda limit: passed())
    elif point == "after_proposal":
        wrap(Shard, "submit", before=lambda proposals: passed() if proposals else None)
    elif point == "after_apply":
        wrap(Shard, "submit", after=lambda proposals: passed() if proposals else None)
    else:
        table = {"in_ingest": "vector_log", "in_apply": "topic"}[point]
        opened = sqlite_connection.open_for_writing

        def open_armed(path: Path) -> sqlite3.Connection:
            connection = opened(path)

            def trace(statement: str) -> None:
                if statement.lstrip().upper().startswith(f"INSERT INTO {table.upper()} "):
                    passed()

            connection.set_trace_callback(trace)
            return connection

        setattr(sqlite_writer, "open_for_writing", open_armed)  # noqa: B010 - the module does not export it
        wrap(
            *(PostgresSession, "executemany"),
            before=lambda statement: passed() if statement.startswith(f"COPY {table} ") else None,
        )


if __name__ == "__main__":
    source, state, point, count = sys.argv[1:]
    if point != "none":
        arm(point, int(count))
    told = {"kafka_updates_topic": "updates", "kafka_brokers": "127.0.0.1:1"}  # nobody sends: all is left to compare
    settings = read_settings(
        embedder="stub", partitions=2, chunk_bytes=2048, worker_group=4, max_buffer_tokens=200, **told
    )
    try:
        cli_run.run(Path(source), runtime.locate(state), settings, quiet=True)
    except RaygamError as error:
        sys.exit(str(error))
