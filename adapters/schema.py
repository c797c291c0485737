"""The ledger's tables, once, for every store (design: `docs/design/ledger.md`).

What belongs to a user hangs on `owner.owner`, a number that stands for the pair
`(tenant, user_id)`. A user lives in exactly one partition, so tables of users carry
no partition column: in a shared database each partition gives its numbers (`owner`,
`vector_log.seq`) from a range of its own. What belongs to a partition as a whole
carries `partition`.

Times are microseconds of UTC, lists and mappings JSON text, vectors little-endian
float16. `adapters/migrations` makes these tables; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    REAL,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

FORMAT_VERSION = 4
"""The form of the state. Revision `f"{FORMAT_VERSION:04d}"` of the migrations makes it."""

EVENT_STEP = 1 << 20
"""The vector log's number of an event's vector is `seq * EVENT_STEP`. Entries of topics and
removals take the numbers behind the latest event's: so the numbers rise as things were written."""

OWNER_BITS = 40
"""In a shared database a partition's owners are numbered from `partition << OWNER_BITS` on."""
LOG_BITS = 51
"""In a shared database a partition's vector log is numbered from `partition << LOG_BITS` on. So its turns
and commands are numbered below `1 << LOG_BITS` divided by `EVENT_STEP`: two thousand million of them."""
MAX_SHARED_PARTITIONS = 1 << 12
"""How many partitions the two leave room for, in whole numbers of 64 bits."""

BESIDE_EVENTS = text("(layer <> 'event' OR removed = 1)")
"""Entries of the vector log that no event leads to."""

METADATA, STATE_METADATA = MetaData(), MetaData()

Whole: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
Fraction: TypeEngine[float] = Double().with_variant(REAL(), "sqlite")
# By bytes, as SQLite sorts: a locale's order may change with the system, and its indexes would be wrong.
Characters: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")


def _column(name: str, kind: TypeEngine[Any] | type[TypeEngine[Any]], *more: Any, **options: Any) -> Column[Any]:
    options.setdefault("nullable", False)
    return Column(name, kind, *more, **options)


def _owner(*, references: bool = True) -> Column[Any]:
    return _column("owner", Whole, *([ForeignKey("owner.owner")] if references else []))


def _table(name: str, *parts: Any, rowid: bool = True) -> Table:
    return Table(name, METADATA, *parts, sqlite_strict=True, sqlite_with_rowid=rowid)


fact = Table(
    "fact",
    STATE_METADATA,
    Column("name", Characters, primary_key=True, nullable=False),
    Column("value", Characters, nullable=False),
    sqlite_strict=True,
)

partition = _table(
    "partition",
    _column("partition", Whole, autoincrement=False),
    _column("epoch", Whole),
    _column("next_seq", Whole),
    _column("next_vector_seq", Whole),
    _column("next_owner", Whole),
    _column("counts", Characters),
    PrimaryKeyConstraint("partition"),
    CheckConstraint("epoch > 0", name="partition_epoch"),
)

opening = _table(
    "opening",
    _column("partition", Whole, ForeignKey("partition.partition")),
    _column("epoch", Whole),
    _column("opened_by", Characters),
    PrimaryKeyConstraint("partition", "epoch"),
)
"""Who opened the partition for writing, for the people who look after it; the latest few."""

source_position = _table(
    "source_position",
    _column("partition", Whole, ForeignKey("partition.partition")),
    _column("source_number", Whole),
    _column("source", Characters),
    _column("next_offset", Whole),
    _column("name", Characters),
    _column("prefix_bytes", Whole),
    _column("prefix_hash", Characters),
    PrimaryKeyConstraint("partition", "source_number"),
    UniqueConstraint("partition", "source"),
)

owner = _table(
    "owner",
    _column("owner", Whole, autoincrement=False),
    _column("partition", Whole, ForeignKey("partition.partition")),
    _column("tenant", Characters),
    _column("user_id", Characters),
    _column("watermark_us", Whole, nullable=True),
    _column("counted_seq", Whole),
    _column("open_tasks", Whole),
    _column("last_seq", Whole),
    _column("events", Whole),
    _column("tasks_applied", Whole),
    _column("topics", Whole),
    _column("open_from_seq", Whole),  # no event below it is without an episode
    _column("rebuilds", Whole, server_default=text("0")),  # how often all topics were replaced
    PrimaryKeyConstraint("owner"),
    UniqueConstraint("tenant", "user_id"),
    CheckConstraint("open_tasks >= 0", name="owner_open_tasks"),
)

