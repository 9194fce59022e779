"""Adds the share of a trial's time that checks took. It is not known for trials that have run."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("check_share", sa.Double()))
