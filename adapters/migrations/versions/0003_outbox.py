"""What leaves the engine, and dead letters taken up again, format 3."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "replay",
        sa.Column("partition", WHOLE, sa.ForeignKey("partition.partition"), nullable=False),
        sa.Column("run", WHOLE, nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("partition", "run"),
        sqlite_strict=True,
    )
    op.create_table(
        "replay_letter",
        sa.Column("letter", WHOLE, sa.ForeignKey("dead_letter.number"), nullable=False, autoincrement=False),
        sa.Column("partition", WHOLE, nullable=False),
        sa.Column("run", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("letter"),
        sa.ForeignKeyConstraint(["partition", "run"], ["replay.partition", "replay.run"]),
        sqlite_strict=True,
    )
    op.create_table(
        "outbox",
        sa.Column("partition", WHOLE, sa.ForeignKey("partition.partition"), nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=True),
        sa.Column("headers", TEXT, nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=True),
        sa.Column("letter_source", TEXT, nullable=True),
        sa.Column("letter_offset", WHOLE, nullable=True),
        sa.PrimaryKeyConstraint("partition", "kind", "number"),
        sa.ForeignKeyConstraint(
            ["partition", "letter_source", "letter_offset"],
            ["dead_letter.partition", "dead_letter.source", "dead_letter.source_offset"],
        ),
        sa.CheckConstraint("kind IN ('dead_letter', 'update')", name="outbox_kind"),
        sa.CheckConstraint("(value IS NULL) = (letter_source IS NOT NULL)", name="outbox_value"),
        sa.CheckConstraint("(letter_source IS NULL) = (letter_offset IS NULL)", name="outbox_letter"),
        sqlite_strict=True,
    )
