"""A state's rows and its server's sessions, as a person with psql reaches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
from psycopg import conninfo

from raygam.memory.model import Event, User
from raygam.memory.writes import DeadLetter, StateFacts, WriteSet

FACTS = StateFacts(partitions=2, partitioner="murmur2", embedder="stub", dimension=4, template=1)
ANNA, BEN = User("default", "anna"), User("default", "ben")


def turns(first: int, count: int = 1, user: User = ANNA, **more: Any) -> WriteSet:
    events = [
        Event(user, seq, f"m{seq}", "s", "Anna", "user", "text", 1000 * seq) for seq in range(first, first + count)
    ]
    return WriteSet(events=events, vectors=np.eye(4, dtype=np.float32)[[event.seq % 4 for event in events]], **more)


def ask(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """As a person with psql would, beside the product."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


def end_sessions(url: str, like: str) -> int:
    """End sessions as a restart of the server does; return how many."""
    ended = ask(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name LIKE %s AND datname = current_database()",
        like,
    )
    return len(ended)


def with_parts(url: str, **parts: str) -> str:
    return conninfo.make_conninfo(url, **parts)


class Pausing(list[DeadLetter]):
    """Dead letters that call back while the transaction is under way, near its end."""

    def __init__(self, callback: Callable[[], object]) -> None:
        super().__init__([DeadLetter("a", 1, "blank", "", b"")])
        self._callback = callback

    def __iter__(self) -> Iterator[DeadLetter]:
        self._callback()
        return super().__iter__()
