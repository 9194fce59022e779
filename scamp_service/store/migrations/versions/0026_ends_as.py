"""Adds the final state of a study that is STOPPING. Studies that stop now end as if a user had stopped them."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_studies", sa.Column("ends_as", sa.String(20)))