buffer = _table(
    "buffer",
    _owner(),
    _column("session_id", Characters),
    _column("events", Whole),
    _column("tokens", Whole),
    _column("last_us", Whole),
    _column("check_tokens", Whole),
    _column("paused_at_seq", Whole),
    PrimaryKeyConstraint("owner", "session_id"),
    CheckConstraint("events > 0", name="buffer_not_empty"),
    rowid=False,
)

# The two hot tables have no foreign keys: their owner is looked up in, or put into,
# `owner` by the same transaction, and the check would be paid for every turn.
event = _table(
    "event",
    _owner(references=False),
    _column("seq", Whole),
    _column("message_id", Characters),
    _column("session_id", Characters),
    _column("speaker", Characters),
    _column("role", Characters),
    _column("text", Characters),
    _column("time_us", Whole),
    _column("utc_offset_minutes", Whole, nullable=True),
    _column("kind", Characters),
    _column("origin", Characters),
    _column("captions", Characters),
    _column("metadata", Characters),
    _column("tokens", Whole),
    _column("source_number", Whole, nullable=True),
    _column("source_offset", Whole, nullable=True),
    _column("episode_id", Characters, nullable=True),
    _column("dates", Characters),
    _column("entities", Characters),
    PrimaryKeyConstraint("owner", "seq"),
    UniqueConstraint("owner", "message_id"),
)

# An event's entry is found through the event (`EVENT_STEP`); an index over all entries
# would dirty one more page per user in every transaction.
vector_log = _table(
    "vector_log",
    _column("seq", Whole, autoincrement=False),
    _owner(references=False),
    _column("layer", Characters),
    _column("ref", Characters),
    _column("removed", Integer),
    _column("vector", LargeBinary, nullable=True),
    PrimaryKeyConstraint("seq"),
    CheckConstraint("(removed = 1) = (vector IS NULL)", name="vector_log_vector"),
)
Index(
    "vector_log_beside_events",
    vector_log.c.owner,
    vector_log.c.seq,
    sqlite_where=BESIDE_EVENTS,
    postgresql_where=BESIDE_EVENTS,
)

command = _table(
    "command",
    _owner(),
    _column("seq", Whole),
    _column("kind", Characters),
    _column("session_id", Characters),
    _column("time_us", Whole, nullable=True),
    PrimaryKeyConstraint("owner", "seq"),
    CheckConstraint("kind IN ('session_end', 'flush')", name="command_kind"),
    rowid=False,
)

task = _table(
    "task",
    _column("id", Characters),
    _owner(),
    _column("session_id", Characters),
    _column("trigger", Characters),
    _column("closes_tail", Integer),
    _column("force", Integer),
    _column("seqs", Characters),
    _column("position_seq", Whole),
    _column("ordinal", Whole),
    _column("archived_until_us", Whole, nullable=True),
    _column("status", Characters),
    _column("attempts", Whole),
    _column("error", Characters, nullable=True),
    _column("token", Characters, nullable=True),
    _column("lease_until_us", Whole, nullable=True),
    _column("parked_by_person", Integer, server_default=text("0")),
    PrimaryKeyConstraint("id"),
    CheckConstraint("status IN ('open', 'leased', 'done', 'parked')", name="task_status"),
    CheckConstraint(
        "(status = 'leased') = (token IS NOT NULL) AND (status = 'leased') = (lease_until_us IS NOT NULL)",
        name="task_lease",
    ),
)
Index(
    "task_one_lease",
    task.c.owner,
    unique=True,
    sqlite_where=task.c.status == "leased",
    postgresql_where=task.c.status == "leased",
)
Index(
    "task_unfinished",
    task.c.position_seq,
    task.c.ordinal,
    sqlite_where=task.c.status != "done",
    postgresql_where=task.c.status != "done",
)

model_call = _table(
    "model_call",
    _column("task_id", Characters, ForeignKey("task.id")),
    _column("key", Characters),
    _owner(),
    _column("model", Characters),
    _column("prompt", Characters),
    _column("calls", Whole),
    _column("prompt_tokens", Whole),
    _column("completion_tokens", Whole),
    _column("dropped", Whole),
    _column("answer", Characters, nullable=True),
    PrimaryKeyConstraint("task_id", "key"),
)
"""What was asked of chat models. The answer is there until the task is applied: who thinks it again pays once."""
Index("model_call_of_owner", model_call.c.owner)

episode = _table(
    "episode",
    _column("id", Characters),
    _owner(),
    _column("session_id", Characters),
    _column("seqs", Characters),
    _column("first_us", Whole),
    _column("last_us", Whole),
    _column("trigger", Characters),
    _column("detector", Characters),
    _column("confidence", Fraction),
    _column("reason", Characters),
    _column("task_id", Characters, ForeignKey("task.id")),
    _column("ordinal", Whole),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("task_id", "ordinal"),
)
Index("episode_of_session", episode.c.owner, episode.c.session_id, episode.c.last_us)

