"""Adds the MiB to reserve for a rank of each share of the batch. Plans that exist have equal shares, and so no list."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("scamp_trials", "scamp_attempts"):
        op.add_column(table, sa.Column("shares_mib", sa.Text()))
