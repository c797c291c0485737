"""The statements that write the ledger, and read it back for its shard, from `schema.py`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    union,
    update,
)

from ..memory.model import Trigger
from .dialect import Dialect, Given
from .schema import (
    buffer,
    command,
    dead_letter,
    episode,
    event,
    event_relation,
    opening,
    outbox,
    owner,
    partition,
    replay,
    replay_letter,
    source_position,
    task,
    topic,
    topic_relation,
    vector_log,
)
from .shadow_statements import ShadowStatements
from .task_statements import TaskStatements

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
_DONE: ColumnElement[str] = literal_column("'done'")
_LEASED: ColumnElement[str] = literal_column("'leased'")
_NULL: ColumnElement[Any] = literal_column("NULL")
_WHOLE = BigInteger()


def user_names(dialect: Dialect) -> tuple[str, ...]:
    """Names of the parameters of `owner_of_user`."""
    return ("tenant", "user_id", *dialect.owners_here)


def owner_of_user(dialect: Dialect) -> Any:
    """The number of a user of the partition at hand; takes `user_names`."""
    named = (owner.c.tenant == bindparam("tenant"), owner.c.user_id == bindparam("user_id"))
    return select(owner.c.owner).where(*named, *dialect.is_here(owner.c.owner)).scalar_subquery()


def of_user(dialect: Dialect, table: FromClause, *columns: Any) -> Select[Any]:
    """A selection of one user's rows; takes `user_names`."""
    return select(*columns).select_from(table).where(table.c.owner == owner_of_user(dialect))


