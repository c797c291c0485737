"""The ledger's SQL as SQLite has it: one file is one partition, lists come in by `json_each`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Integer,
    Table,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
)
from sqlalchemy import insert as plain_insert
from sqlalchemy.dialects import sqlite as sqlite_dialects
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import TypeEngine

from .dialect import Given, Listed, compiled
from .schema import EVENT_STEP

_CORE = sqlite_dialects.dialect(paramstyle="qmark")


class SqliteDialect:
    """See `Dialect`. A statement for many rows is one for a row, run by the driver's `executemany`."""

    owners_here: tuple[str, ...] = ()
    partition_here: tuple[str, ...] = ()

    def one(self, statement: Executable, *names: str) -> str:
        return compiled(statement, _CORE, names)

    def many(self, make: Callable[[Given], Executable], **kinds: TypeEngine[Any]) -> str:
        return self.one(make(bindparam), *kinds)

    def insert(self, table: Table) -> str:
        return self.one(plain_insert(table), *(column.name for column in table.columns))

    def insert_together(self, table: Table, count: int) -> str:
        """An insert of `count` rows at once; its parameters are the rows' values one after the other."""
        names = [[f"{column.name}_{at}" for column in table.columns] for at in range(count)]
        made: list[dict[str, Any]] = [
            {column.name: bindparam(name) for column, name in zip(table.columns, row, strict=True)} for row in names
        ]
        return self.one(plain_insert(table).values(made), *(name for row in names for name in row))

    def upsert(self, table: Table, keys: tuple[Column[Any], ...], skip: tuple[str, ...]) -> str:
        statement = insert(table)
        kept = {*(key.name for key in keys), *skip}
        changed = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in kept}
        return self.one(
            statement.on_conflict_do_update(index_elements=list(keys), set_=changed),
            *(column.name for column in table.columns),
        )

    def insert_new(self, table: Table, names: tuple[str, ...], keys: tuple[Column[Any], ...]) -> str:
        statement = insert(table).values({name: bindparam(name) for name in names})
        return self.one(statement.on_conflict_do_nothing(index_elements=list(keys)), *names)

    def move_forward(self, table: Table, keys: tuple[Column[Any], ...], names: tuple[str, ...], by: str) -> str:
        statement = insert(table)
        moved = statement.on_conflict_do_update(
            index_elements=list(keys),
            set_={name: statement.excluded[name] for name in names},
            where=statement.excluded[by] >= table.c[by],
        )
        return self.one(moved, *(column.name for column in table.columns))

    def listed(self, name: str) -> Listed:
        return _as_table(func.json_each(bindparam(name, type_=Text())).table_valued("key", "value"))

    def is_here(self, owner: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
        return ()

    def is_partition(self, partition: ColumnElement[int]) -> tuple[ColumnElement[bool], ...]:
        return ()

    def log_number(self, seq: ColumnElement[int], owner: ColumnElement[int]) -> ColumnElement[int]:
        return seq * literal_column(str(EVENT_STEP), Integer)


def _as_table(table: Any) -> Listed:
    value = table.c.value

    def number_at(place: int) -> ColumnElement[int]:
        return func.json_extract(value, literal_column(f"'$[{place}]'"), type_=Integer())

    def text_at(place: int) -> ColumnElement[str]:
        return func.json_extract(value, literal_column(f"'$[{place}]'"), type_=Text())

    def nested(place: int) -> Listed:
        inner = func.json_each(value, literal_column(f"'$[{place}]'"))
        return _as_table(inner.table_valued("key", "value", name="named"))

    return Listed(table, table.c.key, cast(value, Integer), value, number_at, text_at, nested)


SQLITE = SqliteDialect()
