"""Adds the columns for learned memory: the family of a trial, and the learned part of a prediction.

Trials that were stored before have no family, so nothing is learned from them. ``attempts.extra_bytes`` is copied from
the trial to its newest attempt. An attempt that ran out of memory is left out: its trial already holds the value for
the next attempt.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("bias_bytes", "learned_bytes"):
        op.add_column("trials", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("trials", sa.Column("family", sa.String(16), nullable=False, server_default=""))
    op.create_index("ix_trials_family", "trials", ["family", "id"])
    op.add_column("attempts", sa.Column("device_kinds", sa.Text(), nullable=False, server_default="[]"))
    for name in ("extra_bytes", "bias_bytes"):
        op.add_column("attempts", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE attempts SET extra_bytes = (SELECT extra_bytes FROM trials WHERE trials.id = attempts.trial_id)"
        " WHERE attempt = (SELECT attempt FROM trials WHERE trials.id = attempts.trial_id)"
        " AND (outcome IS NULL OR outcome <> 'OUT_OF_MEMORY')"
    )
