"""Adds the step at which a trial was best, for studies whose trials count by their best report."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("best_step", sa.BigInteger()))
