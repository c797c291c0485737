"""What a chat model reads of an episode, what was asked of it, tasks that a person parked, topics made anew, format 4."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("topic", sa.Column("label", TEXT, nullable=False, server_default=""))
    op.add_column("topic", sa.Column("facts", TEXT, nullable=False, server_default="[]"))
    op.add_column("topic", sa.Column("relationships", TEXT, nullable=False, server_default="[]"))
    op.add_column("task", sa.Column("parked_by_person", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.create_table(
        "model_call",
        sa.Column("task_id", TEXT, sa.ForeignKey("task.id"), nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("prompt", TEXT, nullable=False),
        sa.Column("calls", WHOLE, nullable=False),
        sa.Column("prompt_tokens", WHOLE, nullable=False),
        sa.Column("completion_tokens", WHOLE, nullable=False),
        sa.Column("dropped", WHOLE, nullable=False),
        sa.Column("answer", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("task_id", "key"),
        sqlite_strict=True,
    )
    op.create_index("model_call_of_owner", "model_call", ["owner"])
    op.add_column("owner", sa.Column("rebuilds", WHOLE, nullable=False, server_default=sa.text("0")))
    op.create_table(
        "shadow",
        sa.Column("owner", WHOLE, sa.ForeignKey("owner.owner"), nullable=False, autoincrement=False),
        sa.Column("label", TEXT, nullable=False),
        sa.Column("episodes", WHOLE, nullable=False),
        sa.Column("switched", sa.Integer(), nullable=False),
        sa.Column("topics", TEXT, nullable=False),
        sa.Column("relations", TEXT, nullable=False),
        sa.Column("vectors", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("owner"),
        sa.CheckConstraint("switched IN (0, 1)", name="shadow_switched"),
        sqlite_strict=True,
    )
