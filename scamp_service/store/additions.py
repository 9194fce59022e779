"""Adds to a database the tables, columns and indexes that it lacks, with their defaults.

Most changes of the schema only add. So a database of an earlier state of the same revision is completed by comparing it
with ``schema``; what changes or removes something is a migration.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from scamp_service.store import schema


def additions(connection: sa.Connection) -> list[str]:
    """The statements that add what the database lacks; empty if it lacks nothing."""
    names = list(schema.metadata.tables)
    reflected = sa.inspect(connection).get_multi_columns(filter_names=names)
    columns = {table: {column["name"] for column in row} for (_, table), row in reflected.items()}
    return list(_additions(columns, connection.dialect))


def _additions(columns: dict[str, set[str]], dialect: sa.Dialect) -> Iterator[str]:
    for table in schema.metadata.sorted_tables:
        if table.name not in columns:
            yield str(CreateTable(table).compile(dialect=dialect))
            lacking = set(table.columns.keys())
        else:
            lacking = set(table.columns.keys()) - columns[table.name]
            for column in table.columns:
                if column.name in lacking:
                    yield _add_column(table.name, column, dialect)
        for index in table.indexes:
            if lacking.intersection(index.columns.keys()):
                yield str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect))


def _add_column(table: str, column: sa.Column[object], dialect: sa.Dialect) -> str:
    quote = dialect.identifier_preparer.quote
    statement = f"ALTER TABLE {quote(table)} ADD COLUMN {quote(column.name)} {column.type.compile(dialect)}"
    if isinstance(column.default, sa.ColumnDefault) and column.default.is_scalar:
        default = sa.literal(column.default.arg, column.type)
        statement += f" DEFAULT {default.compile(dialect=dialect, compile_kwargs={'literal_binds': True})}"
    return statement + ("" if column.nullable else " NOT NULL")
