"""Creates the tables for studies, trials, attempts, metrics, logs, events, blobs, the cluster and leases.

Types are written out, not imported, because the result of a released revision must never change.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "studies",
        sa.Column("id", key, primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("code", sa.String(64), sa.ForeignKey("blobs.sha256")),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("idempotency_key", sa.Text(), unique=True),
        sa.Column("body_sha256", sa.String(64), nullable=False),
    )
    op.create_table(
        "trials",
        sa.Column("id", key, primary_key=True),
        sa.Column("study_id", key, sa.ForeignKey("studies.id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("structure", sa.Text(), nullable=False),
        sa.Column("plan_reason", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text()),
        sa.Column("predicted_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reserved_mib", sa.BigInteger(), nullable=False),
        sa.Column("measured_bytes", sa.BigInteger(), nullable=False),
        sa.Column("extra_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_lost", sa.Integer(), nullable=False),
        sa.Column("num_oom", sa.Integer(), nullable=False),
        sa.Column("judged_step", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.UniqueConstraint("study_id", "number", name="uq_trials_study_number"),
    )
    op.create_index("ix_trials_state", "trials", ["state"])
    op.create_table(
        "attempts",
        sa.Column("trial_id", key, sa.ForeignKey("trials.id"), primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("mib_per_rank", sa.BigInteger(), nullable=False),
        sa.Column("predicted_bytes", sa.BigInteger(), nullable=False),
        sa.Column("measured_bytes", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(20)),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("placement_reason", sa.Text(), nullable=False),
        sa.Column("checkpoint_step", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("objective_seq", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_attempts_state", "attempts", ["state"])
    of_attempt = ["attempts.trial_id", "attempts.attempt"]
    op.create_table(
        "metrics",
        sa.Column("trial_id", key, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("values", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id", "attempt"], of_attempt, name="fk_metrics_attempt"),
    )
    op.create_index("ix_metrics_trial_step", "metrics", ["trial_id", "step"])
    op.create_table(
        "logs",
        sa.Column("id", key, primary_key=True),
        sa.Column("trial_id", key, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id", "attempt"], of_attempt, name="fk_logs_attempt"),
        sa.UniqueConstraint("trial_id", "attempt", "rank", "seq", name="uq_logs_line"),
    )
    op.create_index("ix_logs_trial", "logs", ["trial_id", "id"])
    op.create_table(
        "events",
        sa.Column("id", key, primary_key=True),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("study_id", key),
        sa.Column("trial_id", key),
        sa.Column("data", sa.Text(), nullable=False),
    )
    op.create_index("ix_events_study", "events", ["study_id", "id"])
    op.create_table(
        "cluster",
        sa.Column("id", sa.Integer(), sa.CheckConstraint("id = 1", name="ck_cluster_one_row"), primary_key=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("confirmed_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
    )
