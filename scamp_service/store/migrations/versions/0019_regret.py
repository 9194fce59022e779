"""Adds the bound on the regret of a study."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_studies", sa.Column("regret_bound", sa.Double()))
