"""A shadow as one row: topics and relations as JSON text of the rows that they will be, vectors one after the other."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from ..memory.model import TopicRelation, User
from ..memory.shadow import Consolidated, Shadow, Standing
from . import rows

_topics = msgspec.json.Decoder(list[tuple[Any, ...]])
_relations = msgspec.json.Decoder(list[tuple[str, str, str, float]])


def shadow_row(owner: int, shadow: Shadow) -> rows.Row:
    """A row of `shadow`."""
    return (
        owner,
        shadow.label,
        shadow.episodes,
        0,
        rows.encode([rows.topic_row(owner, topic) for topic in shadow.topics]),
        rows.encode([rows.topic_relation_row(owner, relation)[1:] for relation in shadow.relations]),
        np.ascontiguousarray(shadow.vectors, dtype=rows.STORED_VECTOR).tobytes(),
    )


def switched_row(owner: int, label: str, episodes: int) -> rows.Row:
    """The row of a shadow that has taken its place."""
    return (owner, label, episodes, 1, rows.EMPTY_LIST, rows.EMPTY_LIST, b"")


def to_shadow(user: User, row: rows.Row, dimension: int) -> Shadow:
    """A shadow from the columns `label, episodes, topics, relations, vectors`."""
    label, episodes, topics, relations, vectors = row
    made = [rows.to_topic(user, (id_, *rest)) for id_, _, *rest in _topics.decode(topics)]
    return Shadow(
        user,
        label,
        episodes,
        tuple(made),
        np.frombuffer(vectors, rows.STORED_VECTOR).reshape(len(made), dimension).astype(np.float32),
        tuple(TopicRelation(*relation) for relation in _relations.decode(relations)),
    )


def to_standing(row: rows.Row) -> Standing:
    """A standing from the columns `tenant, user_id, archived, label, episodes, switched`."""
    tenant, user_id, archived, label, made_from, switched = row
    return Standing(User(tenant, user_id), archived, label, made_from or 0, bool(switched))


def to_archives(user: User, found: list[rows.Row]) -> list[Consolidated]:
    """Episodes by task, from `(task_id, id … reason)` in order."""
    return [
        Consolidated(task_id, tuple(rows.to_episode(user, row[1:]) for row in group))
        for task_id, group in groupby(found, key=itemgetter(0))
    ]
