"""The real store on SQLite in memory, made cheap for many simulations in a row.

SQLAlchemy compiles each statement, once for all simulations, and its types convert the values. The driver is called
without SQLAlchemy's engine, which takes ten times as long as SQLite itself for rows as few as these; and what was read
is read again only after a write to one of its tables.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.sql import visitors

from scamp_service.store import schema
from scamp_service.store.database import Database
from scamp_service.store.store import Store

Convert = Callable[[Any], Any]
Given = Mapping[str, Any]


def empty_store() -> Store:
    """The one quick store of this process, without rows. Only one thread may use it."""
    store = _quick_store()
    store.quick_database.empty()
    return store


class QuickStore(Store):
    """A store on a ``QuickDatabase``."""

    def __init__(self) -> None:
        self.quick_database = QuickDatabase()
        self._compose(self.quick_database)


@cache
def _quick_store() -> QuickStore:
    return QuickStore()


@cache
def tables_of(statement: Any) -> Sequence[str]:
    """Tables that a statement reads or writes."""
    return sorted({table.name for table in visitors.iterate(statement) if isinstance(table, sa.Table)})


class QuickDatabase(Database):
    """A database in memory, with one connection and without locks."""

    _quick: QuickConnection | None = None  # while the schema is created

    def __init__(self) -> None:
        super().__init__("sqlite://")
        usual: Any = self.engine.connect()
        self._driver: sqlite3.Connection = usual.connection.driver_connection
        self.writes = Counter[str]()  # by table
        self._known: dict[Any, tuple[Sequence[int], Sequence[Any]]] = {}  # by query: when it was read, and its rows
        self._quick = QuickConnection(self.engine.dialect, self._driver, self.writes)
        self._filled = sorted(schema.metadata.tables)

    @contextmanager
    def write(self) -> Iterator[Any]:
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            yield self._quick
        except BaseException:
            self._driver.execute("ROLLBACK")
            raise
        self._driver.execute("COMMIT")

    @contextmanager
    def read(self) -> Iterator[Any]:
        if self._quick is None:
            with super().read() as usual:
                yield usual
        else:
            yield self._quick

    def rows(self, statement: sa.Select[Any], **values: Any) -> Sequence[Any]:
        if self._quick is None:
            return super().rows(statement, **values)
        key = statement, *[tuple(value) if type(value) is list else value for value in values.values()]
        now = [self.writes[table] for table in tables_of(statement)]
        entry = self._known.get(key)
        if entry is None or entry[0] != now:
            entry = self._known[key] = now, super().rows(statement, **values)
        return entry[1]

    def empty(self) -> None:
        """Delete every row; ids begin again."""
        self._known.clear()
        self._driver.execute("PRAGMA foreign_keys = OFF")
        for name in self._filled:
            self._driver.execute(f"DELETE FROM {name}")
        self._driver.execute("PRAGMA foreign_keys = ON")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A statement for parameters with certain names and numbers of elements."""

    sql: str
    written: str  # table
    constants: Sequence[Any]  # values of all placeholders; None for those of parameters
    parameters: Sequence[tuple[int, str, int | None, Convert | None]]  # placeholder, name, and which element of a list
    columns: SimpleResultMetaData
    converts: Sequence[tuple[int, Convert]]

    def values(self, parameters: Given) -> list[Any]:
        """The values of the placeholders."""
        values = list(self.constants)
        for place, name, index, convert in self.parameters:
            value = parameters[name] if index is None else parameters[name][index]
            values[place] = convert(value) if convert else value
        return values

    def rows(self, rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        """Rows as SQLAlchemy returns them."""
        for row in rows:
            values = list(row)
            for place, convert in self.converts:
                values[place] = convert(values[place])
            yield values


class QuickConnection:
    """``sqlalchemy.Connection.execute``. An error of SQLite fails an assert: no simulation is meant to have one."""

    def __init__(self, dialect: sa.Dialect, driver: sqlite3.Connection, writes: Counter[str]) -> None:
        self._dialect, self._driver, self._writes = dialect, driver, writes
        self._compiled: dict[Any, Compiled] = {}

    def execute(self, statement: Any, parameters: Given | Sequence[Given] = ()) -> sa.Result[Any]:
        if isinstance(parameters, Mapping):
            compiled = self._compile(statement, parameters)
            rows = self._run(compiled, parameters)
        else:
            compiled = self._compile(statement, parameters[0] if parameters else {})
            rows = [row for values in parameters or [{}] for row in self._run(compiled, values)]
        return IteratorResult(compiled.columns, compiled.rows(rows))

    def _run(self, compiled: Compiled, parameters: Given) -> list[Any]:
        self._writes[compiled.written] += 1
        try:
            return self._driver.execute(compiled.sql, compiled.values(parameters)).fetchall()
        except sqlite3.Error as error:
            raise AssertionError(f"{error}: {compiled.sql}") from error

    def _compile(self, statement: Any, parameters: Given) -> Compiled:
        key = statement, *parameters, *[len(value) for value in parameters.values() if type(value) is list]
        element = self._compiled.get(key)
        if element is None:
            element = self._compiled[key] = compile_for(statement, parameters, self._dialect)
        return element


def compile_for(statement: Any, params: Given, dialect: sa.Dialect) -> Compiled:
    """The statement for all parameters that have the names of these, and as many elements."""
    compiled: Any = statement.compile(dialect=dialect, column_keys=list(params))
    defaults = {column.key: column.default.arg for column in getattr(compiled, "insert_prefetch", ())}
    values = {name: bind.effective_value for name, bind in compiled.binds.items()} | defaults | dict(params)
    expanded = compiled._process_parameters_for_postcompile(dict(values))
    elements = {
        name: (parameter, index)
        for parameter, names in expanded.parameter_expansion.items()
        for index, name in enumerate(names)
    }
    converts = {**compiled._bind_processors, **expanded.processors}
    constants: list[Any] = []
    parameters: list[tuple[int, str, int | None, Convert | None]] = []
    for place, name in enumerate(expanded.positiontup):
        parameter, index = elements.get(name, (name, None))
        convert = converts.get(name)
        if parameter in params:
            constants.append(None)
            parameters.append((place, parameter, index, convert))
        else:
            constants.append(convert(values[parameter]) if convert else values[parameter])
    columns = compiled._result_columns
    results = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
    return Compiled(
        expanded.statement,
        "" if isinstance(statement, sa.Select) else statement.table.name,
        constants,
        parameters,
        SimpleResultMetaData([column.keyname for column in columns]),
        [(place, convert) for place, convert in enumerate(results) if convert],
    )
