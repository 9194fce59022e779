"""Adds the checkpoint that a trial continues from when it is a copy of another one."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("parent_id", "parent_number", "parent_step"):
        op.add_column("scamp_trials", sa.Column(name, sa.BigInteger()))
