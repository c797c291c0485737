"""The ledger's statements for SQLite, written by SQLAlchemy Core from `schema.py`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    select,
    union,
    update,
)
from sqlalchemy import insert as plain_insert
from sqlalchemy.dialects.sqlite import insert

from ..memory.model import Trigger
from .schema import (
    buffer,
    command,
    dead_letter,
    episode,
    event,
    event_relation,
    opening,
    owner,
    partition,
    source_position,
    task,
    topic,
    topic_relation,
    vector_log,
)
from .sqlite_connection import sql


def _insert(table: Table) -> str:
    return sql(plain_insert(table), *(column.name for column in table.columns))


def _insert_together(table: Table, count: int) -> str:
    """An insert of `count` rows; its parameters are the rows' values one after the other."""
    names = [[f"{column.name}_{at}" for column in table.columns] for at in range(count)]
    made: list[dict[str, Any]] = [
        {column.name: bindparam(name) for column, name in zip(table.columns, row, strict=True)} for row in names
    ]
    return sql(plain_insert(table).values(made), *(name for row in names for name in row))


def _upsert(table: Table, *keys: Column[Any], skip: tuple[str, ...] = ()) -> str:
    statement = insert(table)
    kept = {*(key.name for key in keys), *skip}
    changed = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in kept}
    return sql(
        statement.on_conflict_do_update(index_elements=list(keys), set_=changed),
        *(column.name for column in table.columns),
    )


def json_each(name: str) -> Any:
    """A JSON list, given as one parameter, as a table of `key` (its places) and `value`."""
    return func.json_each(bindparam(name, type_=Text())).table_valued("key", "value")


def number_of(values: Any) -> ColumnElement[int]:
    """The list's values as whole numbers."""
    return cast(values.c.value, Integer)


OWNER_OF_USER = (
    select(owner.c.owner)
    .where(owner.c.tenant == bindparam("tenant"), owner.c.user_id == bindparam("user_id"))
    .scalar_subquery()
)


def of_user(table: FromClause, *columns: Column[Any]) -> Select[Any]:
    """A selection of one user's rows; takes `tenant` and `user_id`."""
    return select(*columns).select_from(table).where(table.c.owner == OWNER_OF_USER)


# The partition: opening, counters, sources.

READ_PARTITION = sql(
    select(
        partition.c.partition,
        partition.c.epoch,
        partition.c.next_seq,
        partition.c.next_vector_seq,
        partition.c.next_owner,
        partition.c.counts,
    )
)
INSERT_PARTITION = _insert(partition)
BUMP_EPOCH = sql(
    update(partition)
    .values(epoch=partition.c.epoch + literal_column("1", Integer))
    .where(partition.c.partition == bindparam("at")),
    "at",
)
INSERT_OPENING = _insert(opening)
FORGET_OPENINGS = sql(
    delete(opening).where(opening.c.partition == bindparam("at"), opening.c.epoch <= bindparam("until")), "at", "until"
)
READ_OPENERS = sql(select(opening.c.opened_by).order_by(opening.c.epoch.desc()))
ADVANCE_PARTITION = sql(
    update(partition)
    .values(
        next_seq=bindparam("next_seq"),
        next_vector_seq=bindparam("next_vector_seq"),
        next_owner=bindparam("next_owner"),
        counts=bindparam("counts"),
    )
    .where(partition.c.partition == bindparam("at"), partition.c.epoch == bindparam("held_epoch")),
    "next_seq",
    "next_vector_seq",
    "next_owner",
    "counts",
    "at",
    "held_epoch",
)
READ_SOURCES = sql(
    select(
        source_position.c.source,
        source_position.c.source_number,
        source_position.c.next_offset,
        source_position.c.name,
        source_position.c.prefix_bytes,
        source_position.c.prefix_hash,
    ).order_by(source_position.c.source_number)
)


def _move_source() -> str:
    statement = insert(source_position)
    moved = statement.on_conflict_do_update(
        index_elements=[source_position.c.partition, source_position.c.source_number],
        set_={name: statement.excluded[name] for name in ("next_offset", "name", "prefix_bytes", "prefix_hash")},
        where=statement.excluded.next_offset >= source_position.c.next_offset,  # never backwards (invariant 2)
    )
    return sql(moved, *(column.name for column in source_position.columns))


