"""Adds whether the samples of a trial differ in size, so that its peak is predicted for the largest."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("is_uneven", sa.Boolean(), nullable=False, server_default=sa.false()))
