"""Adds the predicted and measured seconds of an optimizer step. Trials and attempts that exist have neither."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("trials", "attempts"):
        op.add_column(table, sa.Column("predicted_step_seconds", sa.Double()))
        op.add_column(table, sa.Column("step_factor", sa.Double(), nullable=False, server_default="1"))
        op.add_column(table, sa.Column("measured_step_seconds", sa.Double()))
    op.add_column("attempts", sa.Column("timed_steps", sa.BigInteger(), nullable=False, server_default="0"))