MOVE_SOURCE = _move_source()


# Users, as the writer keeps them.

UPSERT_OWNER = _upsert(owner, owner.c.owner, skip=("partition", "tenant", "user_id", "open_from_seq"))
INSERT_OWNER = _insert(owner)
UPSERT_BUFFER = _upsert(buffer, buffer.c.owner, buffer.c.session_id)
DELETE_BUFFERS = sql(delete(buffer).where(buffer.c.owner == bindparam("of_owner")), "of_owner")
DELETE_BUFFER = sql(
    delete(buffer).where(buffer.c.owner == bindparam("of_owner"), buffer.c.session_id == bindparam("session")),
    "of_owner",
    "session",
)

USER_COLUMNS = (
    owner.c.tenant,
    owner.c.user_id,
    owner.c.watermark_us,
    owner.c.counted_seq,
    owner.c.open_tasks,
    owner.c.last_seq,
    owner.c.events,
    owner.c.tasks_applied,
    owner.c.topics,
)


def _read_users() -> str:
    pairs = json_each("pairs")
    tenant = func.json_extract(pairs.c.value, literal_column("'$[0]'"), type_=Text())
    user_id = func.json_extract(pairs.c.value, literal_column("'$[1]'"), type_=Text())
    found = pairs.join(owner, (owner.c.tenant == tenant) & (owner.c.user_id == user_id))
    return sql(select(owner.c.owner, *USER_COLUMNS).select_from(found), "pairs")


def _known_messages() -> str:
    pairs = json_each("pairs")
    of_owner = func.json_extract(pairs.c.value, literal_column("'$[0]'"), type_=Integer())
    message_id = func.json_extract(pairs.c.value, literal_column("'$[1]'"), type_=Text())
    found = pairs.join(event, (event.c.owner == of_owner) & (event.c.message_id == message_id))
    return sql(select(event.c.owner, event.c.message_id).select_from(found), "pairs")


def _of_owners(table: Table, *columns: Column[Any]) -> Select[Any]:
    owners = json_each("owners")
    return select(*columns).select_from(owners.join(table, table.c.owner == number_of(owners)))


READ_USERS = _read_users()
KNOWN_MESSAGES = _known_messages()
READ_BUFFERS = sql(_of_owners(buffer, *buffer.c), "owners")
READ_BUFFERED = sql(
    _of_owners(
        owner, event.c.owner, event.c.seq, event.c.session_id, event.c.message_id, event.c.time_us, event.c.tokens
    )
    .join(event, (event.c.owner == owner.c.owner) & (event.c.seq >= owner.c.open_from_seq))
    .where(event.c.episode_id.is_(None)),  # sorted by the caller: an ORDER BY here may turn the joins round
    "owners",
)
READ_UNCOUNTED_COMMANDS = sql(
    _of_owners(command, *command.c)
    .join(owner, owner.c.owner == command.c.owner)
    .where(command.c.seq > owner.c.counted_seq),
    "owners",
)
_unsettled = union(
    select(buffer.c.owner),
    select(owner.c.owner).where(
        select(event.c.seq)
        .where(event.c.owner == owner.c.owner, event.c.seq >= owner.c.open_from_seq, event.c.episode_id.is_(None))
        .exists()
    ),
    select(command.c.owner).join(owner, owner.c.owner == command.c.owner).where(command.c.seq > owner.c.counted_seq),
    select(task.c.owner).where(task.c.status != literal_column("'done'")),
).subquery()
UNSETTLED_USERS = sql(
    select(owner.c.tenant, owner.c.user_id)
    .join(_unsettled, _unsettled.c.owner == owner.c.owner)
    .order_by(owner.c.owner)
)


# Events, vectors, commands.

