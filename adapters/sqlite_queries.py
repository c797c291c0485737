"""What the ledger's readers ask of SQLite, written by SQLAlchemy Core from `schema.py`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer, Text, bindparam, func, literal_column, select, union_all

from .schema import (
    BESIDE_EVENTS,
    EVENT_STEP,
    dead_letter,
    episode,
    event,
    event_relation,
    owner,
    partition,
    task,
    topic,
    topic_relation,
    vector_log,
)
from .sqlite_connection import sql
from .sqlite_statements import OWNER_OF_USER, USER_COLUMNS, json_each, number_of, of_user


def text_at(values: Any, place: int) -> ColumnElement[str]:
    """An entry of lists that are the values of a JSON list."""
    return func.json_extract(values.c.value, literal_column(f"'$[{place}]'"), type_=Text())


# One user's memory.

_EVENT = (
    event.c.seq,
    event.c.message_id,
    event.c.session_id,
    event.c.speaker,
    event.c.role,
    event.c.text,
    event.c.time_us,
    event.c.utc_offset_minutes,
    event.c.kind,
    event.c.origin,
    event.c.captions,
    event.c.metadata,
    event.c.tokens,
    event.c.episode_id,
    event.c.dates,
    event.c.entities,
)
EVENTS_AFTER = sql(
    of_user(event, *_EVENT).where(event.c.seq > bindparam("after_seq")).order_by(event.c.seq),
    "tenant",
    "user_id",
    "after_seq",
)


def _events_named() -> str:
    wanted = json_each("wanted")
    found = wanted.join(event, (event.c.owner == OWNER_OF_USER) & (event.c.seq == number_of(wanted)))
    return sql(select(*_EVENT).select_from(found).order_by(wanted.c.key), "wanted", "tenant", "user_id")


EVENTS_NAMED = _events_named()


def _turns() -> str:
    """Events of many users with their vectors; of each user `[tenant, user_id, [seq, …]]`."""
    asked = json_each("asked")
    of_owner = (owner.c.tenant == text_at(asked, 0)) & (owner.c.user_id == text_at(asked, 1))
    named = func.json_each(asked.c.value, literal_column("'$[2]'")).table_valued("value", name="named")
    seq = number_of(named)
    found = (
        asked.join(owner, of_owner)
        .join(named, literal_column("1"))
        .join(event, (event.c.owner == owner.c.owner) & (event.c.seq == seq))
        .join(vector_log, vector_log.c.seq == seq * literal_column(str(EVENT_STEP), Integer))
    )
    # Put in order by the caller: an ORDER BY would put every vector through a sorter.
    return sql(select(asked.c.key, vector_log.c.vector, *_EVENT).select_from(found), "asked")


TURNS = _turns()


def _vectors_after() -> str:
    entry = (vector_log.c.seq, vector_log.c.layer, vector_log.c.ref, vector_log.c.removed, vector_log.c.vector)
    through_events = of_user(event, *entry).join(
        vector_log, vector_log.c.seq == event.c.seq * literal_column(str(EVENT_STEP), Integer)
    )
    beside = of_user(vector_log, *entry).where(BESIDE_EVENTS, vector_log.c.seq > bindparam("after_number"))
    both = union_all(through_events.where(event.c.seq > bindparam("after_seq")), beside)
    # Sorted by the caller: an ORDER BY here would put every vector through a sorter.
    return sql(both, *("tenant", "user_id", "after_seq"), *("tenant", "user_id", "after_number"))


VECTORS_AFTER = _vectors_after()


def _vectors_of_events() -> str:
    wanted = json_each("wanted")
    number = number_of(wanted) * literal_column(str(EVENT_STEP), Integer)
    found = wanted.join(vector_log, (vector_log.c.seq == number) & (vector_log.c.owner == OWNER_OF_USER))
    return sql(
        select(vector_log.c.ref, vector_log.c.vector).select_from(found).order_by(wanted.c.key),
        *("wanted", "tenant", "user_id"),
    )


def _vectors_of_topics() -> str:
    wanted = select(json_each("wanted").c.value).scalar_subquery()
    added = of_user(vector_log, vector_log.c.ref, vector_log.c.vector).where(
        BESIDE_EVENTS, vector_log.c.removed == literal_column("0"), vector_log.c.ref.in_(wanted)
    )
    return sql(added, "tenant", "user_id", "wanted")


VECTORS_OF_EVENTS = _vectors_of_events()
VECTORS_OF_TOPICS = _vectors_of_topics()
POSITION = sql(select(partition.c.next_seq))
_TOPIC = (
    topic.c.id,
    topic.c.episode_id,
    topic.c.summary,
    topic.c.keywords,
    topic.c.entities,
    topic.c.dates,
    topic.c.first_us,
    topic.c.last_us,
    topic.c.confidence,
    topic.c.model,
    topic.c.superseded_by,
)


def _topics_logged() -> str:
    """Topics of many users with their vectors; of each user `[tenant, user_id, after]`."""
    asked = json_each("asked")
    of_owner = (owner.c.tenant == text_at(asked, 0)) & (owner.c.user_id == text_at(asked, 1))
    after = func.json_extract(asked.c.value, literal_column("'$[2]'"), type_=Integer())
    added = (vector_log.c.layer == literal_column("'topic'")) & (vector_log.c.removed == literal_column("0"))
    found = (
        asked.join(owner, of_owner)
        .join(vector_log, (vector_log.c.owner == owner.c.owner) & (vector_log.c.seq > after) & BESIDE_EVENTS & added)
        .join(topic, topic.c.id == vector_log.c.ref)
    )
    return sql(select(asked.c.key, vector_log.c.seq, vector_log.c.vector, *_TOPIC).select_from(found), "asked")


def _superseded_by() -> str:
    """What topics `[tenant, user_id, id]` have superseded: one that they relate to (a rule of the writer)."""
    asked = json_each("asked")
    of_owner = (owner.c.tenant == text_at(asked, 0)) & (owner.c.user_id == text_at(asked, 1))
    newer = text_at(asked, 2)
    found = (
        asked.join(owner, of_owner)
        .join(topic_relation, (topic_relation.c.owner == owner.c.owner) & (topic_relation.c.source_id == newer))
        .join(topic, (topic.c.id == topic_relation.c.target_id) & (topic.c.superseded_by == newer))
    )
    return sql(select(topic.c.id, topic.c.superseded_by).select_from(found), "asked")


TOPICS_LOGGED = _topics_logged()
SUPERSEDED_BY = _superseded_by()
EPISODES = sql(
    of_user(
        episode,
        episode.c.id,
        episode.c.session_id,
        episode.c.seqs,
        episode.c.first_us,
        episode.c.last_us,
        episode.c.trigger,
        episode.c.detector,
        episode.c.confidence,
        episode.c.reason,
    ).order_by(episode.c.first_us, episode.c.last_us, episode.c.id),
    "tenant",
    "user_id",
)
TOPICS = sql(
    of_user(topic, *_TOPIC).order_by(topic.c.first_us, topic.c.last_us, topic.c.id),
    "tenant",
    "user_id",
)
TOPIC_RELATIONS = sql(
    of_user(
        topic_relation,
        topic_relation.c.source_id,
        topic_relation.c.target_id,
        topic_relation.c.type,
        topic_relation.c.confidence,
    ).order_by(topic_relation.c.source_id, topic_relation.c.target_id, topic_relation.c.type),
    "tenant",
    "user_id",
)
EVENT_RELATIONS = sql(
    of_user(
        event_relation,
        event_relation.c.source_seq,
        event_relation.c.target_seq,
        event_relation.c.type,
        event_relation.c.weight,
    ).order_by(event_relation.c.source_seq, event_relation.c.target_seq, event_relation.c.type),
    "tenant",
    "user_id",
)
VERSION = sql(
    select(owner.c.last_seq, owner.c.tasks_applied).where(
        owner.c.tenant == bindparam("tenant"), owner.c.user_id == bindparam("user_id")
    ),
    "tenant",
    "user_id",
)


# What an operator looks at; `page` keeps each read short.

USERS_PAGE = sql(
    select(owner.c.owner, *USER_COLUMNS)
    .where(owner.c.owner > bindparam("after"))
    .order_by(owner.c.owner)
    .limit(bindparam("page"))
    .offset(bindparam("skip")),
    "after",
    "page",
    "skip",
)


DEAD_LETTERS_PAGE = sql(
    select(
        dead_letter.c.number,
        dead_letter.c.source,
        dead_letter.c.source_offset,
        dead_letter.c.reason,
        dead_letter.c.detail,
        dead_letter.c.payload,
    )
    .where(dead_letter.c.number > bindparam("after"))
    .order_by(dead_letter.c.number)
    .limit(bindparam("page"))
    .offset(bindparam("skip")),
    "after",
    "page",
    "skip",
)
COUNT_USERS = sql(select(func.count(), func.coalesce(func.sum(owner.c.events), literal_column("0"))).select_from(owner))
COUNT_TASKS = sql(
    select(task.c.status, func.count()).where(task.c.status != literal_column("'done'")).group_by(task.c.status)
)
COUNT_DEAD_LETTERS = sql(select(func.count()).select_from(dead_letter))
