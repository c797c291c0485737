"""The writer of one partition in its SQLite file."""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path

from ..memory.errors import Misconfigured
from . import rows
from .ledger_writer import LedgerWriter
from .place import Place
from .sqlite_connection import close_writing, open_for_writing, transaction, translated_errors
from .sqlite_statements import INSERT_EVENT_RELATIONS, RELATIONS_TOGETHER, STATEMENTS


class SqliteWriter(LedgerWriter):
    """A partition opened for writing; see `Writer` in `memory/ports.py` for what is promised.

    Args:
        path: the partition's file, its tables up to date.
        partition: its number.
        dimension: of the vectors.
        opened_by: who opens it, for people.
    """

    def __init__(self, path: Path, partition: int, dimension: int, opened_by: str = "") -> None:
        super().__init__(Place(str(path.parent), str(path), partition), STATEMENTS, dimension, opened_by)
        self._path = path
        with translated_errors(path):
            self._session = self._connection = open_for_writing(path)
        try:
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Checkpoint and close; twice is once."""
        if not self._closed:
            self._closed = True
            close_writing(self._connection)

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._path)

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._connection)

    def _refuse_other(self) -> None:
        other = self._connection.execute(STATEMENTS.READ_PARTITION).fetchone()
        if other is not None:
            raise Misconfigured(
                f"{self._path} holds partition {other[0]}, not {self._place.partition}; give the files their names back"
            )

    def _insert_event_relations(self, relations: list[rows.Row]) -> None:
        """Many to a statement: nearly every turn has one, and a run of a statement costs as much as its row."""
        whole = len(relations) - len(relations) % RELATIONS_TOGETHER
        for start in range(0, whole, RELATIONS_TOGETHER):
            values = tuple(chain.from_iterable(relations[start : start + RELATIONS_TOGETHER]))
            self._connection.execute(INSERT_EVENT_RELATIONS, values)
        super()._insert_event_relations(relations[whole:])
