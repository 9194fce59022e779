"""Leases count their holders and renewals instead of seconds, and a database has a name of its own."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("leases")  # whoever holds one takes a new one
    op.create_table(
        "leases",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "identity",
        sa.Column("id", sa.Integer(), sa.CheckConstraint("id = 1", name="ck_identity_one_row"), primary_key=True),
        sa.Column("name", sa.String(16), nullable=False),
    )
