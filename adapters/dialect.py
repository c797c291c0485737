"""What the stores' SQL differs in; everything else of a statement is written once.

`statements.py` and `queries.py` write each statement in SQLAlchemy Core and ask a
`Dialect` for the few forms that SQLite and PostgreSQL have of their own: how a list
of values comes in as one parameter, how rows go in by the hundred, and what keeps
a partition's rows apart from another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sqlalchemy import Column, ColumnElement, Executable, FromClause, Table
from sqlalchemy.engine import Dialect as CoreDialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine


@dataclass(frozen=True, slots=True)
class Listed:
    """A JSON list, given as one parameter, as a table.

    Attributes:
        table: to select from and join with.
        key: the entries' places, from 0.
        number: the entry itself, a whole number.
        text: the entry itself, a text.
        number_at: an entry's value at a place, where entries are lists.
        text_at: the same for a text.
        nested: the list at a place of an entry, as a table of its own.
    """

    table: FromClause
    key: ColumnElement[int]
    number: ColumnElement[int]
    text: ColumnElement[str]
    number_at: Callable[[int], ColumnElement[int]]
    text_at: Callable[[int], ColumnElement[str]]
    nested: Callable[[int], Listed]


Given = Callable[[str], Any]
"""Stands for a named value of a row that `Dialect.many` is run with."""


class Dialect(Protocol):
    """One kind of database.

    A statement for many rows is run by `Session.executemany`. The others take their
    parameters in the order of the names that `one` was given.
    """

    @property
    def owners_here(self) -> tuple[str, ...]:
        """Names of the parameters of `is_here`."""
        ...

    @property
    def partition_here(self) -> tuple[str, ...]:
        """Names of the parameters of `is_partition`."""
        ...

    def one(self, statement: Executable, *names: str) -> str:
        """Compile a statement that is run with one row of parameters, in the order of `names`.

        Raises:
            ValueError: the statement's parameters are not exactly `names` in this order.
        """
        ...

    def many(self, make: Callable[[Given], Executable], **kinds: TypeEngine[Any]) -> str:
        """Compile an update or delete that is run for many rows of values of these names and kinds."""
        ...

    def insert(self, table: Table) -> str:
        """An insert of many rows, their values in the order of the table's columns."""
        ...

    def upsert(self, table: Table, keys: tuple[Column[Any], ...], skip: tuple[str, ...]) -> str:
        """The same; a row whose `keys` are there changes the columns that are no key and not in `skip`."""
        ...

    def insert_new(self, table: Table, names: tuple[str, ...], keys: tuple[Column[Any], ...]) -> str:
        """An insert of many rows of the named columns; a row whose `keys` are there is left out."""
        ...

    def move_forward(self, table: Table, keys: tuple[Column[Any], ...], names: tuple[str, ...], by: str) -> str:
        """An insert of one row; where its keys are there, `names` change unless `by` would become less."""
        ...

    def listed(self, name: str) -> Listed:
        """The parameter `name`, a JSON list."""
        ...

    def is_here(self, owner: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
        """Conditions under which an owner number is of the partition at hand."""
        ...

    def is_partition(self, partition: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
        """Conditions under which a row is of the partition at hand."""
        ...

    def log_number(self, seq: ColumnElement[int], owner: ColumnElement[int]) -> ColumnElement[int]:
        """The vector log's number of an event's vector."""
        ...


def compiled(statement: Executable, dialect: CoreDialect, names: tuple[str, ...]) -> str:
    """Text of a statement whose parameters come in the order of `names`.

    Raises:
        ValueError: they are others, or in another order.
    """
    made = cast(SQLCompiler, cast(Any, statement).compile(dialect=dialect))
    order = tuple(made.positiontup or ())
    if names != order:
        raise ValueError(f"the statement takes {order}, not {names}: {made}")
    return str(made)
