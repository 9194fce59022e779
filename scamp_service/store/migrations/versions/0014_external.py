"""Adds what other programs store through Optuna: whose a trial is, its distributions, reports and attributes."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("origin", sa.String(20), nullable=False, server_default="SEARCH"))
    op.create_table(
        "scamp_external_trials",
        sa.Column("trial_id", _KEY, sa.ForeignKey("scamp_trials.id"), primary_key=True, autoincrement=False),
        sa.Column("searched", sa.Text(), nullable=False),
        sa.Column("values", sa.Text()),
        sa.Column("heartbeat_at", sa.Double()),
    )
    op.create_table(
        "scamp_external_reports",
        sa.Column("trial_id", _KEY, sa.ForeignKey("scamp_trials.id"), primary_key=True, autoincrement=False),
        sa.Column("step", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
    )
    for owner, table in (("study", "scamp_studies"), ("trial", "scamp_trials")):
        op.create_table(
            f"scamp_{owner}_attributes",
            sa.Column(f"{owner}_id", _KEY, sa.ForeignKey(f"{table}.id"), primary_key=True, autoincrement=False),
            sa.Column("is_system", sa.Boolean(), primary_key=True, autoincrement=False),
            sa.Column("name", sa.Text(), primary_key=True),
            sa.Column("value", sa.Text(), nullable=False),
        )
