"""The tables of version 0.1.0, which ``store.schema`` creates in an empty database.

Each later change of the tables is a migration with the next number.
"""

revision = "0.1.0"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: no older schema was ever released."""
