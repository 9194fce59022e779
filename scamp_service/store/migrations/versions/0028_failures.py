"""Adds the number of attempts of a trial that its own code ended with an error."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("num_failures", sa.Integer(), nullable=False, server_default="0"))
