"""What the ledger's readers ask, from `schema.py`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, func, literal_column, select, true, union_all

from .dialect import Dialect
from .schema import (
    BESIDE_EVENTS,
    dead_letter,
    episode,
    event,
    event_relation,
    model_call,
    owner,
    partition,
    replay,
    replay_letter,
    shadow,
    task,
    topic,
    topic_relation,
    vector_log,
)
from .statements import USER_COLUMNS, of_user, owner_of_user, user_names

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
_EPISODE = (
    episode.c.id,
    episode.c.session_id,
    episode.c.seqs,
    episode.c.first_us,
    episode.c.last_us,
    episode.c.trigger,
    episode.c.detector,
    episode.c.confidence,
    episode.c.reason,
)
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
    topic.c.label,
    topic.c.facts,
    topic.c.relationships,
)
_NOT_REMOVED = vector_log.c.removed == literal_column("0")


class Queries:
    """Text of every query in a database's own SQL."""

    def __init__(self, dialect: Dialect) -> None:
        self._memory(dialect)
        self._vectors(dialect)
        self._tasks(dialect)
        self._shadows(dialect)
        self._operations(dialect)

    def _memory(self, dialect: Dialect) -> None:
        """One user's memory."""
        user = user_names(dialect)
        after = of_user(dialect, event, *_EVENT).where(event.c.seq > bindparam("after_seq"))
        self.EVENTS_AFTER = dialect.one(after.order_by(event.c.seq), *user, "after_seq")
        wanted = dialect.listed("wanted")
        is_wanted = (event.c.owner == owner_of_user(dialect)) & (event.c.seq == wanted.number)
        named = select(*_EVENT).select_from(wanted.table.join(event, is_wanted))
        self.EVENTS_NAMED = dialect.one(named.order_by(wanted.key), "wanted", *user)
        episodes = of_user(dialect, episode, *_EPISODE)
        self.EPISODES = dialect.one(episodes.order_by(episode.c.first_us, episode.c.last_us, episode.c.id), *user)
        topics = of_user(dialect, topic, *_TOPIC)
        self.TOPICS = dialect.one(topics.order_by(topic.c.first_us, topic.c.last_us, topic.c.id), *user)
        ends = (topic_relation.c.source_id, topic_relation.c.target_id, topic_relation.c.type)
        related = of_user(dialect, topic_relation, *ends, topic_relation.c.confidence)
        self.TOPIC_RELATIONS = dialect.one(related.order_by(*ends), *user)
        places = (event_relation.c.source_seq, event_relation.c.target_seq, event_relation.c.type)
        follows = of_user(dialect, event_relation, *places, event_relation.c.weight)
        self.EVENT_RELATIONS = dialect.one(follows.order_by(*places), *user)
        version = select(owner.c.last_seq, owner.c.tasks_applied, owner.c.rebuilds).where(
            *(owner.c.tenant == bindparam("tenant"), owner.c.user_id == bindparam("user_id")),
            *dialect.is_here(owner.c.owner),
        )
        self.VERSION = dialect.one(version, *user)

    def _vectors(self, dialect: Dialect) -> None:
        """One user's part of the vector log."""
        user = user_names(dialect)
        entry = (vector_log.c.seq, vector_log.c.layer, vector_log.c.ref, vector_log.c.removed, vector_log.c.vector)
        number = dialect.log_number(event.c.seq, event.c.owner)
        through_events = of_user(dialect, event, *entry).join(vector_log, vector_log.c.seq == number)
        beside = of_user(dialect, vector_log, *entry).where(BESIDE_EVENTS, vector_log.c.seq > bindparam("after_number"))
        both = union_all(through_events.where(event.c.seq > bindparam("after_seq")), beside)
        # Sorted by the caller: an ORDER BY here would put every vector through a sorter.
        self.VECTORS_AFTER = dialect.one(both, *user, "after_seq", *user, "after_number")
        wanted = dialect.listed("wanted")
        is_wanted = (vector_log.c.seq == wanted.number) & (vector_log.c.owner == owner_of_user(dialect))
        found = wanted.table.join(vector_log, is_wanted)
        numbered = select(vector_log.c.ref, vector_log.c.vector).select_from(found).order_by(wanted.key)
        self.VECTORS_NUMBERED = dialect.one(numbered, "wanted", *user)
        self.VECTORS_OF_TOPICS = dialect.one(
            of_user(dialect, vector_log, vector_log.c.ref, vector_log.c.vector).where(
                *(BESIDE_EVENTS, _NOT_REMOVED, vector_log.c.ref.in_(select(wanted.text).scalar_subquery())),
            ),
            *(*user, "wanted"),
        )

    def _tasks(self, dialect: Dialect) -> None:
        """What the tasks of many users need."""
        asked = dialect.listed("asked")
        of_owner = (owner.c.tenant == asked.text_at(0)) & (owner.c.user_id == asked.text_at(1))
        here = dialect.is_here(owner.c.owner)
        seqs = asked.nested(2)  # of each user `[tenant, user_id, [seq, …]]`
        turns = (
            asked.table.join(owner, of_owner)
            .join(seqs.table, true())
            .join(event, (event.c.owner == owner.c.owner) & (event.c.seq == seqs.number))
            .join(vector_log, vector_log.c.seq == dialect.log_number(seqs.number, owner.c.owner))
        )
        # Put in order by the caller: an ORDER BY would put every vector through a sorter.
        chosen = select(asked.key, vector_log.c.vector, *_EVENT).select_from(turns).where(*here)
        self.TURNS = dialect.one(chosen, "asked", *dialect.owners_here)
        added = (vector_log.c.layer == literal_column("'topic'")) & _NOT_REMOVED
        later = vector_log.c.seq > asked.number_at(2)  # of each user `[tenant, user_id, after]`
        logged = (
            asked.table.join(owner, of_owner)
            .join(vector_log, (vector_log.c.owner == owner.c.owner) & later & BESIDE_EVENTS & added)
            .join(topic, topic.c.id == vector_log.c.ref)
        )
        entries = select(asked.key, vector_log.c.seq, vector_log.c.vector, *_TOPIC).select_from(logged).where(*here)
        self.TOPICS_LOGGED = dialect.one(entries, "asked", *dialect.owners_here)
        # What topics `[tenant, user_id, id]` have superseded: one that they relate to (a rule of the writer).
        newer = asked.text_at(2)
        superseded = (
            asked.table.join(owner, of_owner)
            .join(topic_relation, (topic_relation.c.owner == owner.c.owner) & (topic_relation.c.source_id == newer))
            .join(topic, (topic.c.id == topic_relation.c.target_id) & (topic.c.superseded_by == newer))
        )
        pairs = select(topic.c.id, topic.c.superseded_by).select_from(superseded).where(*here)
        self.SUPERSEDED_BY = dialect.one(pairs, "asked", *dialect.owners_here)
        wanted = dialect.listed("wanted")
        is_wanted = (episode.c.id == wanted.text) & (episode.c.owner == owner_of_user(dialect))
        archives = select(episode.c.id, episode.c.seqs).select_from(wanted.table.join(episode, is_wanted))
        self.EPISODES_NAMED = dialect.one(archives.order_by(wanted.key), "wanted", *user_names(dialect))
        known = select(model_call.c.task_id, model_call.c.key, model_call.c.answer).select_from(
            wanted.table.join(model_call, model_call.c.task_id == wanted.text)
        )
        known = known.where(model_call.c.answer.is_not(None), *dialect.is_here(model_call.c.owner))
        self.ANSWERS = dialect.one(known, "wanted", *dialect.owners_here)

    def _shadows(self, dialect: Dialect) -> None:
        """What topics are made anew from, and what was made so."""
        counted = (
            select(episode.c.owner, func.count().label("archived"))
            .where(*dialect.is_here(episode.c.owner))
            .group_by(episode.c.owner)
            .subquery()
        )
        made = (shadow.c.label, shadow.c.episodes, shadow.c.switched)
        standings = (
            select(owner.c.tenant, owner.c.user_id, counted.c.archived, *made)
            .join(counted, counted.c.owner == owner.c.owner)
            .outerjoin(shadow, shadow.c.owner == owner.c.owner)
        )
        self.STANDINGS = dialect.one(standings.order_by(owner.c.owner), *dialect.owners_here)
        archives = of_user(dialect, episode, episode.c.task_id, *_EPISODE).join(task, task.c.id == episode.c.task_id)
        self.ARCHIVES = dialect.one(
            archives.order_by(task.c.position_seq, task.c.ordinal, episode.c.ordinal), *user_names(dialect)
        )
        kept = of_user(
            dialect, shadow, *(shadow.c.label, shadow.c.episodes, shadow.c.topics, shadow.c.relations, shadow.c.vectors)
        )
        self.SHADOW = dialect.one(kept.where(shadow.c.switched == literal_column("0")), *user_names(dialect))

    def _operations(self, dialect: Dialect) -> None:
        """What an operator looks at; `page` keeps each read short."""
        self.POSITION = dialect.one(
            select(partition.c.next_seq).where(*dialect.is_partition(partition.c.partition)), *dialect.partition_here
        )
        users = select(owner.c.owner, *USER_COLUMNS).where(
            owner.c.owner > bindparam("after"), *dialect.is_here(owner.c.owner)
        )
        page = ("page", "skip")
        self.USERS_PAGE = dialect.one(
            users.order_by(owner.c.owner).limit(bindparam("page")).offset(bindparam("skip")),
            *("after", *dialect.owners_here, *page),
        )
        letters = select(
            dead_letter.c.number,
            dead_letter.c.source,
            dead_letter.c.source_offset,
            dead_letter.c.reason,
            dead_letter.c.detail,
            dead_letter.c.payload,
            replay.c.run,
            replay.c.done,
        )
        again = (replay.c.partition == replay_letter.c.partition) & (replay.c.run == replay_letter.c.run)
        letters = letters.select_from(
            dead_letter.outerjoin(replay_letter, replay_letter.c.letter == dead_letter.c.number).outerjoin(
                replay, again
            )
        ).where(dead_letter.c.number > bindparam("after"), *dialect.is_partition(dead_letter.c.partition))
        self.DEAD_LETTERS_PAGE = dialect.one(
            letters.order_by(dead_letter.c.number).limit(bindparam("page")).offset(bindparam("skip")),
            *("after", *dialect.partition_here, *page),
        )
        totals: Any = func.coalesce(func.sum(owner.c.events), literal_column("0"))
        self.COUNT_USERS = dialect.one(
            select(func.count(), totals).select_from(owner).where(*dialect.is_here(owner.c.owner)),
            *dialect.owners_here,
        )
        self.COUNT_TASKS = dialect.one(
            select(task.c.status, func.count())
            .where(task.c.status != literal_column("'done'"), *dialect.is_here(task.c.owner))
            .group_by(task.c.status),
            *dialect.owners_here,
        )
        by = (owner.c.tenant, owner.c.user_id, model_call.c.model, model_call.c.prompt)
        counts = (model_call.c.calls, model_call.c.prompt_tokens, model_call.c.completion_tokens, model_call.c.dropped)
        usage = select(*by, *(func.sum(count) for count in counts)).join(owner, owner.c.owner == model_call.c.owner)
        self.MODEL_USAGE = dialect.one(
            usage.where(*dialect.is_here(model_call.c.owner)).group_by(*by).order_by(*by), *dialect.owners_here
        )
        self.COUNT_DEAD_LETTERS = dialect.one(
            select(func.count()).select_from(dead_letter).where(*dialect.is_partition(dead_letter.c.partition)),
            *dialect.partition_here,
        )
