"""Adds what a trial waits for. Where decisions depend on it, it follows from the reason of trials that exist."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_KNOWN = (
    ("WAITING", "waits for its plan%", "PLAN"),
    ("QUEUED", "waits until every candidate is predicted%", "PREDICTIONS"),
    ("QUEUED", "waits for the quota of its project%", "QUOTA"),
    ("PAUSED", "%until it is compared with the others there", "COMPARISON"),
)


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("waits_for", sa.String(20)))
    trials = sa.table("scamp_trials", sa.column("state"), sa.column("reason"), sa.column("waits_for"))
    for state, reason, waits_for in _KNOWN:
        waiting = sa.update(trials).where(trials.c.state == state, trials.c.reason.like(reason))
        op.execute(waiting.values(waits_for=waits_for))
