"""Adds the plans that a trial may start with."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("choices", sa.Text()))
