"""Adds the numbers that are kept about each study. ``store.recount`` fills them for the studies that exist."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "tallies",
        sa.Column("study_id", key, sa.ForeignKey("studies.id"), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("num", sa.Double(), nullable=False),
    )
    op.create_table(
        "measured",
        sa.Column("trial_id", key, sa.ForeignKey("trials.id"), primary_key=True, autoincrement=False),
        sa.Column("study_id", key, sa.ForeignKey("studies.id"), nullable=False),
        sa.Column("peak_error_pct", sa.Double()),
        sa.Column("step_error_pct", sa.Double()),
        sa.Column("num_oom", sa.Integer(), nullable=False),
        sa.Column("least_excess_pct", sa.Double()),
    )
    for name in ("peak_error_pct", "step_error_pct", "least_excess_pct"):
        op.create_index(f"ix_measured_{name}", "measured", ["study_id", name])
    completed = sa.text("state = 'COMPLETED'")
    columns = ["study_id", "value", "number"]
    op.create_index("ix_trials_best", "trials", columns, sqlite_where=completed, postgresql_where=completed)
