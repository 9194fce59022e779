"""Adds why a trial was chosen among several proposals."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("proposal_reason", sa.Text(), nullable=False, server_default=""))
