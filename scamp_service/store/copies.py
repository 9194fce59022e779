"""Copies a whole study database: into a SQLite file while others write, and from such a file into an empty database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from scamp_service.errors import Conflict, Unavailable
from scamp_service.settings import sqlite_url
from scamp_service.store import schema
from scamp_service.store.database import Database

ROWS_AT_ONCE = 1000


def write_copy(url: str, file: Path) -> None:
    """Write the database as it is at one moment into a new SQLite file. Raises ``Unavailable``.

    SQLite copies its own pages. Rows of PostgreSQL, which must have the schema of this version, are copied table by
    table.
    """
    with closing(Database(url, may_change=False)) as source:
        if not source.sqlite and not source.has_tables():
            raise Unavailable(f"the study database {source.name} is not of this version: start this ScaMP once with it")
        with closing(sqlite3.connect(file)) as copy:
            file.chmod(0o600)
            if source.sqlite:
                with source.read() as connection:
                    driver: Any = connection.connection.driver_connection
                    driver.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
                return
        with closing(Database(sqlite_url(file))) as target:
            _copy_rows(source, target)


def read_copy(file: Path, url: str) -> None:
    """Store all rows of a file of ``write_copy`` in an empty database, all or none.

    Raises ``Conflict`` if the database has rows, and ``Unavailable``.
    """
    with closing(Database(sqlite_url(file))) as source, closing(Database(url)) as target:
        _copy_rows(source, target)


def _copy_rows(source: Database, target: Database) -> None:
    with source.engine.connect() as reading, target.write() as writing:
        if not source.sqlite:
            reading = reading.execution_options(isolation_level="REPEATABLE READ")
        if any(writing.execute(sa.select(table).limit(1)).first() for table in schema.metadata.sorted_tables):
            raise Conflict(f"the study database {target.name} is not empty: name another with SCAMP_DATABASE_URL")
        for table in schema.metadata.sorted_tables:
            rows = reading.execution_options(stream_results=True).execute(sa.select(table)).mappings()
            for part in rows.partitions(ROWS_AT_ONCE):
                writing.execute(sa.insert(table), [dict(row) for row in part])
            if not target.sqlite:
                _continue_numbers(writing, table)


def _continue_numbers(connection: sa.Connection, table: sa.Table) -> None:
    """Let PostgreSQL count on from the largest number of a table that it numbers itself."""
    column = table.autoincrement_column
    if column is not None:
        connection.exec_driver_sql(
            f"SELECT setval(sequence, largest) FROM (SELECT pg_get_serial_sequence('{table.name}', '{column.name}') AS "
            f"sequence, (SELECT max({column.name}) FROM {table.name}) AS largest) AS both_of_them "
            "WHERE sequence IS NOT NULL AND largest IS NOT NULL"
        )
