"""What a ledger asks of a connection, whichever database it is to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from . import rows


class Results(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Session(Protocol):
    """The writer's connection. SQLite's own has this form."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Results:
        """Run a statement with one row of parameters."""
        ...

    def executemany(self, statement: str, many: Iterable[rows.Row], /) -> Results:
        """Run a statement for many rows; `rowcount` is how many it changed in all."""
        ...
