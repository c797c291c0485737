"""Who opened a partition for writing, format 2."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "opening",
        sa.Column("partition", WHOLE, sa.ForeignKey("partition.partition"), nullable=False),
        sa.Column("epoch", WHOLE, nullable=False),
        sa.Column("opened_by", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("partition", "epoch"),
        sqlite_strict=True,
    )
