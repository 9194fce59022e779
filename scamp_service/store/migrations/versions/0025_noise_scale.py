"""Adds the noise scale of a trial's gradient, by which its batch may grow. Trials that exist have none yet."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_trials", sa.Column("noise_scale", sa.Double()))
