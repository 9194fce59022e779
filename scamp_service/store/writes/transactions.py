"""Parts that all writes to the study database share: transactions that are fenced, events, and tallies.

An event is the last statement of its transaction (see ``Database.order_commits``), and tallies come just before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from scamp_service.errors import Deposed
from scamp_service.lifecycle import StudyState
from scamp_service.model import Attempt, Json
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.connected import Connected
from scamp_service.store.database import Database
from scamp_service.store.events import AttemptChange, Change, StudyChange, TrialChange
from scamp_service.store.tallies import COLOCATED, RANKS, difference, measure_trial, trial_tallies


class Transactions(Connected):
    """The parts of the store's writes that every group of methods uses."""

    def __init__(self, database: Database, fence: Json | None = None) -> None:
        """With a ``fence``, only the holder of that lease may write: see ``Leases.fenced``."""
        super().__init__(database)
        self._fence = fence or {}

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        """One transaction. Raises ``Deposed`` if this store is fenced and the lease has another holder."""
        with self._database.write() as connection:
            if self._fence and connection.execute(sql.HOLDS_LEASE, self._fence).first() is None:
                raise Deposed("another controller leads now")
            yield connection

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
        rows = connection.execute(queries.TRIAL_ATTEMPTS, {"trial_id": trial_id}).all()
        study_id = connection.execute(sql.STUDY_OF_TRIAL, {"id": trial_id}).scalar_one()
        row = {"trial_id": trial_id, "study_id": study_id, **asdict(measure_trial(Attempt(*row) for row in rows))}
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


def _data_of(change: Change) -> dict[str, Any]:
    return {name: _finite(getattr(change, name)) for name in change.__slots__}


def _finite(value: Any) -> Any:
    """``value`` with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
