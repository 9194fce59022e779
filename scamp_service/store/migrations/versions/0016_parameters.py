"""Adds the number of parameters of a trial's model."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("num_params", sa.BigInteger(), nullable=False, server_default="0"))
