"""The ledger's tables, format 1."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
FRACTION: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "partition",
        sa.Column("partition", WHOLE, nullable=False, autoincrement=False),
        sa.Column("epoch", WHOLE, nullable=False),
        sa.Column("next_seq", WHOLE, nullable=False),
        sa.Column("next_vector_seq", WHOLE, nullable=False),
        sa.Column("next_owner", WHOLE, nullable=False),
        sa.Column("counts", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("partition"),
        sa.CheckConstraint("epoch > 0", name="partition_epoch"),
        sqlite_strict=True,
    )
    op.create_table(
        "source_position",
        sa.Column("partition", WHOLE, sa.ForeignKey("partition.partition"), nullable=False),
        sa.Column("source_number", WHOLE, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("next_offset", WHOLE, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("prefix_bytes", WHOLE, nullable=False),
        sa.Column("prefix_hash", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("partition", "source_number"),
        sa.UniqueConstraint("partition", "source"),
        sqlite_strict=True,
    )
    op.create_table(
        "owner",
        sa.Column("owner", WHOLE, nullable=False, autoincrement=False),
        sa.Column("partition", WHOLE, sa.ForeignKey("partition.partition"), nullable=False),
        sa.Column("tenant", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("watermark_us", WHOLE, nullable=True),
        sa.Column("counted_seq", WHOLE, nullable=False),
        sa.Column("open_tasks", WHOLE, nullable=False),
        sa.Column("last_seq", WHOLE, nullable=False),
        sa.Column("events", WHOLE, nullable=False),
        sa.Column("tasks_applied", WHOLE, nullable=False),
        sa.Column("topics", WHOLE, nullable=False),
        sa.Column("open_from_seq", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("owner"),
        sa.UniqueConstraint("tenant", "user_id"),
        sa.CheckConstraint("open_tasks >= 0", name="owner_open_tasks"),
        sqlite_strict=True,
    )
    op.create_table(
        "buffer",
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("events", WHOLE, nullable=False),
        sa.Column("tokens", WHOLE, nullable=False),
        sa.Column("last_us", WHOLE, nullable=False),
        sa.Column("check_tokens", WHOLE, nullable=False),
        sa.Column("paused_at_seq", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("owner", "session_id"),
        sa.CheckConstraint("events > 0", name="buffer_not_empty"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "event",
        sa.Column("owner", WHOLE, nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("message_id", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("speaker", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("text", TEXT, nullable=False),
        sa.Column("time_us", WHOLE, nullable=False),
        sa.Column("utc_offset_minutes", WHOLE, nullable=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("origin", TEXT, nullable=False),
        sa.Column("captions", TEXT, nullable=False),
        sa.Column("metadata", TEXT, nullable=False),
        sa.Column("tokens", WHOLE, nullable=False),
        sa.Column("source_number", WHOLE, nullable=True),
        sa.Column("source_offset", WHOLE, nullable=True),
        sa.Column("episode_id", TEXT, nullable=True),
        sa.Column("dates", TEXT, nullable=False),
        sa.Column("entities", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("owner", "seq"),
        sa.UniqueConstraint("owner", "message_id"),
        sqlite_strict=True,
    )
    op.create_table(
        "vector_log",
        sa.Column("seq", WHOLE, nullable=False, autoincrement=False),
        sa.Column("owner", WHOLE, nullable=False),
        sa.Column("layer", TEXT, nullable=False),
        sa.Column("ref", TEXT, nullable=False),
        sa.Column("removed", sa.Integer(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.CheckConstraint("(removed = 1) = (vector IS NULL)", name="vector_log_vector"),
        sqlite_strict=True,
    )
    op.create_index(
        "vector_log_beside_events",
        "vector_log",
        ["owner", "seq"],
        sqlite_where=sa.text("(layer <> 'event' OR removed = 1)"),
        postgresql_where=sa.text("(layer <> 'event' OR removed = 1)"),
    )
    op.create_table(
        "command",
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("time_us", WHOLE, nullable=True),
        sa.PrimaryKeyConstraint("owner", "seq"),
        sa.CheckConstraint("kind IN ('session_end', 'flush')", name="command_kind"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "task",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("trigger", TEXT, nullable=False),
        sa.Column("closes_tail", sa.Integer(), nullable=False),
        sa.Column("force", sa.Integer(), nullable=False),
        sa.Column("seqs", TEXT, nullable=False),
        sa.Column("position_seq", WHOLE, nullable=False),
        sa.Column("ordinal", WHOLE, nullable=False),
        sa.Column("archived_until_us", WHOLE, nullable=True),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("attempts", WHOLE, nullable=False),
        sa.Column("error", TEXT, nullable=True),
        sa.Column("token", TEXT, nullable=True),
        sa.Column("lease_until_us", WHOLE, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint("status IN ('open', 'leased', 'done', 'parked')", name="task_status"),
        sa.CheckConstraint(
            "(status = 'leased') = (token IS NOT NULL) AND (status = 'leased') = (lease_until_us IS NOT NULL)",
            name="task_lease",
        ),
        sqlite_strict=True,
    )
    op.create_index(
        "task_one_lease",
        "task",
        ["owner"],
        unique=True,
        sqlite_where=sa.text("status = 'leased'"),
        postgresql_where=sa.text("status = 'leased'"),
    )
    op.create_index(
        "task_unfinished",
        "task",
        ["position_seq", "ordinal"],
        sqlite_where=sa.text("status != 'done'"),
        postgresql_where=sa.text("status != 'done'"),
    )
    op.create_table(
        "episode",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("seqs", TEXT, nullable=False),
        sa.Column("first_us", WHOLE, nullable=False),
        sa.Column("last_us", WHOLE, nullable=False),
        sa.Column("trigger", TEXT, nullable=False),
        sa.Column("detector", TEXT, nullable=False),
        sa.Column("confidence", FRACTION, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("task_id", TEXT, sa.ForeignKey("task.id"), nullable=False),
        sa.Column("ordinal", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("task_id", "ordinal"),
        sqlite_strict=True,
    )
    op.create_index("episode_of_session", "episode", ["owner", "session_id", "last_us"])
    op.create_table(
        "topic",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False),
        sa.Column("episode_id", TEXT, sa.ForeignKey("episode.id"), nullable=False),
        sa.Column("summary", TEXT, nullable=False),
        sa.Column("keywords", TEXT, nullable=False),
        sa.Column("entities", TEXT, nullable=False),
        sa.Column("dates", TEXT, nullable=False),
        sa.Column("first_us", WHOLE, nullable=False),
        sa.Column("last_us", WHOLE, nullable=False),
        sa.Column("confidence", FRACTION, nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("superseded_by", TEXT, sa.ForeignKey("topic.id"), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("episode_id"),
        sa.CheckConstraint("confidence BETWEEN 0 AND 1", name="topic_confidence"),
        sqlite_strict=True,
    )
    op.create_index("topic_of_owner", "topic", ["owner"])
    op.create_table(
        "topic_relation",
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False),
        sa.Column("source_id", TEXT, nullable=False),
        sa.Column("target_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("confidence", FRACTION, nullable=False),
        sa.PrimaryKeyConstraint("owner", "source_id", "target_id", "type"),
        sa.ForeignKeyConstraint(["source_id"], ["topic.id"]),
        sa.ForeignKeyConstraint(["target_id"], ["topic.id"]),
        sa.CheckConstraint(
            "type IN ('support', 'contradict', 'coreference', 'causal', 'semantic')", name="topic_relation_type"
        ),
        sa.CheckConstraint("confidence BETWEEN 0 AND 1", name="topic_relation_confidence"),
        sa.CheckConstraint("source_id <> target_id", name="topic_relation_ends"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "event_relation",
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False),
        sa.Column("source_seq", WHOLE, nullable=False),
        sa.Column("target_seq", WHOLE, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("weight", FRACTION, nullable=False),
        sa.PrimaryKeyConstraint("owner", "source_seq", "target_seq", "type"),
        sa.CheckConstraint("type IN ('temporal', 'semantic', 'causal', 'entity', 'reply')", name="event_relation_type"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "dead_letter",
        sa.Column("number", WHOLE, nullable=False, primary_key=True, autoincrement=True),
        sa.Column("partition", WHOLE, sa.ForeignKey("partition.partition"), nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("source_offset", WHOLE, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("detail", TEXT, nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("partition", "source", "source_offset"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger is not taken back to an older form; restore a copy made before")
