"""Adds whether the devices of an INFEASIBLE trial have been lost."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("once_fit", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.drop_index("ix_trials_offer", "trials")
    op.create_index("ix_trials_offer", "trials", ["study_id", "state", "offer", "once_fit", "finished_at"])
