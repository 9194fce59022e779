"""Trials that other programs create, run and end through Optuna, and what Optuna stores beside them.

Their studies are in ``external_studies``. A trial of ScaMP's own is never changed here. ``exchange.optuna_storage``
translates between these methods and Optuna; nothing here imports it. Distributions are texts, as Optuna writes them.
Attributes are any values of Python's JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import bindparam, select

from scamp_service.errors import Conflict, NotFound
from scamp_service.lifecycle import LIVE_TRIALS, Origin, StudyState, TrialState
from scamp_service.model import Json, Sized
from scamp_service.store import schema
from scamp_service.store import statements as sql
from scamp_service.store.events import NewMetrics, TrialChange
from scamp_service.store.parts.external_studies import ExternalStudies, exists
from scamp_service.store.parts.part import no_study
from scamp_service.store.tallies import EXTERNAL

RUN_BY_OTHERS = "created and run by another program, through Optuna"
"""The reason of an external trial."""
METRIC = "value"
"""Name of the objective in a study that Optuna has created."""

Searched = Mapping[str, tuple[float, str]]
"""Parameter → Optuna's number for its value, and its distribution."""

_S, _T, _X = schema.studies, schema.trials, schema.external_trials


@dataclass(frozen=True, slots=True)
class NewTrial:
    """An external trial to create. Times are seconds since the epoch; ``values`` has one for each objective."""

    state: TrialState
    params: Json = field(default_factory=dict)
    searched: Searched = field(default_factory=dict)
    values: Sequence[float] | None = None
    reports: Mapping[int, float] = field(default_factory=dict)
    user_attributes: Json = field(default_factory=dict)
    system_attributes: Json = field(default_factory=dict)
    started_at: float | None = None
    finished_at: float | None = None
    reason: str = RUN_BY_OTHERS


@dataclass(frozen=True, slots=True)
class Changes:
    """Parameters and attributes of an external trial that are written together.

    Parameter → its value, Optuna's number for it, and its distribution. (whether it is Optuna's own, name) → value.
    """

    params: dict[str, tuple[Any, float, str]] = field(default_factory=dict)
    attributes: dict[tuple[bool, str], Any] = field(default_factory=dict)


class OptunaTrialRow(NamedTuple):
    """A trial of any origin in the columns that Optuna needs.

    ``searched`` is None unless it is external, and ``params`` is None if it is.
    """

    id: int
    number: int
    state: TrialState
    origin: Origin
    reason: str
    value: float | None
    step: int
    started_at: float | None
    finished_at: float | None
    sized: Sized | None
    measured_bytes: int
    params: Json | None
    searched: Searched | None
    values: Sequence[float] | None


