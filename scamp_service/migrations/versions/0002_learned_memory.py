"""What attempts teach of memory: the family of a trial, and what part of a prediction was learned.

What was stored before has no family, and teaches nobody. Of attempts that an out-of-memory had taught, only the newest
is known to have been predicted with what the trial says; of the others the first had nothing added.
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
        " WHERE attempt > 1 AND attempt = (SELECT attempt FROM trials WHERE trials.id = attempts.trial_id)"
    )
