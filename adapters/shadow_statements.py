"""The statements about shadows: keeping one, dropping it, and putting it in the place of what is there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Integer, bindparam, delete, func, literal_column, select, update

from .dialect import Dialect
from .schema import BESIDE_EVENTS, episode, model_call, owner, shadow, task, topic, topic_relation, vector_log

_NULL: Any = literal_column("NULL")
_ONE: Any = literal_column("1", Integer)


class ShadowStatements:
    """Text of each in a database's own SQL; all of them are about one owner."""

    def __init__(self, dialect: Dialect) -> None:
        mine = "of_owner"
        of_owner: Any = bindparam(mine)
        self.KEEP = dialect.upsert(shadow, (shadow.c.owner,), ())
        self.DROP = dialect.one(delete(shadow).where(shadow.c.owner == of_owner), mine)
        held = select(shadow.c.label, shadow.c.episodes, shadow.c.topics, shadow.c.relations, shadow.c.vectors)
        self.HELD = dialect.one(held.where(shadow.c.owner == of_owner, shadow.c.switched == literal_column("0")), mine)
        self.COUNT_EPISODES = dialect.one(
            select(func.count()).select_from(episode).where(episode.c.owner == of_owner), mine
        )
        self.TOPIC_IDS = dialect.one(select(topic.c.id).where(topic.c.owner == of_owner), mine)
        self.FORGET_RELATIONS = dialect.one(delete(topic_relation).where(topic_relation.c.owner == of_owner), mine)
        self.REPLACE_TOPIC = dialect.upsert(topic, (topic.c.id,), ("owner", "episode_id"))
        is_topic = vector_log.c.layer == literal_column("'topic'")
        self.FORGET_VECTORS = dialect.one(
            delete(vector_log).where(
                *(vector_log.c.owner == of_owner, BESIDE_EVENTS, is_topic),
                vector_log.c.removed == literal_column("0"),
            ),
            mine,
        )
        self.COUNT_REBUILD = dialect.one(
            update(owner)
            .values(topics=bindparam("made"), rebuilds=owner.c.rebuilds + _ONE)
            .where(owner.c.owner == of_owner),
            *("made", mine),
        )
        done = select(task.c.id).where(task.c.owner == of_owner, task.c.status == literal_column("'done'"))
        self.FORGET_ANSWERS = dialect.one(
            update(model_call)
            .values(answer=_NULL)
            .where(
                model_call.c.owner == bindparam("asked_by"),
                model_call.c.answer.is_not(_NULL),
                model_call.c.task_id.in_(done.scalar_subquery()),
            ),
            *("asked_by", mine),
        )