_JSON = {"params": _T.c.params, "searched": _X.c.searched, "objectives": _X.c["values"]}
_PLAIN = tuple(name for name in OptunaTrialRow._fields if name not in ("params", "searched", "values"))
_SEEN = select(
    *(_T.c[name] for name in _PLAIN), *(sa.type_coerce(column, sa.Text).label(name) for name, column in _JSON.items())
).outerjoin(_X, _X.c.trial_id == _T.c.id)
_is_newer = sa.and_(_T.c.study_id == bindparam("study_id"), _T.c.id > bindparam("after"))
_NEWER = _SEEN.where(_is_newer, _T.c.state != TrialState.DELETED).order_by(_T.c.id)
_CHOSEN = _SEEN.where(_T.c.id.in_(bindparam("trial_ids", expanding=True))).order_by(_T.c.id)
_WHERE = select(_T.c.study_id, _T.c.number).join(_S, _S.c.id == _T.c.study_id).where(_T.c.id == bindparam("id"), exists)
_HELD = (
    select(*sql.COUNTED, _T.c.study_id, _T.c.number, _X.c.searched)
    .join(_S, _S.c.id == _T.c.study_id)
    .outerjoin(_X, _X.c.trial_id == _T.c.id)
    .where(_T.c.id == bindparam("id"), exists)
    .with_for_update(of=_T)
)
_MOVE = (
    sa.update(_T)
    .where(_T.c.id == bindparam("_id"))
    .values({name: bindparam(f"_{name}") for name in ("state", "value", "values", "started_at", "finished_at")})
    .returning(*sql.TRIAL_EVENT)
)
_STORED = select(_T.c.value, _T.c["values"].label("every"), _T.c.started_at).where(_T.c.id == bindparam("id"))
_SET_PARAMS = sa.update(_T).where(_T.c.id == bindparam("_id")).values(params=bindparam("_params"))
_PARAMS = select(_T.c.params).where(_T.c.id == bindparam("id"))
_SET_REPORTED = sa.update(_T).where(_T.c.id == bindparam("_id")).values(step=bindparam("_step"), value=bindparam("_v"))
_SET_X = {
    name: sa.update(_X).where(_X.c.trial_id == bindparam("_id")).values({name: bindparam("_x", type_=_X.c[name].type)})
    for name in ("searched", "values", "heartbeat_at")
}
_STALE = (
    select(_T.c.id)
    .join(_X, _X.c.trial_id == _T.c.id)
    .where(_T.c.study_id == bindparam("study_id"), _T.c.state == TrialState.RUNNING)
    .where(_X.c.heartbeat_at < bindparam("before", type_=_X.c.heartbeat_at.type))
    .order_by(_T.c.id)
)
_R = schema.external_reports
_REPORTS = (
    select(_R.c.trial_id, _R.c.step, _R.c.value)
    .where(_R.c.trial_id.in_(bindparam("trial_ids", expanding=True)))
    .order_by(_R.c.trial_id, _R.c.step)
)
_TA = schema.trial_attributes
_ATTRIBUTES = select(_TA.c.trial_id, _TA.c.is_system, _TA.c.name, _TA.c.value).where(
    _TA.c.trial_id.in_(bindparam("trial_ids", expanding=True))
)


