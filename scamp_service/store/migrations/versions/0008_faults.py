"""Adds the faults of the host that a trial has met, when it may run again, and the devices that were too few for it.

Trials that are INFEASIBLE already have no ``offer``, so they stay so.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("num_faults", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("trials", sa.Column("retry_at", sa.Double(), nullable=False, server_default="0"))
    op.add_column("trials", sa.Column("offer", sa.Text()))
    op.create_index("ix_trials_offer", "trials", ["study_id", "state", "offer", "attempt", "finished_at"])