topic = _table(
    "topic",
    _column("id", Characters),
    _owner(),
    _column("episode_id", Characters, ForeignKey("episode.id")),
    _column("summary", Characters),
    _column("keywords", Characters),
    _column("entities", Characters),
    _column("dates", Characters),
    _column("first_us", Whole),
    _column("last_us", Whole),
    _column("confidence", Fraction),
    _column("model", Characters),
    _column("superseded_by", Characters, ForeignKey("topic.id"), nullable=True),
    _column("label", Characters, server_default=""),
    _column("facts", Characters, server_default="[]"),
    _column("relationships", Characters, server_default="[]"),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("episode_id"),  # the cross-layer edge: one topic, one archived event graph
    CheckConstraint("confidence BETWEEN 0 AND 1", name="topic_confidence"),
)
Index("topic_of_owner", topic.c.owner)

topic_relation = _table(
    "topic_relation",
    _owner(),
    _column("source_id", Characters),
    _column("target_id", Characters),
    _column("type", Characters),
    _column("confidence", Fraction),
    PrimaryKeyConstraint("owner", "source_id", "target_id", "type"),
    ForeignKeyConstraint(["source_id"], ["topic.id"]),
    ForeignKeyConstraint(["target_id"], ["topic.id"]),
    CheckConstraint(
        "type IN ('support', 'contradict', 'coreference', 'causal', 'semantic')", name="topic_relation_type"
    ),
    CheckConstraint("confidence BETWEEN 0 AND 1", name="topic_relation_confidence"),
    CheckConstraint("source_id <> target_id", name="topic_relation_ends"),
    rowid=False,
)

shadow = _table(
    "shadow",
    *(_owner(), _column("label", Characters), _column("episodes", Whole), _column("switched", Integer)),
    *(_column("topics", Characters), _column("relations", Characters), _column("vectors", LargeBinary)),
    PrimaryKeyConstraint("owner"),
    CheckConstraint("switched IN (0, 1)", name="shadow_switched"),
)
"""A user's topics and relations as another model made them; empty once they are switched to."""

event_relation = _table(
    "event_relation",
    _owner(),
    _column("source_seq", Whole),
    _column("target_seq", Whole),
    _column("type", Characters),
    _column("weight", Fraction),
    PrimaryKeyConstraint("owner", "source_seq", "target_seq", "type"),
    CheckConstraint("type IN ('temporal', 'semantic', 'causal', 'entity', 'reply')", name="event_relation_type"),
    rowid=False,
)

dead_letter = _table(
    "dead_letter",
    Column("number", Whole, primary_key=True, nullable=False, autoincrement=True),
    _column("partition", Whole, ForeignKey("partition.partition")),
    _column("source", Characters),
    _column("source_offset", Whole),
    _column("reason", Characters),
    _column("detail", Characters),
    _column("payload", LargeBinary),
    UniqueConstraint("partition", "source", "source_offset"),
)

replay = _table(
    "replay",
    _column("partition", Whole, ForeignKey("partition.partition")),
    _column("run", Whole),
    _column("done", Integer),
    PrimaryKeyConstraint("partition", "run"),
)
"""Dead letters taken up again: one row each time; not done until all of it is in the owners' partitions."""

replay_letter = _table(
    "replay_letter",
    _column("letter", Whole, ForeignKey("dead_letter.number"), autoincrement=False),
    _column("partition", Whole),
    _column("run", Whole),
    PrimaryKeyConstraint("letter"),  # a letter is taken up once
    ForeignKeyConstraint(["partition", "run"], ["replay.partition", "replay.run"]),
)

outbox = _table(
    "outbox",
    _column("partition", Whole, ForeignKey("partition.partition")),
    _column("kind", Characters),
    _column("number", Whole),
    _column("id", Characters),
    _column("key", LargeBinary, nullable=True),
    _column("headers", Characters),
    _column("value", LargeBinary, nullable=True),
    _column("letter_source", Characters, nullable=True),
    _column("letter_offset", Whole, nullable=True),
    PrimaryKeyConstraint("partition", "kind", "number"),
    ForeignKeyConstraint(
        ["partition", "letter_source", "letter_offset"],
        ["dead_letter.partition", "dead_letter.source", "dead_letter.source_offset"],
    ),
    CheckConstraint("kind IN ('dead_letter', 'update')", name="outbox_kind"),
    CheckConstraint("(value IS NULL) = (letter_source IS NOT NULL)", name="outbox_value"),
    CheckConstraint("(letter_source IS NULL) = (letter_offset IS NULL)", name="outbox_letter"),
)
"""What is still to be sent. A message with a dead letter's bytes names the letter: they are stored once."""