class External(ExternalStudies):
    """The methods for studies and trials of other programs."""

    def create_trials(self, study_id: int, trials: Sequence[NewTrial], *, now: float) -> list[int]:
        """Create trials with the next numbers of the study, and return their ids. Raises ``NotFound``.

        A trial without ``started_at`` that runs has started ``now``.
        """
        ids: list[int] = []
        with self._write() as connection:
            state = connection.execute(sql.LOCK_STUDY, {"study_id": study_id}).scalar()
            if state is None or state is StudyState.DELETED:
                raise no_study(study_id)
            first = int(connection.execute(sql.NEXT_NUMBER, {"study_id": study_id}).scalar_one())
            new: list[TrialChange] = []
            for number, trial in enumerate(trials, first):
                row = _row(study_id, number, trial, now)
                ids.append(int(connection.execute(sa.insert(_T).returning(_T.c.id), row).scalar_one()))
                values = {name: row[name] for name in ("number", "state", "step", "value", "reason")}
                new.append(TrialChange(ids[-1], attempt=0, parent_number=None, **values))
            self._insert_details(connection, ids, trials, now)
            changes: dict[str, float] = {}
            for trial in trials:
                name = EXTERNAL + trial.state.value
                changes[name] = changes.get(name, 0.0) + 1.0
            self._tally(connection, study_id, changes)
            if new:
                self._emit_trials(connection, new, now, study_id)
        return ids

    def _insert_details(
        self, connection: sa.Connection, ids: Sequence[int], trials: Sequence[NewTrial], now: float
    ) -> None:
        details, reports, attributes = list[Any](), list[Any](), list[Any]()
        for trial_id, trial in zip(ids, trials, strict=True):
            values = None if trial.values is None else list(trial.values)
            details.append({"trial_id": trial_id, "searched": dict(trial.searched), "values": values})
            reports += [
                {"trial_id": trial_id, "step": step, "value": value, "time": now}
                for step, value in trial.reports.items()
            ]
            attributes += [
                {"trial_id": trial_id, "is_system": is_system, "name": name, "value": value}
                for is_system, pairs in ((False, trial.user_attributes), (True, trial.system_attributes))
                for name, value in pairs.items()
            ]
        for table, rows in ((_X, details), (_R, reports), (_TA, attributes)):
            if rows:
                connection.execute(sa.insert(table), rows)

    def move_trial(
        self,
        trial_id: int,
        to: TrialState,
        values: Sequence[float] | None = None,
        changes: Changes | None = None,
        *,
        now: float,
    ) -> bool:
        """Move an external trial to ``to`` with its ``values`` and other ``changes``; False if it already runs.

        Raises ``NotFound``, and ``Conflict`` if it has ended or is run by ScaMP. To begin a trial of ScaMP is also
        False: somebody else has begun it.
        """
        with self._write() as connection:
            before = self._hold(connection, trial_id, begins=to is TrialState.RUNNING)
            if before is None or (to is TrialState.RUNNING and before.state is not TrialState.WAITING):
                return False
            self._change(connection, trial_id, before, changes)
            stored = connection.execute(_STORED, {"id": trial_id}).one()
            columns = {
                "_state": to,
                "_value": stored.value if values is None else float(values[0]),
                "_values": stored.every if values is None else several(values),
                "_started_at": now if to is TrialState.RUNNING else stored.started_at,
                "_finished_at": None if to in LIVE_TRIALS else now,
            }
            moved = connection.execute(_MOVE, {"_id": trial_id, **columns}).one()
            if values is not None:
                connection.execute(_SET_X["values"], {"_id": trial_id, "_x": [float(value) for value in values]})
            self._tally_move(connection, before, moved)
            self._emit_trial(connection, trial_id, moved, now)
        return True

    def change_trial(self, trial_id: int, changes: Changes) -> None:
        """Set parameters and attributes. Raises ``NotFound`` and ``Conflict``."""
        with self._write() as connection:
            self._change(connection, trial_id, self._hold(connection, trial_id), changes)

    def report(
        self, trial_id: int, step: int, value: float, changes: Changes | None = None, *, metric: str, now: float
    ) -> None:
        """Store the objective, called ``metric``, at a step, and ``changes``. Raises ``NotFound`` and ``Conflict``."""
        statement = sql.upsert(self._database.sqlite, _R)
        with self._write() as connection:
            held = self._hold(connection, trial_id)
            self._change(connection, trial_id, held, changes)
            connection.execute(statement, {"trial_id": trial_id, "step": step, "value": value, "time": now})
            connection.execute(_SET_REPORTED, {"_id": trial_id, "_step": step, "_v": value})
            self._emit(connection, NewMetrics(trial_id, step, {metric: value}), now, held.study_id, trial_id)

    def _change(self, connection: sa.Connection, trial_id: int, held: Any, changes: Changes | None) -> None:
        if changes is None:
            return
        if changes.params:
            params = dict(connection.execute(_PARAMS, {"id": trial_id}).scalar_one())
            searched = dict(held.searched)
            for name, (value, number, distribution) in changes.params.items():
                params[name], searched[name] = finite(value), [number, distribution]
            connection.execute(_SET_PARAMS, {"_id": trial_id, "_params": params})
            connection.execute(_SET_X["searched"], {"_id": trial_id, "_x": searched})
        if changes.attributes:
            rows = [
                {"trial_id": trial_id, "is_system": is_system, "name": name, "value": value}
                for (is_system, name), value in changes.attributes.items()
            ]
            connection.execute(sql.upsert(self._database.sqlite, _TA), rows)

    def record_heartbeat(self, trial_id: int) -> None:
        """Note that the program that runs an external trial lives."""
        now = self._database.now()
        with self._write() as connection:
            connection.execute(_SET_X["heartbeat_at"], {"_id": trial_id, "_x": now})

    def stale_trials(self, study_id: int, grace_seconds: float) -> list[int]:
        """Ids of running external trials whose last heartbeat is older than this."""
        return self._values(_STALE, study_id=study_id, before=self._database.now() - grace_seconds)

    def _hold(self, connection: sa.Connection, trial_id: int, *, begins: bool = False) -> Any:
        """The trial, which nobody else changes before the end of the transaction.

        None if it ``begins`` and is one of ScaMP's. Raises ``NotFound``, and ``Conflict`` if it may not be changed.
        """
        held = connection.execute(_HELD, {"id": trial_id}).first()
        if held is None:
            raise NotFound(f"there is no trial with id {trial_id}")
        if held.state not in LIVE_TRIALS:
            raise Conflict(f"trial {held.number} has already ended, and is not changed any more")
        if held.origin is Origin.EXTERNAL:
            return held
        if begins:
            return None
        raise Conflict(f"trial {held.number} is run by ScaMP; other programs cannot change it")

    # --- reads -------------------------------------------------------------------------------------------------

    def seen_trials(self, study_id: int, *, after: int = 0, trial_ids: Sequence[int] = ()) -> list[OptunaTrialRow]:
        """The study's trials with id > ``after``, and those with ``trial_ids``, each group by id."""
        rows = list(self._by_ids(_CHOSEN, trial_ids)) if trial_ids else []
        rows += self._rows(_NEWER, study_id=study_id, after=after)
        texts = [  # searched has params, too
            text or "null"
            for row in rows
            for text in (row.params if row.searched is None else None, row.searched, row.objectives)
        ]
        parsed = iter(json.loads(f"[{','.join(texts)}]"))  # faster than each alone
        return [
            OptunaTrialRow(
                **{name: getattr(row, name) for name in _PLAIN},
                params=next(parsed),
                searched=next(parsed),
                values=next(parsed),
            )
            for row in rows
        ]

    def reports(self, trial_ids: Sequence[int]) -> dict[int, dict[int, float]]:
        """External trial → step → objective."""
        curves: dict[int, dict[int, float]] = {}
        for row in self._by_ids(_REPORTS, trial_ids):
            curves.setdefault(row.trial_id, {})[row.step] = row.value
        return curves

    def trial_attributes(self, trial_ids: Sequence[int]) -> dict[tuple[int, bool], dict[str, Any]]:
        """(external trial, whether they are Optuna's own) → its attributes; without those that have none."""
        attributes: dict[tuple[int, bool], dict[str, Any]] = {}
        for row in self._by_ids(_ATTRIBUTES, trial_ids):
            attributes.setdefault((row.trial_id, row.is_system), {})[row.name] = row.value
        return attributes

    def place_of(self, trial_id: int) -> tuple[int, int]:
        """The study of a trial, and its number. Raises ``NotFound``."""
        row = self._row(_WHERE, id=trial_id)
        if row is None:
            raise NotFound(f"there is no trial with id {trial_id}")
        return row.study_id, row.number


def _row(study_id: int, number: int, trial: NewTrial, now: float) -> dict[str, Any]:
    """The row of ``trials`` for an external trial."""
    value, step = trial.values[0] if trial.values else None, max(trial.reports, default=0)
    if value is None and trial.reports:
        value = trial.reports[step]
    is_running = trial.state is TrialState.RUNNING
    return {
        "study_id": study_id,
        "number": number,
        "state": trial.state,
        "origin": Origin.EXTERNAL,
        "params": finite(trial.params),
        "reason": trial.reason,
        "value": None if value is None else float(value),
        "values": several(trial.values),
        "step": step,
        "created_at": now if trial.started_at is None else trial.started_at,
        "started_at": now if trial.started_at is None and is_running else trial.started_at,
        "finished_at": None if trial.state in LIVE_TRIALS else now if trial.finished_at is None else trial.finished_at,
    }


def several(values: Sequence[float] | None) -> list[float] | None:
    """The values of a trial if they are those of several objectives."""
    return [float(value) for value in values] if values is not None and len(values) > 1 else None


def finite(value: Any) -> Any:
    """``value`` with NaN and infinity in it as texts: parameters and spaces are stored as JSON, which has neither."""
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
