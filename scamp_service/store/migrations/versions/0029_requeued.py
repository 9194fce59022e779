"""Adds why a trial was queued again, which its later reasons repeat."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("requeued_because", sa.Text(), nullable=False, server_default=""))
