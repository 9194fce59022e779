"""The tables of version 0.1.0, which ``store.schema`` creates in an empty database.

Until 0.1.0 is released a new column needs no migration: it stands in ``store.schema``, and databases of development
versions are not upgraded. From then on each change of the tables is a migration with the next number.
"""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: no older schema was ever released."""
