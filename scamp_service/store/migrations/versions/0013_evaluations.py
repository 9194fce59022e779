"""Adds the predicted peak of evaluations, and what an attempt did when it ran out of memory."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("scamp_trials", "scamp_attempts"):
        op.add_column(table, sa.Column("evaluation_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("scamp_attempts", sa.Column("phase", sa.Text(), nullable=False, server_default=""))
