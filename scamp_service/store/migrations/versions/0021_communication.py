"""Adds the predicted and measured share of communication in a step. Trials and attempts that exist have neither."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("scamp_trials", "scamp_attempts"):
        op.add_column(table, sa.Column("predicted_communication_share", sa.Double()))
        op.add_column(table, sa.Column("measured_communication_share", sa.Double()))
