"""Adds how long a study has run. For earlier studies that is the time until their end or newest event."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_studies", sa.Column("ran_seconds", sa.Double(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE scamp_studies SET ran_seconds = coalesce(finished_at, (SELECT max(time) FROM scamp_events"
        " WHERE scamp_events.study_id = scamp_studies.id), created_at) - created_at"
    )
    op.execute("UPDATE scamp_studies SET ran_seconds = 0 WHERE ran_seconds < 0")
