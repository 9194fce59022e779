"""Adds the plans that were compared when a trial was sized. Trials that exist have none."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "comparisons",
        sa.Column(
            "trial_id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            sa.ForeignKey("trials.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("options", sa.Text(), nullable=False),
    )
