"""What is read from the study database: by the decisions, the API and the dashboard. ``store.Store`` adds the writes.

Lists come in pages by ascending id: pass the last id seen as ``after``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Literal, cast

import sqlalchemy as sa
from sqlalchemy import bindparam, func, select

from estimators.learning import Ending, Run
from estimators.model import MIB
from placement.packing.packer import Start
from scamp_service.errors import NotFound
from scamp_service.lifecycle import LIVE_STUDIES, LIVE_TRIALS, OPEN_ATTEMPTS, Outcome, TrialState
from scamp_service.model import Attempt, Event, Json, LogLine, Metric, Study, Totals, Trial
from scamp_service.store import schema
from scamp_service.store.database import Database
from scamp_service.store.rows import attempt_of, select_attempts, select_trials, trial_of
from scamp_service.store.schema import one_of

_trials, _attempts, _metrics = schema.trials, schema.attempts, schema.metrics


class Reads:
    def __init__(self, database: Database) -> None:
        self._database = database

    # --- studies -----------------------------------------------------------------------------------------------

    def study(self, study_id: int) -> Study:
        """Raises ``NotFound``."""
        rows = self._rows(_ONE_STUDY, id=study_id)
        if not rows:
            raise NotFound(f"there is no study {study_id}; `scamp list` shows those that exist")
        return Study(*rows[0])

    def studies(
        self, *, after: int = 0, limit: int = 100, live: bool = False, newest_first: bool = False
    ) -> list[Study]:
        """By ascending id, those with id > ``after``; ``live`` keeps RUNNING and STOPPING.

        ``newest_first``: by descending id, those with id < ``after`` (0: from the newest).
        """
        return [Study(*row) for row in self._rows(_studies(live, newest_first, after > 0), after=after, limit=limit)]

    def trial_counts(self, study_id: int) -> dict[TrialState, int]:
        """Only the states that occur."""
        return dict(self._rows(_TRIAL_COUNTS, study_id=study_id))

    def study_totals(self) -> Totals:
        """Over all studies."""
        studies, trials = dict(self._rows(_STUDY_TOTALS)), dict(self._rows(_TRIAL_TOTALS))
        return Totals(studies, trials, open_attempts=self._rows(_ATTEMPT_TOTALS)[0][0])

    # --- trials ------------------------------------------------------------------------------------------------

    def trial(self, trial_id: int) -> Trial:
        """Raises ``NotFound``."""
        rows = self._rows(_ONE_TRIAL, id=trial_id)
        if not rows:
            raise NotFound(f"there is no trial {trial_id}; `scamp trials STUDY` shows those of a study")
        return trial_of(rows[0])

    def trial_by_number(self, study_id: int, number: int) -> Trial:
        """Raises ``NotFound``."""
        rows = self._rows(_NUMBERED_TRIAL, study_id=study_id, number=number)
        if not rows:
            raise NotFound(f"study {study_id} has no trial {number}; `scamp trials {study_id}` shows those it has")
        return trial_of(rows[0])

    def trials(
        self, study_id: int, *, after: int = 0, limit: int = 1000, states: Iterable[TrialState] | None = None
    ) -> list[Trial]:
        """By ascending id (so also by number), those with id > ``after``."""
        statement = _trials_page(states is not None)
        given: dict[str, Any] = {} if states is None else {"states": list(states)}
        return [trial_of(row) for row in self._rows(statement, study_id=study_id, after=after, limit=limit, **given)]

    def live_trials(self) -> list[Trial]:
        """All trials of all studies in a non-terminal state, by id."""
        return [trial_of(row) for row in self._rows(_LIVE_TRIALS)]

    def best_trial(self, study_id: int, direction: Literal["maximize", "minimize"]) -> Trial | None:
        """The best COMPLETED trial, else the best that still runs; the lower number wins a tie, NaN never wins."""
        rows = self._rows(_best_trial(direction), study_id=study_id)
        return trial_of(rows[0]) if rows else None

    # --- attempts ----------------------------------------------------------------------------------------------

    def attempts(self, trial_id: int) -> list[Attempt]:
        return [attempt_of(row) for row in self._rows(_TRIAL_ATTEMPTS, trial_id=trial_id)]

    def open_attempts(self) -> list[Attempt]:
        """Those not ENDED, of all trials."""
        return [attempt_of(row) for row in self._rows(_OPEN_ATTEMPTS)]

    def study_attempts(self, study_id: int) -> list[Attempt]:
        """All attempts of all trials, by trial and attempt."""
        return [attempt_of(row) for row in self._rows(_STUDY_ATTEMPTS, study_id=study_id)]

    def starts_from(self, trial_id: int) -> list[Start]:
        """Every attempt ever begun of this trial and of all later ones, over all studies, by trial and attempt."""
        return [Start(*row) for row in self._rows(_STARTS, trial_id=trial_id)]

    def checkpoints(self, trial_ids: Sequence[int]) -> dict[int, int]:
        """Trial id → step of its last committed checkpoint, for those that have one."""
        found: dict[int, int] = {}
        for start in range(0, len(trial_ids), 1000):  # PostgreSQL takes 65,535 parameters, SQLite 32,766
            some = list(trial_ids[start : start + 1000])
            found.update((trial, step) for trial, step in self._rows(_CHECKPOINTS, trial_ids=some))
        return found

    def device_seconds(self, study_id: int, *, now: float) -> float:
        """Seconds × devices held by the study's attempts; those that are open count up to ``now``."""
        total = 0.0
        for devices, began, ended in self._rows(_HOLDS, study_id=study_id):
            total += len(devices) * ((now if ended is None else ended) - began)
        return total

    def family_runs(self, family: str, num_trials: int) -> list[Run]:
        """Attempts that tell something of memory, of the newest ``num_trials`` trials of the family that were begun,
        over all studies, by trial and attempt."""
        rows = self._rows(_FAMILY_RUNS, family=family, num_trials=num_trials)
        return [_run(row) for row in rows]

    def families(self, study_id: int) -> list[str]:
        """Of the study's trials that were planned; the one of most trials first."""
        return [row[0] for row in self._rows(_FAMILIES, study_id=study_id)]

    def measured_attempts(self, study_id: int, *, after: int = 0, num_trials: int = 1000) -> list[tuple[int, Attempt]]:
        """(trial number, attempt) where a peak was measured or memory was out, of so many such trials with id >
        ``after``, by trial and attempt."""
        rows = self._rows(_MEASURED_ATTEMPTS, study_id=study_id, after=after, num_trials=num_trials)
        return [(row[0], attempt_of(row[1:])) for row in rows]

    # --- reports -----------------------------------------------------------------------------------------------

    def metrics(self, trial_id: int, *, after: int = -1, limit: int = 10_000) -> list[Metric]:
        """By step, those with step > ``after``; where an attempt repeated a step, the newest attempt's row counts."""
        return [Metric(*row) for row in self._rows(_CURVE, trial_id=trial_id, after=after, limit=limit)]

    def rungs(self, study_id: int, objective: str, steps: Sequence[int]) -> dict[int, dict[int, float]]:
        """step → trial id → objective at that step, for every trial of the study that reported there."""
        found: dict[int, dict[int, float]] = {step: {} for step in steps}
        for trial_id, step, values in self._rows(_RUNGS, study_id=study_id, steps=list(steps)):
            if objective in values:
                found[step][trial_id] = values[objective]  # attempts ascend: the newest comes last
        return found

    def logs(self, trial_id: int, *, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        """(row id, line), row id > ``after``; with ``after=-1`` the last ``limit`` lines."""
        if after < 0:
            rows = self._rows(_LAST_LOGS, trial_id=trial_id, limit=limit)[::-1]
        else:
            rows = self._rows(_LOGS, trial_id=trial_id, after=after, limit=limit)
        return [(row[0], LogLine(*row[1:])) for row in rows]

    # --- the rest ----------------------------------------------------------------------------------------------

    def blob(self, sha256: str) -> bytes:
        """Raises ``NotFound``."""
        rows = self._rows(_BLOB, sha256=sha256)
        if not rows:
            raise NotFound(f"no file with sha256 {sha256} is stored; upload it again")
        return cast(bytes, rows[0][0])

    def events(self, *, after: int = 0, limit: int = 1000, study_id: int | None = None) -> list[Event]:
        """In commit order: a reader that has seen event n never later finds an event < n."""
        given = {} if study_id is None else {"study_id": study_id}
        return [Event(*row) for row in self._rows(_events(bool(given)), after=after, limit=limit, **given)]

    def last_event_id(self) -> int:
        """0 while there is none."""
        return cast(int, self._rows(_LAST_EVENT)[0][0] or 0)

    def cluster(self) -> tuple[Json, float] | None:
        """The last recorded state and when the controller last confirmed it (to the second)."""
        rows = self._rows(_CLUSTER)
        return (rows[0][0], rows[0][1]) if rows else None

    def lease_age(self, name: str, *, now: float) -> float | None:
        """Seconds since the lease was last renewed; None when nobody holds it."""
        rows = self._rows(_LEASE, name=name)
        return max(0.0, now - rows[0][0]) if rows else None

    def _rows(self, statement: sa.Select[Any], **given: Any) -> Sequence[Any]:
        with self._database.read() as connection:
            return connection.execute(statement, given).all()


def _run(row: Sequence[Any]) -> Run:
    """A row of ``_FAMILY_RUNS``."""
    trial_id, kinds, traced, extra, reserved, measured, outcome, study_id = row
    return Run(trial_id, kinds, traced, extra, reserved, measured, _ENDINGS.get(outcome, Ending.OTHER), study_id)


# --- statements: built once, so that SQLAlchemy compiles each once ------------------------------------------------


def _select(table: sa.Table, kind: type[Any]) -> sa.Select[Any]:
    """The columns in the order of the fields of ``kind``, so that ``kind(*row)`` is the value."""
    return select(*(table.c[field.name] for field in fields(kind)))


def _of_study(statement: sa.Select[Any]) -> sa.Select[Any]:
    """Attempts of one study's trials."""
    joined = statement.join(_trials, _trials.c.id == _attempts.c.trial_id)
    return joined.where(_trials.c.study_id == bindparam("study_id")).order_by(_attempts.c.trial_id, _attempts.c.attempt)


_ONE_STUDY = _select(schema.studies, Study).where(schema.studies.c.id == bindparam("id"))
_STUDY_TOTALS = select(schema.studies.c.state, func.count()).group_by(schema.studies.c.state)

_ONE_TRIAL = select_trials().where(_trials.c.id == bindparam("id"))
_NUMBERED_TRIAL = select_trials().where(
    _trials.c.study_id == bindparam("study_id"), _trials.c.number == bindparam("number")
)
_LIVE_TRIALS = select_trials().where(one_of(_trials.c.state, *sorted(LIVE_TRIALS))).order_by(_trials.c.id)
_TRIAL_TOTALS = select(_trials.c.state, func.count()).group_by(_trials.c.state)
_TRIAL_COUNTS = _TRIAL_TOTALS.where(_trials.c.study_id == bindparam("study_id"))

_is_open = one_of(_attempts.c.state, *sorted(OPEN_ATTEMPTS))
_ATTEMPT_TOTALS = select(func.count()).where(_is_open)
_OPEN_ATTEMPTS = select_attempts().where(_is_open).order_by(_attempts.c.created_at, _attempts.c.trial_id)
_TRIAL_ATTEMPTS = select_attempts().where(_attempts.c.trial_id == bindparam("trial_id")).order_by(_attempts.c.attempt)
_STUDY_ATTEMPTS = _of_study(select_attempts())
_STARTS = (
    select(_attempts.c.trial_id, _attempts.c.created_at, _attempts.c.ended_at)
    .where(_attempts.c.trial_id >= bindparam("trial_id"))
    .order_by(_attempts.c.trial_id, _attempts.c.attempt)
)
_HOLDS = _of_study(select(_attempts.c.devices, _attempts.c.created_at, _attempts.c.ended_at))
_FAMILIES = (
    select(_trials.c.family)
    .where(_trials.c.study_id == bindparam("study_id"), _trials.c.family != "")
    .group_by(_trials.c.family)
    .order_by(func.count().desc(), func.min(_trials.c.id))
)
_newest_of_family = (
    select(_trials.c.id)
    .where(_trials.c.family == bindparam("family"), _trials.c.attempt > 0)
    .order_by(_trials.c.id.desc())
    .limit(bindparam("num_trials"))
)
# Only what is needed, in the order of the fields of Run: the controller asks ten times a second.
_FAMILY_RUNS = (
    select(
        _attempts.c.trial_id,
        _attempts.c.device_kinds,
        _attempts.c.predicted_bytes - _attempts.c.extra_bytes,
        _attempts.c.extra_bytes,
        _attempts.c.mib_per_rank * MIB,
        _attempts.c.measured_bytes,
        _attempts.c.outcome,
        _trials.c.study_id,
    )
    .join(_trials, _trials.c.id == _attempts.c.trial_id)
    .where(_attempts.c.trial_id.in_(_newest_of_family))
    .where(sa.or_(_attempts.c.measured_bytes > 0, one_of(_attempts.c.outcome, Outcome.DONE, Outcome.OUT_OF_MEMORY)))
    .order_by(_attempts.c.trial_id, _attempts.c.attempt)
)
_ENDINGS = {Outcome.DONE: Ending.FINISHED, Outcome.OUT_OF_MEMORY: Ending.OUT_OF_MEMORY}
_measured_trials = (
    select(_trials.c.id)
    .where(_trials.c.study_id == bindparam("study_id"), _trials.c.id > bindparam("after"))
    .where(sa.or_(_trials.c.measured_bytes > 0, _trials.c.num_oom > 0))
    .order_by(_trials.c.id)
    .limit(bindparam("num_trials"))
)
_MEASURED_ATTEMPTS = (
    select_attempts()
    .with_only_columns(_trials.c.number, *select_attempts().selected_columns)
    .join(_trials, _trials.c.id == _attempts.c.trial_id)
    .where(_attempts.c.trial_id.in_(_measured_trials))
    .where(sa.or_(_attempts.c.measured_bytes > 0, _attempts.c.outcome == Outcome.OUT_OF_MEMORY))
    .order_by(_attempts.c.trial_id, _attempts.c.attempt)
)
_CHECKPOINTS = (
    select(_attempts.c.trial_id, func.max(_attempts.c.checkpoint_step))
    .where(_attempts.c.trial_id.in_(bindparam("trial_ids", expanding=True)), _attempts.c.checkpoint_step >= 0)
    .group_by(_attempts.c.trial_id)
)

_ranked = (
    _select(_metrics, Metric)
    .add_columns(
        func.row_number()
        .over(partition_by=_metrics.c.step, order_by=(_metrics.c.attempt.desc(), _metrics.c.seq.desc()))
        .label("place")
    )
    .where(_metrics.c.trial_id == bindparam("trial_id"), _metrics.c.step > bindparam("after"))
    .subquery()
)
_CURVE = (
    select(*(_ranked.c[field.name] for field in fields(Metric)))
    .where(_ranked.c.place == 1)
    .order_by(_ranked.c.step)
    .limit(bindparam("limit"))
)
_RUNGS = (
    select(_metrics.c.trial_id, _metrics.c.step, _metrics.c["values"])
    .join(_trials, _trials.c.id == _metrics.c.trial_id)
    .where(_trials.c.study_id == bindparam("study_id"), _metrics.c.step.in_(bindparam("steps", expanding=True)))
    .order_by(_metrics.c.trial_id, _metrics.c.attempt, _metrics.c.seq)
)

_logs_of_trial = _select(schema.logs, LogLine).where(schema.logs.c.trial_id == bindparam("trial_id"))
_logs_of_trial = _logs_of_trial.with_only_columns(schema.logs.c.id, *_logs_of_trial.selected_columns)
_LOGS = _logs_of_trial.where(schema.logs.c.id > bindparam("after")).order_by(schema.logs.c.id).limit(bindparam("limit"))
_LAST_LOGS = _logs_of_trial.order_by(schema.logs.c.id.desc()).limit(bindparam("limit"))

_BLOB = select(schema.blobs.c.data).where(schema.blobs.c.sha256 == bindparam("sha256"))
_LAST_EVENT = select(func.max(schema.events.c.id))
_CLUSTER = select(schema.cluster.c.state, schema.cluster.c.confirmed_at)
_LEASE = select(schema.leases.c.renewed_at).where(schema.leases.c.name == bindparam("name"))


@cache
def _studies(live: bool, newest_first: bool, bounded: bool) -> sa.Select[Any]:
    column = schema.studies.c.id
    statement = _select(schema.studies, Study).limit(bindparam("limit"))
    if live:
        statement = statement.where(one_of(schema.studies.c.state, *sorted(LIVE_STUDIES)))
    if bounded:
        statement = statement.where(column < bindparam("after") if newest_first else column > bindparam("after"))
    return statement.order_by(column.desc() if newest_first else column)


@cache
def _trials_page(by_state: bool) -> sa.Select[Any]:
    statement = select_trials().where(_trials.c.study_id == bindparam("study_id"))
    statement = statement.where(_trials.c.id > bindparam("after")).order_by(_trials.c.id).limit(bindparam("limit"))
    return statement.where(_trials.c.state.in_(bindparam("states", expanding=True))) if by_state else statement


@cache
def _best_trial(direction: Literal["maximize", "minimize"]) -> sa.Select[Any]:
    value = _trials.c.value
    counted = (TrialState.COMPLETED, TrialState.RUNNING, TrialState.PAUSED)
    return (
        select_trials()
        .where(_trials.c.study_id == bindparam("study_id"), one_of(_trials.c.state, *counted))
        .where(value <= float("inf"))  # NaN is above infinity, see schema.Real
        .order_by(
            sa.case((_trials.c.state == TrialState.COMPLETED, 0), else_=1),
            value.desc() if direction == "maximize" else value,
            _trials.c.number,
        )
        .limit(1)
    )


@cache
def _events(of_study: bool) -> sa.Select[Any]:
    statement = _select(schema.events, Event).where(schema.events.c.id > bindparam("after"))
    if of_study:
        statement = statement.where(schema.events.c.study_id == bindparam("study_id"))
    return statement.order_by(schema.events.c.id).limit(bindparam("limit"))