class Statements(TaskStatements):
    """Text of every statement in a database's own SQL.

    Those that end in `_MANY`, and all inserts and upserts, are run for many rows at once.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._partition(dialect)
        self._messages(dialect)
        self._users(dialect)
        self._events(dialect)
        super().__init__(dialect)
        self.shadows = ShadowStatements(dialect)
        self._archives(dialect)

    def _partition(self, dialect: Dialect) -> None:
        """Opening, counters, sources, records put aside."""
        row = select(
            partition.c.partition,
            partition.c.epoch,
            partition.c.next_seq,
            partition.c.next_vector_seq,
            partition.c.next_owner,
            partition.c.counts,
        ).where(*dialect.is_partition(partition.c.partition))
        self.READ_PARTITION = dialect.one(row, *dialect.partition_here)
        self.HOLD_PARTITION = dialect.one(row.with_for_update(), *dialect.partition_here)
        every = tuple(column.name for column in partition.columns)
        self.INSERT_PARTITION = dialect.insert_new(partition, every, (partition.c.partition,))
        self.BUMP_EPOCH = dialect.one(
            update(partition)
            .values(epoch=partition.c.epoch + literal_column("1", Integer))
            .where(partition.c.partition == bindparam("at")),
            "at",
        )
        self.INSERT_OPENING = dialect.insert(opening)
        self.FORGET_OPENINGS = dialect.one(
            delete(opening).where(opening.c.partition == bindparam("at"), opening.c.epoch <= bindparam("until")),
            *("at", "until"),
        )
        openers = select(opening.c.opened_by).where(*dialect.is_partition(opening.c.partition))
        self.READ_OPENERS = dialect.one(openers.order_by(opening.c.epoch.desc()), *dialect.partition_here)
        self.ADVANCE_PARTITION = dialect.one(
            update(partition)
            .values(
                next_seq=bindparam("next_seq"),
                next_vector_seq=bindparam("next_vector_seq"),
                next_owner=bindparam("next_owner"),
                counts=bindparam("counts"),
            )
            .where(partition.c.partition == bindparam("at"), partition.c.epoch == bindparam("held_epoch")),
            *("next_seq", "next_vector_seq", "next_owner", "counts", "at", "held_epoch"),
        )
        sources = select(
            source_position.c.source,
            source_position.c.source_number,
            source_position.c.next_offset,
            source_position.c.name,
            source_position.c.prefix_bytes,
            source_position.c.prefix_hash,
        ).where(*dialect.is_partition(source_position.c.partition))
        self.READ_SOURCES = dialect.one(sources.order_by(source_position.c.source_number), *dialect.partition_here)
        self.MOVE_SOURCE = dialect.move_forward(  # never backwards (invariant 2)
            source_position,
            (source_position.c.partition, source_position.c.source_number),
            ("next_offset", "name", "prefix_bytes", "prefix_hash"),
            by="next_offset",
        )
        self.INSERT_DEAD_LETTER = dialect.insert_new(
            dead_letter,
            ("partition", "source", "source_offset", "reason", "detail", "payload"),
            (dead_letter.c.partition, dead_letter.c.source, dead_letter.c.source_offset),
        )

    def _messages(self, dialect: Dialect) -> None:
        """What is to be sent, and what is taken up again."""
        self.INSERT_MESSAGE = dialect.insert(outbox)
        of_kind = (outbox.c.partition == bindparam("at"), outbox.c.kind == bindparam("of_kind"))
        names = ("at", "of_kind")
        is_letter = (
            (dead_letter.c.partition == outbox.c.partition)
            & (dead_letter.c.source == outbox.c.letter_source)
            & (dead_letter.c.source_offset == outbox.c.letter_offset)
        )
        with_letters = outbox.outerjoin(dead_letter, is_letter)
        value = func.coalesce(outbox.c.value, dead_letter.c.payload)
        size = func.coalesce(func.length(outbox.c.value), func.length(dead_letter.c.payload))
        sizes = select(outbox.c.number, size).select_from(with_letters).where(*of_kind)
        self.MESSAGE_SIZES = dialect.one(
            sizes.order_by(outbox.c.number).limit(bindparam("page")).offset(bindparam("skip")), *names, "page", "skip"
        )
        whole = select(outbox.c.number, outbox.c.id, outbox.c.key, outbox.c.headers, value)
        self.MESSAGES = dialect.one(
            whole.add_columns(outbox.c.letter_source, outbox.c.letter_offset)
            .select_from(with_letters)
            .where(*of_kind, outbox.c.number <= bindparam("until"))
            .order_by(outbox.c.number),
            *(*names, "until"),
        )
        self.COUNT_MESSAGES = dialect.one(
            select(outbox.c.kind, func.count())
            .where(*dialect.is_partition(outbox.c.partition))
            .group_by(outbox.c.kind),
            *dialect.partition_here,
        )
        self.FORGET_MESSAGES = dialect.one(
            delete(outbox).where(*of_kind, outbox.c.number <= bindparam("until")), *names, "until"
        )
        self.INSERT_REPLAY = dialect.insert(replay)
        self.INSERT_REPLAY_LETTER = dialect.insert(replay_letter)
        self.END_REPLAY = dialect.one(
            update(replay)
            .values(done=literal_column("1", Integer))
            .where(replay.c.partition == bindparam("at"), replay.c.run == bindparam("of_run")),
            *("at", "of_run"),
        )

    def _users(self, dialect: Dialect) -> None:
        """Users, as the writer keeps them."""
        kept = ("partition", "tenant", "user_id", "open_from_seq", "rebuilds")
        self.UPSERT_OWNER = dialect.upsert(owner, (owner.c.owner,), kept)
        self.INSERT_OWNER = dialect.insert(owner)
        self.UPSERT_BUFFER = dialect.upsert(buffer, (buffer.c.owner, buffer.c.session_id), ())
        self.DELETE_BUFFERS_MANY = dialect.many(
            lambda given: delete(buffer).where(buffer.c.owner == given("of_owner")), of_owner=_WHOLE
        )
        self.DELETE_BUFFER_MANY = dialect.many(
            lambda given: delete(buffer).where(
                buffer.c.owner == given("of_owner"), buffer.c.session_id == given("session")
            ),
            of_owner=_WHOLE,
            session=Text(),
        )
        pairs = dialect.listed("pairs")
        is_named = (owner.c.tenant == pairs.text_at(0)) & (owner.c.user_id == pairs.text_at(1))
        named = select(owner.c.owner, *USER_COLUMNS).select_from(pairs.table.join(owner, is_named))
        self.READ_USERS = dialect.one(named.where(*dialect.is_here(owner.c.owner)), "pairs", *dialect.owners_here)
        is_known = (event.c.owner == pairs.number_at(0)) & (event.c.message_id == pairs.text_at(1))
        known = select(event.c.owner, event.c.message_id).select_from(pairs.table.join(event, is_known))
        self.KNOWN_MESSAGES = dialect.one(known, "pairs")
        self.READ_BUFFERS = dialect.one(_of_owners(dialect, buffer, *buffer.c), "owners")
        self.READ_BUFFERED = dialect.one(
            _of_owners(
                *(dialect, owner, event.c.owner, event.c.seq),
                *(event.c.session_id, event.c.message_id, event.c.time_us, event.c.tokens),
            )
            .join(event, (event.c.owner == owner.c.owner) & (event.c.seq >= owner.c.open_from_seq))
            .where(event.c.episode_id.is_(None)),  # sorted by the caller: an ORDER BY here may turn the joins round
            "owners",
        )
        self.READ_UNCOUNTED_COMMANDS = dialect.one(
            _of_owners(dialect, command, *command.c)
            .join(owner, owner.c.owner == command.c.owner)
            .where(command.c.seq > owner.c.counted_seq),
            "owners",
        )
        buffered = (
            select(event.c.seq)
            .where(event.c.owner == owner.c.owner, event.c.seq >= owner.c.open_from_seq, event.c.episode_id.is_(None))
            .exists()
        )
        ordered = select(command.c.owner).join(owner, owner.c.owner == command.c.owner)
        unsettled = union(
            select(buffer.c.owner).where(*dialect.is_here(buffer.c.owner)),
            select(owner.c.owner).where(buffered, *dialect.is_here(owner.c.owner)),
            ordered.where(command.c.seq > owner.c.counted_seq, *dialect.is_here(command.c.owner)),
            select(task.c.owner).where(task.c.status != _DONE, *dialect.is_here(task.c.owner)),
        ).subquery()
        self.UNSETTLED_USERS = dialect.one(
            select(owner.c.tenant, owner.c.user_id)
            .join(unsettled, unsettled.c.owner == owner.c.owner)
            .order_by(owner.c.owner),
            *dialect.owners_here * 4,
        )

    def _events(self, dialect: Dialect) -> None:
        """Events, vectors, commands."""
        self.INSERT_EVENT = dialect.insert(event)
        self.INSERT_VECTOR = dialect.insert(vector_log)
        self.INSERT_COMMAND = dialect.insert(command)
        self.ARCHIVE_EVENT_MANY = dialect.many(
            lambda given: (
                update(event)
                .values(episode_id=given("episode"), dates=given("resolved"), entities=given("named"))
                .where(event.c.owner == given("of_owner"), event.c.seq == given("at_seq"), event.c.episode_id.is_(None))
            ),
            episode=Text(),
            resolved=Text(),
            named=Text(),
            of_owner=_WHOLE,
            at_seq=_WHOLE,
        )

    def _archives(self, dialect: Dialect) -> None:
        """Archives and the topic associative network."""
        self.INSERT_EPISODE = dialect.insert(episode)
        self.INSERT_TOPIC = dialect.insert(topic)
        self.INSERT_TOPIC_RELATION = dialect.insert(topic_relation)
        self.INSERT_EVENT_RELATION = dialect.insert(event_relation)
        every = tuple(column.name for column in event_relation.columns)
        self.INSERT_NEW_EVENT_RELATION = dialect.insert_new(event_relation, every, tuple(event_relation.primary_key))
        named = dialect.listed("named")  # `[owner, seq]` each
        is_named = (event.c.owner == named.number_at(0)) & (event.c.seq == named.number_at(1))
        self.STORED_EVENTS = dialect.one(
            select(event.c.owner, event.c.seq).select_from(named.table.join(event, is_named)), "named"
        )
        self.RAISE_OPEN_FROM_MANY = dialect.many(_raise_open_from, next_seq=_WHOLE, of_owner=_WHOLE)
        self.SUPERSEDE_TOPIC_MANY = dialect.many(
            lambda given: (
                update(topic)
                .values(superseded_by=given("newer"))
                .where(topic.c.id == given("older"), topic.c.owner == given("of_owner"))
            ),
            newer=Text(),
            older=Text(),
            of_owner=_WHOLE,
        )
        until = of_user(dialect, episode, func.max(episode.c.last_us)).where(
            episode.c.session_id == bindparam("session"),
            episode.c.trigger != literal_column(f"'{Trigger.AHEAD}'"),
        )
        self.ARCHIVED_UNTIL = dialect.one(until, *user_names(dialect), "session")


def _of_owners(dialect: Dialect, table: Table, *columns: Column[Any]) -> Select[Any]:
    owners = dialect.listed("owners")
    return select(*columns).select_from(owners.table.join(table, table.c.owner == owners.number))


def _raise_open_from(given: Given) -> Any:
    first_open = (
        select(func.min(event.c.seq))
        .where(event.c.owner == owner.c.owner, event.c.seq >= owner.c.open_from_seq, event.c.episode_id.is_(None))
        .scalar_subquery()
    )
    raised = func.coalesce(first_open, given("next_seq"))
    return update(owner).values(open_from_seq=raised).where(owner.c.owner == given("of_owner"))
