"""The ledger's SQL as PostgreSQL has it: one database holds all partitions.

A partition's rows are kept apart by the range that its `owner` numbers come from
(`schema.owner_base`). Lists come in as one JSON text (`jsonb_array_elements`); so do
the rows of an upsert, an update or a delete of many. Plain inserts of many are COPY
in binary form. Arrays (`unnest`) would do for both, but the driver spends three
times the processor time on them (see `docs/design/ledger.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import cast as typed

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Executable,
    Integer,
    LargeBinary,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.engine import Dialect as CoreDialect
from sqlalchemy.types import TypeEngine

from .dialect import Given, Listed, compiled
from .schema import EVENT_STEP, LOG_BITS, OWNER_BITS

_CORE: CoreDialect = typed(Any, PGDialect_psycopg2)(
    paramstyle="format"
)  # SQL alone: nothing of that driver is imported
_COPIED_AS: dict[type[TypeEngine[Any]], str] = {
    BigInteger: "int8",
    Integer: "int4",
    Double: "float8",
    Text: "text",
    LargeBinary: "bytea",
}


class CopyStatement(str):
    """A COPY of rows in binary form.

    Attributes:
        types: of the columns, as PostgreSQL names them.
    """

    __slots__ = ("types",)
    types: tuple[str, ...]


class PostgresDialect:
    """See `Dialect`."""

    owners_here: tuple[str, ...] = ("first_owner", "last_owner")
    partition_here: tuple[str, ...] = ("at_partition",)

    def one(self, statement: Executable, *names: str) -> str:
        return compiled(statement, _CORE, names)

    def many(self, make: Callable[[Given], Executable], **kinds: TypeEngine[Any]) -> str:
        given = _rows(list(kinds.items()))
        statement: Any = make(lambda name: given.c[name])
        return self.one(statement, "rows")

    def insert(self, table: Table) -> str:
        columns = ", ".join(column.name for column in table.columns)
        statement = CopyStatement(f"COPY {table.name} ({columns}) FROM STDIN (FORMAT BINARY)")
        statement.types = tuple(_COPIED_AS[type(column.type)] for column in table.columns)
        return statement

    def upsert(self, table: Table, keys: tuple[Column[Any], ...], skip: tuple[str, ...]) -> str:
        statement = _insert_rows(table, tuple(column.name for column in table.columns))
        kept = {*(key.name for key in keys), *skip}
        changed = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in kept}
        return self.one(statement.on_conflict_do_update(index_elements=list(keys), set_=changed), "rows")

    def insert_new(self, table: Table, names: tuple[str, ...], keys: tuple[Column[Any], ...]) -> str:
        statement = _insert_rows(table, names)
        return self.one(statement.on_conflict_do_nothing(index_elements=list(keys)), "rows")

    def move_forward(self, table: Table, keys: tuple[Column[Any], ...], names: tuple[str, ...], by: str) -> str:
        statement = insert(table)
        moved = statement.on_conflict_do_update(
            index_elements=list(keys),
            set_={name: statement.excluded[name] for name in names},
            where=statement.excluded[by] >= table.c[by],
        )
        return self.one(moved, *(column.name for column in table.columns))

    def listed(self, name: str) -> Listed:
        entries = func.jsonb_array_elements(cast(bindparam(name, type_=Text()), JSONB))
        return _as_table(entries.table_valued("value", with_ordinality="key", name=name).render_derived())

    def is_here(self, owner: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
        return (owner.between(bindparam("first_owner"), bindparam("last_owner")),)

    def is_partition(self, partition: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
        return (partition == bindparam("at_partition"),)

    def log_number(self, seq: ColumnElement[int], owner: ColumnElement[int]) -> ColumnElement[int]:
        step, owner_bits, log_bits = (literal_column(str(each), BigInteger) for each in _NUMBERS)
        partition = owner.bitwise_rshift(owner_bits)
        return seq * step + partition.bitwise_lshift(log_bits)


_NUMBERS = (EVENT_STEP, OWNER_BITS, LOG_BITS)


def _as_table(table: Any) -> Listed:
    value = table.c.value

    def text_at(place: int) -> ColumnElement[str]:
        return _at(value, place)

    def number_at(place: int) -> ColumnElement[int]:
        return cast(_at(value, place), BigInteger)

    def nested(place: int) -> Listed:
        inner = func.jsonb_array_elements(value.op("->")(literal_column(str(place))))
        return _as_table(inner.table_valued("value", with_ordinality="key", name="named").render_derived().lateral())

    whole: Any = value.op("#>>")(literal_column("'{}'"))  # the entry itself, as text
    key = table.c.key - literal_column("1", BigInteger)
    return Listed(table, key, cast(whole, BigInteger), whole, number_at, text_at, nested)


def _at(value: Any, place: int) -> ColumnElement[str]:
    found: ColumnElement[str] = value.op("->>", return_type=Text())(literal_column(str(place)))
    return found


def _rows(kinds: list[tuple[str, TypeEngine[Any]]]) -> Any:
    """The parameter `rows`, a JSON list of lists, as a table with these columns."""
    listed = func.jsonb_array_elements(cast(bindparam("rows", type_=Text()), JSONB))
    entries = listed.table_valued("value", name="entry").render_derived()
    columns = []
    for place, (name, kind) in enumerate(kinds):
        value: ColumnElement[Any] = _at(entries.c.value, place)
        if isinstance(kind, LargeBinary):
            value = func.decode(value, literal_column("'base64'"))
        elif not isinstance(kind, Text):
            value = cast(value, kind)
        columns.append(value.label(name))
    return select(*columns).select_from(entries).subquery("given")


def _insert_rows(table: Table, names: tuple[str, ...]) -> Any:
    given = _rows([(name, table.c[name].type) for name in names])
    return insert(table).from_select(list(names), select(*(given.c[name] for name in names)))


POSTGRES = PostgresDialect()
