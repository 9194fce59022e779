"""Gives all tables and indexes the prefix ``scamp_``, so that another program can keep its own in the same database.

Optuna's storage, opened on a database of ScaMP, has created tables that refer to columns of ``studies`` and ``trials``
which do not exist there. SQLite then refuses every write to these two. They are always empty, so they are dropped.
"""

import logging

import sqlalchemy as sa
from alembic import op

from scamp_service.errors import Unavailable

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TABLES = (
    "blobs", "studies", "trials", "tallies", "measured", "comparisons", "attempts", "metrics", "logs", "events",
    "cluster", "leases", "identity",
)  # fmt: skip
UNIQUE = ("uq_trials_study_number", "uq_logs_line")  # SQLite cannot rename a constraint

log = logging.getLogger("scamp.store")


def upgrade() -> None:
    connection = op.get_bind()
    _drop_broken_tables(connection)
    for table in TABLES:
        op.rename_table(table, f"scamp_{table}")
    if connection.dialect.name == "postgresql":
        _rename_on_postgresql(connection)
    else:
        _rename_indexes(connection)


def _drop_broken_tables(connection: sa.Connection) -> None:
    """Drop empty tables of other programs with references to columns that our tables do not have."""
    inspector = sa.inspect(connection)
    columns = {table: {column["name"] for column in inspector.get_columns(table)} for table in TABLES}
    broken = [
        table
        for table in inspector.get_table_names()
        if table not in TABLES
        and any(
            key["referred_table"] in TABLES and not set(key["referred_columns"]) <= columns[key["referred_table"]]
            for key in inspector.get_foreign_keys(table)
        )
    ]
    filled = [
        table for table in broken if connection.execute(sa.select(sa.literal(1)).select_from(sa.table(table))).first()
    ]
    if filled:
        raise Unavailable(
            f"other tables of the study database refer to columns of ScaMP's tables that do not exist, so that nothing "
            f"can be written: {', '.join(filled)}; move what they hold to another database, drop them, and start again"
        )
    for table in broken:
        op.drop_table(table)
    if broken:
        log.warning("dropped empty tables of another program that made every write fail: %s", ", ".join(broken))


def _rename_on_postgresql(connection: sa.Connection) -> None:
    """Rename indexes, also of primary keys, and sequences: their names are unique in the whole schema, too."""
    names = connection.exec_driver_sql(
        "SELECT one.relname, own.relname FROM pg_depend JOIN pg_class AS one ON one.oid = pg_depend.objid"
        " JOIN pg_class AS own ON own.oid = pg_depend.refobjid WHERE one.relkind = 'S' AND"
        " own.relnamespace = current_schema()::regnamespace"
        " UNION SELECT one.relname, own.relname FROM pg_index JOIN pg_class AS one ON one.oid = indexrelid"
        " JOIN pg_class AS own ON own.oid = indrelid WHERE own.relnamespace = current_schema()::regnamespace"
    ).all()
    for name, table in names:
        old = table.removeprefix("scamp_")
        if old in TABLES and old != table and name not in UNIQUE:
            kind = "SEQUENCE" if name.endswith("_seq") else "INDEX"
            op.execute(f"ALTER {kind} {name} RENAME TO {name.replace(old, table, 1)}")


def _rename_indexes(connection: sa.Connection) -> None:
    """Make the indexes again with other names, which is how SQLite renames one."""
    indexes = connection.exec_driver_sql(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name LIKE 'scamp_%'"
    ).all()
    for name, statement in indexes:
        op.execute(f"DROP INDEX {name}")
        op.execute(statement.replace(f"INDEX {name}", f"INDEX {name.replace('ix_', 'ix_scamp_', 1)}", 1))
