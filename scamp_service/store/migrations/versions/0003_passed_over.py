"""Adds the count of later trials that began while a trial was queued. Trials that wait now are counted from zero."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("passed_over", sa.Integer(), nullable=False, server_default="0"))
