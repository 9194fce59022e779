"""A group of the store's methods over its database: what all groups need to read rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from scamp_service.errors import NotFound
from scamp_service.store import queries as sql
from scamp_service.store.database import Database


class Connected:
    """Base of the groups. Their methods raise ``Unavailable`` when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> float:
        """Seconds since the epoch by the one clock of all hosts: that of PostgreSQL. SQLite is on one host anyway."""
        return time.time() if self._database.sqlite else float(self._value(sql.CLOCK))

    def _by_ids(self, statement: sa.Select[Any], trial_ids: Sequence[int], **values: Any) -> Sequence[Any]:
        """Rows of a statement with the parameter ``trial_ids``, a part of them at a time."""
        rows: list[Any] = []
        for ids in in_parts(trial_ids):
            rows += self._rows(statement, trial_ids=ids, **values)
        return rows

    def _row(self, statement: sa.Select[Any], **values: Any) -> Any:
        """The first row; None if there is none."""
        return next(iter(self._rows(statement, **values)), None)

    def _value(self, statement: sa.Select[Any], **values: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        row = self._row(statement, **values)
        return None if row is None else row[0]

    def _values(self, statement: sa.Select[Any], **values: Any) -> list[Any]:
        """The first column of every row."""
        return [row[0] for row in self._rows(statement, **values)]

    def _rows(self, statement: sa.Select[Any], **values: Any) -> Sequence[Any]:
        with self._database.read() as connection:
            return connection.execute(statement, values).all()


def no_study(study_id: int) -> NotFound:
    """The error of a study that does not exist, to be raised."""
    return NotFound(f"there is no study {study_id}; `scamp list` shows all studies")


def in_parts(values: Sequence[int]) -> Iterator[list[int]]:
    """Yield the values in parts that a statement can take: 65,535 parameters for PostgreSQL, 32,766 for SQLite."""
    for start in range(0, len(values), 1000):
        yield list(values[start : start + 1000])
