"""Adds the step of a trial's plan, if it has a pipeline. Trials that exist have none."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("comparisons", sa.Column("pipeline", sa.Text()))
