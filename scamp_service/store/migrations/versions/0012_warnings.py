"""Adds what is doubtful about a study: parameters that its workload may not read, say."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("scamp_studies", sa.Column("warnings", sa.Text(), nullable=False, server_default="[]"))
