"""Names the number of a leader its term, as Raft does; an epoch is a pass of a training over its samples."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("scamp_leases", "epoch", new_column_name="term")
