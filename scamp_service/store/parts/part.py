"""The base of the parts of the store: how one reads rows as values, and writes in transactions that are fenced.

An event is the last statement of its transaction (see ``Database.order_commits``), and tallies come just before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import Any, TypeVar

import sqlalchemy as sa

from scamp_service.access.model import Actor
from scamp_service.errors import Deposed, NotFound
from scamp_service.lifecycle import StudyState
from scamp_service.model import Attempt, Json
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.database import Database
from scamp_service.store.events import AttemptChange, Change, StudyChange, TrialChange
from scamp_service.store.rows import values_of
from scamp_service.store.tallies import COLOCATED, RANKS, difference, measure_trial, trial_tallies

Value = TypeVar("Value")

_RECORD = sa.insert(schema.audit)


class Part:
    """A part of the store, which reads. Its methods raise ``Unavailable`` when the database cannot be used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _all(self, kind: Callable[..., Value], statement: sa.Select[Any], **values: Any) -> list[Value]:
        """The value of each row, whose columns are called like the arguments of ``kind``."""
        return values_of(kind, self._rows(statement, **values))

    def _first(self, kind: Callable[..., Value], statement: sa.Select[Any], **values: Any) -> Value | None:
        """The value of the first row; None if there is none."""
        return next(iter(self._all(kind, statement, **values)), None)

    def _by_ids(self, statement: sa.Select[Any], trial_ids: Sequence[int], **values: Any) -> Sequence[Any]:
        """Rows of a statement with the parameter ``trial_ids``, a part of them at a time."""
        return [row for ids in in_parts(trial_ids) for row in self._rows(statement, trial_ids=ids, **values)]

    def _row(self, statement: sa.Select[Any], **values: Any) -> Any:
        """The first row; None if there is none."""
        return next(iter(self._rows(statement, **values)), None)

    def _value(self, statement: sa.Select[Any], **values: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        return next(iter(self._values(statement, **values)), None)

    def _values(self, statement: sa.Select[Any], **values: Any) -> list[Any]:
        """The first column of every row."""
        return [row[0] for row in self._rows(statement, **values)]

    def _rows(self, statement: sa.Select[Any], **values: Any) -> Sequence[Any]:
        return self._database.rows(statement, **values)


class WritingPart(Part):
    """A part of the store that also writes."""

    def __init__(self, database: Database, fence: Json | None = None, actor: Actor | None = None) -> None:
        """With a ``fence``, only the holder of that lease may write: see ``Store.fenced``.

        The changes that an ``actor`` asks for are recorded in the audit log: see ``Store.acting``.
        """
        super().__init__(database)
        self._fence, self._actor = fence or {}, actor

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        """One transaction. Raises ``Deposed`` if this store is fenced and the lease has another holder."""
        with self._database.write() as connection:
            if self._fence and connection.execute(sql.HOLDS_LEASE, self._fence).first() is None:
                raise Deposed("another controller leads now")
            yield connection

    def _record(self, connection: sa.Connection, action: str, study_id: int | None = None, **detail: Any) -> None:
        """Write to the audit log what is about to be committed for an actor; events come after it."""
        if self._actor:
            row = {"time": time.time(), "actor": self._actor.name, "address": self._actor.address}
            connection.execute(_RECORD, {**row, "action": action, "study_id": study_id, "detail": detail})

    def _tally(
        self, connection: sa.Connection, study_id: int, changes: Mapping[str, float], is_largest: bool = False
    ) -> None:
        """Add to the tallies of a study, or raise them (``is_largest``). Only events may be written after that."""
        if changes:
            self._database.order_commits(connection)  # otherwise two transactions could wait for each other's tallies
            rows = [{"study_id": study_id, "name": name, "num": changes[name]} for name in sorted(changes)]
            connection.execute(sql.tally(self._database.sqlite, is_largest), rows)

    def _tally_move(self, connection: sa.Connection, before: Any, moved: Any) -> None:
        self._tally(connection, moved.study_id, difference(trial_tallies(before), trial_tallies(moved)))

    def _tally_gang(self, connection: sa.Connection, study_id: int, attempt: Attempt) -> None:
        """Count the ranks of a new attempt instead of the last one's, and the gangs that now share its devices."""
        keys = {"trial_id": attempt.trial_id, "attempt": attempt.attempt - 1}
        last = connection.execute(sql.LAST_CHOICE, keys).scalar()
        before = {f"{RANKS}{last.plan.world_size}": 1} if last else {}
        self._tally(connection, study_id, difference(before, {f"{RANKS}{attempt.plan.world_size}": 1}))
        open_gangs = connection.execute(sql.OPEN_ON_STUDY, {"study_id": study_id}).scalars().all()
        most = max((sum(device in gang for gang in open_gangs) for device in attempt.devices), default=0)
        self._tally(connection, study_id, {COLOCATED: float(most)}, is_largest=True)

    def _measure(self, connection: sa.Connection, trial_id: int) -> None:
        """Keep what the attempts of a trial measured, after one of them has changed."""
        attempts = values_of(Attempt, connection.execute(queries.TRIAL_ATTEMPTS, {"trial_id": trial_id}).all())
        study_id = connection.execute(sql.STUDY_OF_TRIAL, {"id": trial_id}).scalar_one()
        row = {"trial_id": trial_id, "study_id": study_id, **asdict(measure_trial(attempts))}
        connection.execute(self._replace(schema.measured, "trial_id"), row)

    def _insert_new(self, table: sa.Table, *unique: str, returns: str = "") -> Any:
        return sql.insert_new(self._database.sqlite, table, unique, returns)

    def _replace(self, table: sa.Table, key: str) -> Any:
        return sql.replace(self._database.sqlite, table, key)

    def _emit_study(
        self, connection: sa.Connection, study_id: int, name: str, state: StudyState, *, now: float
    ) -> None:
        self._emit(connection, StudyChange(study_id, name, state), now, study_id)

    def _emit_trial(self, connection: sa.Connection, trial_id: int, moved: Any, now: float) -> None:
        values = {name: getattr(moved, name) for name in TrialChange.__slots__ if name != "id"}
        self._emit(connection, TrialChange(trial_id, **values), now, moved.study_id, trial_id)

    def _emit_attempt(
        self,
        connection: sa.Connection,
        trial_id: int,
        attempt: int,
        moved: Any,
        now: float,
        study_id: int | None = None,
    ) -> None:
        mib_per_rank = moved.choice.prediction.reserved_mib
        change = AttemptChange(trial_id, attempt, moved.state, moved.devices, mib_per_rank, moved.outcome, moved.detail)
        self._emit(connection, change, now, study_id, trial_id)

    def _emit(
        self,
        connection: sa.Connection,
        change: Change,
        now: float,
        study_id: int | None = None,
        trial_id: int | None = None,
    ) -> None:
        """Write an event. It must be the last statement of its transaction: see ``Database.order_commits``.

        With ``trial_id`` alone, the study is that of the trial.
        """
        self._database.order_commits(connection)
        row = {"time": now, "kind": change.kind, "trial_id": trial_id, "data": _data_of(change)}
        if trial_id is not None and study_id is None:
            connection.execute(sql.INSERT_TRIAL_EVENT, {**row, "_trial_id": trial_id})
        else:
            connection.execute(sql.INSERT_EVENT, {**row, "study_id": study_id})

    def _emit_trials(
        self, connection: sa.Connection, changes: Iterable[TrialChange], now: float, study_id: int
    ) -> None:
        self._database.order_commits(connection)
        rows = [
            {"time": now, "kind": change.kind, "study_id": study_id, "trial_id": change.id, "data": _data_of(change)}
            for change in changes
        ]
        connection.execute(sql.INSERT_EVENT, rows)


def no_study(study_id: int) -> NotFound:
    """The error of a study that does not exist, to be raised."""
    return NotFound(f"there is no study {study_id}; `scamp list` shows all studies")


def in_parts(values: Sequence[int]) -> Iterator[list[int]]:
    """Yield the values in parts that a statement can take: 65,535 parameters for PostgreSQL, 32,766 for SQLite."""
    for start in range(0, len(values), 1000):
        yield list(values[start : start + 1000])


State = TypeVar("State", bound=StrEnum)


def legal_states(moves: Mapping[State, frozenset[State]], expected: Iterable[State], to: State) -> tuple[State, ...]:
    """The states of ``expected`` that may become ``to``. An assert fails when there is none."""
    expected = sorted(expected)
    states = tuple(state for state in expected if to in moves[state])
    assert states, f"there is no move from {expected} to {to}"
    return states


def underscored(values: Mapping[str, Any]) -> dict[str, Any]:
    """The names with a leading underscore, as parameters of an UPDATE: see ``statements``."""
    return {f"_{name}": value for name, value in values.items()}


def _data_of(change: Change) -> dict[str, Any]:
    return {name: _finite(getattr(change, name)) for name in change.__slots__}


def _finite(value: Any) -> Any:
    """``value`` with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
