"""Adds the values of several objectives to trials, and the FLOPs of their models."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("flops_per_sample", sa.Double()))
    op.add_column("scamp_trials", sa.Column("values", sa.Text()))
    op.execute(
        'UPDATE scamp_trials SET "values" = (SELECT x."values" FROM scamp_external_trials x WHERE '
        """x.trial_id = scamp_trials.id AND x."values" LIKE '%,%') WHERE origin = 'EXTERNAL'"""
    )