INSERT_EVENT = _insert(event)
INSERT_VECTOR = _insert(vector_log)
INSERT_COMMAND = _insert(command)
ARCHIVE_EVENT = sql(
    update(event)
    .values(episode_id=bindparam("episode"), dates=bindparam("resolved"), entities=bindparam("named"))
    .where(event.c.owner == bindparam("of_owner"), event.c.seq == bindparam("at_seq"), event.c.episode_id.is_(None)),
    "episode",
    "resolved",
    "named",
    "of_owner",
    "at_seq",
)


# Tasks.

INSERT_TASK = _insert(task)
_HELD = (task.c.id == bindparam("task_id"), task.c.token == bindparam("held_token"))
FINISH_TASK = sql(
    update(task)
    .values(
        status=literal_column("'done'"),
        error=literal_column("NULL"),
        token=literal_column("NULL"),
        lease_until_us=literal_column("NULL"),
    )
    .where(*_HELD, task.c.status == literal_column("'leased'")),
    "task_id",
    "held_token",
)
GIVE_BACK_TASK = sql(
    update(task)
    .values(
        status=bindparam("next_status"),
        error=bindparam("why"),
        token=literal_column("NULL"),
        lease_until_us=literal_column("NULL"),
    )
    .where(*_HELD, task.c.status == literal_column("'leased'")),
    "next_status",
    "why",
    "task_id",
    "held_token",
)
LEASE_TASK = sql(
    update(task)
    .values(
        status=literal_column("'leased'"),
        attempts=task.c.attempts + literal_column("1", Integer),
        token=bindparam("new_token"),
        lease_until_us=bindparam("until_us"),
    )
    .where(task.c.id == bindparam("task_id"), task.c.status != literal_column("'done'")),
    "new_token",
    "until_us",
    "task_id",
)
UNFINISHED_TASKS = sql(
    select(
        owner.c.tenant,
        owner.c.user_id,
        task.c.id,
        task.c.session_id,
        task.c.trigger,
        task.c.closes_tail,
        task.c.force,
        task.c.seqs,
        task.c.position_seq,
        task.c.ordinal,
        task.c.archived_until_us,
        task.c.status,
        task.c.attempts,
        task.c.error,
    )
    .join(owner, owner.c.owner == task.c.owner)
    .where(task.c.status != literal_column("'done'"))
    .order_by(task.c.position_seq, task.c.ordinal)
)


# Archives and the topic associative network.

INSERT_EPISODE = _insert(episode)
RAISE_OPEN_FROM = sql(
    update(owner)
    .values(
        open_from_seq=func.ifnull(
            select(func.min(event.c.seq))
            .where(event.c.owner == owner.c.owner, event.c.seq >= owner.c.open_from_seq, event.c.episode_id.is_(None))
            .scalar_subquery(),
            bindparam("next_seq"),
        )
    )
    .where(owner.c.owner == bindparam("of_owner")),
    "next_seq",
    "of_owner",
)
INSERT_TOPIC = _insert(topic)
INSERT_TOPIC_RELATION = _insert(topic_relation)
INSERT_EVENT_RELATION = _insert(event_relation)
RELATIONS_TOGETHER = 100
INSERT_EVENT_RELATIONS = _insert_together(event_relation, RELATIONS_TOGETHER)
SUPERSEDE_TOPIC = sql(
    update(topic)
    .values(superseded_by=bindparam("newer"))
    .where(topic.c.id == bindparam("older"), topic.c.owner == bindparam("of_owner")),
    "newer",
    "older",
    "of_owner",
)
ARCHIVED_UNTIL = sql(
    of_user(episode, func.max(episode.c.last_us)).where(  # type: ignore[arg-type]
        episode.c.session_id == bindparam("session"),
        episode.c.trigger != literal_column(f"'{Trigger.AHEAD}'"),
    ),
    "tenant",
    "user_id",
    "session",
)


# Records put aside.


def _insert_dead_letter() -> str:
    columns = ("partition", "source", "source_offset", "reason", "detail", "payload")
    statement = insert(dead_letter).values({name: bindparam(name) for name in columns})
    taken_before = [dead_letter.c.partition, dead_letter.c.source, dead_letter.c.source_offset]
    return sql(statement.on_conflict_do_nothing(index_elements=taken_before), *columns)


INSERT_DEAD_LETTER = _insert_dead_letter()
