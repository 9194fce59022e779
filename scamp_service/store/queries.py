"""The statements with which the store reads. They are built once, so that SQLAlchemy compiles each only once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, func, select

from scamp_service.lifecycle import LIVE_STUDIES, LIVE_TRIALS, OPEN_ATTEMPTS, Origin, Outcome, StudyState, TrialState
from scamp_service.model import Attempt, Event, LogLine, Metric, Study
from scamp_service.store import schema
from scamp_service.store.rows import HistoryRow, Score, select_fields, select_trials
from scamp_service.store.schema import one_of

_trials, _attempts, _metrics = schema.trials, schema.attempts, schema.metrics


def _of_study(statement: sa.Select[Any]) -> sa.Select[Any]:
    """``statement`` limited to the attempts of one study, by trial and attempt."""
    joined = statement.join(_trials, _trials.c.id == _attempts.c.trial_id)
    return joined.where(_trials.c.study_id == bindparam("study_id")).order_by(_attempts.c.trial_id, _attempts.c.attempt)


_exists = schema.studies.c.state != StudyState.DELETED
ONE_STUDY = select_fields(schema.studies, Study).where(schema.studies.c.id == bindparam("id"), _exists)
SPEC = select(schema.studies.c.spec).where(schema.studies.c.id == bindparam("id"), _exists)
PROJECT = select(schema.studies.c.project).where(schema.studies.c.id == bindparam("id"))
STUDY_TOTALS = select(schema.studies.c.state, func.count()).where(_exists).group_by(schema.studies.c.state)

_is_seen = _trials.c.state != TrialState.DELETED
ONE_TRIAL = select_trials().where(_trials.c.id == bindparam("id"))
NUMBERED_TRIAL = (
    select_trials()
    .join(schema.studies, schema.studies.c.id == _trials.c.study_id)
    .where(_exists, _trials.c.study_id == bindparam("study_id"), _trials.c.number == bindparam("number"), _is_seen)
)
IS_DELETED = select(sa.literal(1)).where(
    _trials.c.study_id == bindparam("study_id"), _trials.c.number == bindparam("number"), ~_is_seen
)
NUMBERED_TRIALS = (
    select_trials()
    .where(_trials.c.study_id == bindparam("study_id"), _trials.c.number.in_(bindparam("numbers", expanding=True)))
    .where(_is_seen)
    .order_by(_trials.c.id)
)
_reached = sa.or_(_trials.c.value.is_not(None), _trials.c.attempt > 0, _trials.c.finished_at.is_not(None))
HISTORY = (
    select_fields(_trials, HistoryRow)
    .where(_trials.c.study_id == bindparam("study_id"), _reached, _is_seen)
    .order_by(_trials.c.number)
)
_counts_alone = _trials.c.origin != Origin.REPEAT
"""Repeats count in the value of the trial that they repeat, and are not compared with other trials."""
_state_place = sa.case(
    {state.value: place for place, state in enumerate(TrialState)}, value=sa.type_coerce(_trials.c.state, sa.Text)
)
SERIES = (
    select(
        _trials.c.number,
        sa.case((_trials.c.value.between(-sys.float_info.max, sys.float_info.max), _trials.c.value)),
        _state_place,
        sa.case((_trials.c.attempt > 0, 1), else_=0),
    )
    .where(_trials.c.study_id == bindparam("study_id"), _reached, _is_seen, _counts_alone)
    .order_by(_trials.c.number)
)
"""The fields of ``table.series.Series``, all of them numbers."""
_child = _trials.alias()
_parents = select(_child.c.parent_number).where(
    _child.c.study_id == bindparam("study_id"),
    _child.c.parent_number.is_not(None),
    _child.c.origin != Origin.REPEAT,
)
RELATIVES = (
    select(
        *(_trials.c[name] for name in ("number", "state", "origin", "value", "step", "parent_number", "parent_step"))
    )
    .where(_trials.c.study_id == bindparam("study_id"), _is_seen, _counts_alone)
    .where(sa.or_(_trials.c.parent_number.is_not(None), _trials.c.number.in_(_parents)))
    .order_by(_trials.c.number)
)
"""Trials of a study that continue from others, and those."""
_of_numbers = _trials.c.number.in_(bindparam("numbers", expanding=True))
PARAMS = select(_trials.c.number, _trials.c.params).where(_trials.c.study_id == bindparam("study_id"), _of_numbers)
HISTORY_OF_NUMBERS = HISTORY.where(_of_numbers)
_scores = (
    select_fields(_trials, Score)
    .where(sa.or_(_trials.c.value.is_not(None), _trials.c["values"].is_not(None), _trials.c.sized.is_not(None)))
    .where(_counts_alone)
    .order_by(_trials.c.number)
)
SCORES = _scores.where(_trials.c.study_id == bindparam("study_id"))
SCORES_OF_TRIALS = _scores.where(_trials.c.id.in_(bindparam("trial_ids", expanding=True)))
OPTIONS = select(schema.comparisons.c.options).where(schema.comparisons.c.trial_id == bindparam("trial_id"))
_is_refused = sa.and_(_trials.c.state == TrialState.INFEASIBLE, _trials.c.offer.is_not(None))
REFUSALS = (
    select(
        _trials.c.study_id,
        _trials.c.offer,
        _trials.c.once_fit,
        func.max(_trials.c.finished_at, type_=schema.Real()).label("newest_at"),
    )
    .join(schema.studies, schema.studies.c.id == _trials.c.study_id)
    .where(schema.studies.c.state == StudyState.RUNNING, _is_refused)
    .group_by(_trials.c.study_id, _trials.c.offer, _trials.c.once_fit)
    .order_by(_trials.c.study_id)
)
REFUSED_TRIALS = (
    select_trials()
    .where(_trials.c.study_id == bindparam("study_id"), _trials.c.state == TrialState.INFEASIBLE)
    .where(_trials.c.offer == bindparam("offer", type_=_trials.c.offer.type))
    .order_by(_trials.c.id)
    .limit(bindparam("limit"))
)
AVERAGED = (
    select(*(_trials.c[name] for name in ("state", "attempt", "value", "values", "repeats")), schema.studies.c.spec)
    .join(schema.studies, schema.studies.c.id == _trials.c.study_id)
    .where(_trials.c.id == bindparam("id"))
)
REPEATS = (
    select(_trials.c.value, _trials.c["values"])
    .where(_trials.c.parent_id == bindparam("parent_id"), _trials.c.origin == sa.literal_column(f"'{Origin.REPEAT}'"))
    .where(_trials.c.state == TrialState.COMPLETED)
    .order_by(_trials.c.number)
)
PIPELINE = select(schema.comparisons.c.pipeline).where(schema.comparisons.c.trial_id == bindparam("trial_id"))
TRIALS_WITH_IDS = select_trials().where(_trials.c.id.in_(bindparam("trial_ids", expanding=True))).order_by(_trials.c.id)
TRIAL_STATES = select(_trials.c.id, _trials.c.state).where(_trials.c.id.in_(bindparam("trial_ids", expanding=True)))
ALL_LIVE_TRIALS = (
    select_trials()
    .where(one_of(_trials.c.state, *sorted(LIVE_TRIALS)), _trials.c.origin != Origin.EXTERNAL)
    .order_by(_trials.c.id)
)
WAITING_TRIALS = (
    select(_trials.c.study_id, _trials.c.waits_for, func.count(), func.min(_trials.c.id))
    .where(one_of(_trials.c.state, TrialState.WAITING, TrialState.QUEUED), _trials.c.waits_for.is_not(None))
    .group_by(_trials.c.study_id, _trials.c.waits_for)
    .order_by(_trials.c.study_id)
)
_tallies, _measured = schema.tallies, schema.measured
TALLIES = select(_tallies.c.name, _tallies.c.num).where(_tallies.c.study_id == bindparam("study_id"))
TRIAL_TOTALS = (
    select(_tallies.c.name, func.sum(_tallies.c.num))
    .where(sa.or_(*(_tallies.c.name == state.value for state in TrialState if state is not TrialState.DELETED)))
    .group_by(_tallies.c.name)
)
_of_measured = _measured.c.study_id == bindparam("study_id")
OUT_OF_MEMORY = select(func.sum(_measured.c.num_oom), func.max(_measured.c.least_excess_pct)).where(
    _of_measured, _measured.c.least_excess_pct.is_not(None)
)

_select_attempts = select_fields(_attempts, Attempt)
_is_open = one_of(_attempts.c.state, *sorted(OPEN_ATTEMPTS))
ATTEMPT_TOTALS = select(func.count()).where(_is_open)
ALL_OPEN_ATTEMPTS = _select_attempts.where(_is_open).order_by(_attempts.c.created_at, _attempts.c.trial_id)
TRIAL_ATTEMPTS = _select_attempts.where(_attempts.c.trial_id == bindparam("trial_id")).order_by(_attempts.c.attempt)
STUDY_ATTEMPTS = _of_study(_select_attempts)
NUMBERS_OF_PACK = (
    select(_trials.c.number)
    .join(_attempts, _attempts.c.trial_id == _trials.c.id)
    .where(
        _trials.c.study_id == bindparam("study_id"),
        _attempts.c.pack == bindparam("pack"),
        _attempts.c.created_at < func.coalesce(bindparam("ended_at"), _attempts.c.created_at + 1),
        func.coalesce(_attempts.c.ended_at, bindparam("created_at") + 1) > bindparam("created_at"),
    )
    .order_by(_trials.c.number)
)
OPEN_OF_STUDY = (
    _select_attempts.join(_trials, _trials.c.id == _attempts.c.trial_id).where(
        _is_open, _trials.c.study_id + 0 == bindparam("study_id")
    )  # + 0: few attempts are open, a study has many
)
_newest_of_family = (
    select(_trials.c.id)
    .where(_trials.c.family == bindparam("family"), _trials.c.attempt > 0)
    .order_by(_trials.c.id.desc())
    .limit(bindparam("num_trials"))
)
_TELLING = (Outcome.DONE, Outcome.OUT_OF_MEMORY, Outcome.DEPENDS_ON_DIVISION)
# Only what a run needs: the controller runs this query ten times a second.
_runs = (
    select(
        _attempts.c.trial_id,
        _attempts.c.choice,
        _attempts.c.device_kinds,
        _attempts.c.measured_bytes,
        _attempts.c.outcome,
        _trials.c.study_id,
        _attempts.c.measured_step_seconds,
        _attempts.c.phase,
        sa.case((_attempts.c.outcome == Outcome.DEPENDS_ON_DIVISION, _attempts.c.detail), else_="").label("why"),
    )
    .join(_trials, _trials.c.id == _attempts.c.trial_id)
    .where(sa.or_(_attempts.c.measured_bytes > 0, one_of(_attempts.c.outcome, *_TELLING)))
    .order_by(_attempts.c.trial_id, _attempts.c.attempt)
)
FAMILY_RUNS = _runs.where(_attempts.c.trial_id.in_(_newest_of_family))
TRIAL_RUNS = _runs.where(_attempts.c.trial_id.in_(bindparam("trial_ids", expanding=True)))
_measured_trials = (
    select(_trials.c.id)
    .where(_trials.c.study_id == bindparam("study_id"), _trials.c.id > bindparam("after"))
    .where(sa.or_(_trials.c.measured_bytes > 0, _trials.c.num_oom > 0))
    .order_by(_trials.c.id)
    .limit(bindparam("num_trials"))
)
_measured_attempts = (
    _select_attempts.add_columns(_trials.c.number)
    .join(_trials, _trials.c.id == _attempts.c.trial_id)
    .where(sa.or_(_attempts.c.measured_bytes > 0, _attempts.c.outcome == Outcome.OUT_OF_MEMORY))
    .order_by(_attempts.c.trial_id, _attempts.c.attempt)
)
MEASURED_ATTEMPTS = _measured_attempts.where(_attempts.c.trial_id.in_(_measured_trials))
MEASURED_ATTEMPTS_OF = _measured_attempts.where(_attempts.c.trial_id.in_(bindparam("trial_ids", expanding=True)))
CHECKPOINTS = (
    select(_attempts.c.trial_id, func.max(_attempts.c.checkpoint_step))
    .where(_attempts.c.trial_id.in_(bindparam("trial_ids", expanding=True)), _attempts.c.checkpoint_step >= 0)
    .group_by(_attempts.c.trial_id)
)

_values_text = sa.type_coerce(_metrics.c["values"], sa.Text).label("text")
CURVE = (
    select_fields(_metrics, Metric)
    .where(_metrics.c.trial_id == bindparam("trial_id"), _metrics.c.step > bindparam("after"))
    .order_by(_metrics.c.step, _metrics.c.attempt, _metrics.c.seq)
    .limit(bindparam("limit"))
)
CURVE_LENGTHS = (
    select(_metrics.c.trial_id, func.count())
    .where(_metrics.c.trial_id.in_(bindparam("trial_ids", expanding=True)))
    .group_by(_metrics.c.trial_id)
)
CURVES = (
    select(_metrics.c.trial_id, _metrics.c.step, _metrics.c.attempt, _values_text)
    .where(_metrics.c.trial_id.in_(bindparam("trial_ids", expanding=True)))
    .order_by(_metrics.c.trial_id, _metrics.c.step, _metrics.c.attempt, _metrics.c.seq)
)
COUNTED_METRICS = (
    select(_metrics.c.trial_id, _values_text)
    .join(_trials, _trials.c.id == _metrics.c.trial_id)
    .where(_metrics.c.trial_id.in_(bindparam("trial_ids", expanding=True)))
    .where(_metrics.c.step == func.coalesce(_trials.c.best_step, _trials.c.step))
    .order_by(_metrics.c.trial_id, _metrics.c.attempt, _metrics.c.seq)
)
_reports = schema.external_reports
EXTERNAL_CURVES = (
    select(_reports.c.trial_id, _reports.c.step, _reports.c.value, _reports.c.time)
    .where(_reports.c.trial_id.in_(bindparam("trial_ids", expanding=True)))
    .order_by(_reports.c.trial_id, _reports.c.step)
)
SPEC_OF_TRIAL = (
    select(schema.studies.c.spec)
    .join(_trials, _trials.c.study_id == schema.studies.c.id)
    .where(_trials.c.id == bindparam("id"))
)
_rungs = (
    select(_trials.c.number, _metrics.c.step, _metrics.c["values"].label("metrics"))
    .join(_trials, _trials.c.id == _metrics.c.trial_id)
    .where(_metrics.c.step.in_(bindparam("steps", expanding=True)), _counts_alone, _is_seen)
    .order_by(_metrics.c.trial_id, _metrics.c.attempt, _metrics.c.seq)
)
RUNGS = _rungs.where(_trials.c.study_id == bindparam("study_id"))
RUNGS_OF_TRIALS = _rungs.where(_metrics.c.trial_id.in_(bindparam("trial_ids", expanding=True)))

_logs_of_trial = select_fields(schema.logs, LogLine).add_columns(schema.logs.c.id.label("row_id"))
_logs_of_trial = _logs_of_trial.where(schema.logs.c.trial_id == bindparam("trial_id"))
LOGS = _logs_of_trial.where(schema.logs.c.id > bindparam("after")).order_by(schema.logs.c.id).limit(bindparam("limit"))
FOUND_LOGS = LOGS.where(func.lower(schema.logs.c.text).like(bindparam("pattern", type_=sa.Text), escape="\\"))
LAST_LOGS = _logs_of_trial.order_by(schema.logs.c.id.desc()).limit(bindparam("limit"))

BLOB = select(schema.blobs.c.data).where(schema.blobs.c.sha256 == bindparam("sha256"))
CHANGED_SINCE = (
    select(schema.events.c.id, schema.events.c.trial_id)
    .where(schema.events.c.id > bindparam("after"))
    .order_by(schema.events.c.id)
    .limit(bindparam("limit"))
)
LAST_EVENT = select(func.max(schema.events.c.id))
LAST_EVENT_OF_STUDY = LAST_EVENT.where(schema.events.c.study_id == bindparam("study_id"))
CLUSTER = select(schema.cluster.c.state, schema.cluster.c.confirmed_at)
_of_lease = schema.leases.c.name == bindparam("name")
LEASE = select(*(schema.leases.c[name] for name in ("holder", "term", "renewals"))).where(_of_lease)
LEASE_RENEWED_AT = select(schema.leases.c.renewed_at).where(_of_lease, schema.leases.c.holder != "")
IDENTITY = select(schema.identity.c.name)


_S = schema.studies.c
MOST_WORDS = 5
_texts = [_S.name, _S.owner, _S.project, _S.note, sa.type_coerce(_S.tags, sa.Text)]


def _has_word(index: int) -> sa.ColumnElement[bool]:
    pattern = bindparam(f"word{index}", type_=sa.Text)
    return sa.or_(*(func.lower(text).like(pattern, escape="\\") for text in _texts))


_STUDY_FILTERS: Mapping[str, sa.ColumnElement[bool]] = {
    "owner": _S.owner == bindparam("owner"),
    "projects": _S.project.in_(bindparam("projects", expanding=True)),
    "states": _S.state.in_(bindparam("states", expanding=True)),
    "tag": sa.type_coerce(_S.tags, sa.Text).like(bindparam("tag", type_=sa.Text), escape="\\"),
    "archived": _S.archived == bindparam("archived"),
    **{f"word{index}": _has_word(index) for index in range(MOST_WORDS)},
}


STUDY_SORTS: Mapping[str, Callable[[Any], Any]] = {
    "id": lambda columns: columns.id,
    "name": lambda columns: func.lower(columns.name),
    "owner": lambda columns: columns.owner,
    "project": lambda columns: columns.project,
    "state": lambda columns: sa.case({state.value: at for at, state in enumerate(StudyState)}, value=columns.state),
}
"""Orders of studies by name: what of their columns ascends. Ids break ties."""


@cache
def studies(live: bool, reverse: bool, filters: frozenset[str], sort: str = "id") -> sa.Select[Any]:
    """A page of studies; ``filters`` are parameters: ``after``, and those of ``_STUDY_FILTERS``."""
    statement = select_fields(schema.studies, Study).where(_exists).limit(bindparam("limit"))
    if live:
        statement = statement.where(one_of(schema.studies.c.state, *sorted(LIVE_STUDIES)))
    statement = statement.where(*(_STUDY_FILTERS[name] for name in sorted(filters & _STUDY_FILTERS.keys())))
    keys = [STUDY_SORTS[sort](_S), _S.id] if sort != "id" else [_S.id]
    if "after" in filters:
        last = schema.studies.alias()
        of_last = select(STUDY_SORTS[sort](last.c)).where(last.c.id == bindparam("after")).scalar_subquery()
        after = sa.tuple_(of_last, bindparam("after")) if sort != "id" else bindparam("after")
        place = sa.tuple_(*keys) if sort != "id" else _S.id
        statement = statement.where(place < after if reverse else place > after)
    return statement.order_by(*(key.desc() if reverse else key for key in keys))


@cache
def trials_page(by_state: bool, with_deleted: bool = False) -> sa.Select[Any]:
    """A page of a study's trials; ``by_state`` adds the parameter ``states``.

    Numbers ascend with ids, and only they are in an index of the study: by ids SQLite would sort all trials each time.
    """
    last = sa.alias(_trials)
    of_last = select(last.c.number).where(last.c.id == bindparam("after"), last.c.study_id == bindparam("study_id"))
    statement = select_trials().where(_trials.c.study_id == bindparam("study_id"), _trials.c.id > bindparam("after"))
    statement = statement.where(_trials.c.number > func.coalesce(of_last.scalar_subquery(), -1))
    statement = statement.where(*([] if with_deleted else [_is_seen]))
    statement = statement.order_by(_trials.c.number).limit(bindparam("limit"))
    return statement.where(_trials.c.state.in_(bindparam("states", expanding=True))) if by_state else statement


SORTS: Mapping[str, sa.ColumnElement[Any]] = {
    "number": _trials.c.number,
    "state": _state_place,
    "value": sa.case((_trials.c.value <= math.inf, _trials.c.value)),  # NaN sorts above infinity: see schema.Real
    "measured": func.nullif(_trials.c.measured_bytes, 0),
    "attempts": _trials.c.attempt,
    # A trial that runs is ordered by its start behind those that have ended.
    "seconds": func.coalesce(_trials.c.finished_at, 1e12) - _trials.c.started_at,
}
"""Orders of trials that the database knows: the key of each trial."""


@cache
def ordering(columns: tuple[str, ...], by_state: bool) -> sa.Select[Any]:
    """Some columns of a study's trials, by number; ``by_state`` adds the parameter ``states``.

    Parameters of trials come as the text of their JSON.
    """
    params = sa.type_coerce(_trials.c.params, sa.Text).label("params")
    statement = select(*(params if name == "params" else _trials.c[name] for name in columns))
    statement = statement.where(_trials.c.study_id == bindparam("study_id"), _is_seen).order_by(_trials.c.number)
    return statement.where(_trials.c.state.in_(bindparam("states", expanding=True))) if by_state else statement


@cache
def sorted_numbers(by: str, descending: bool, filters: frozenset[str]) -> sa.Select[Any]:
    """Numbers of a study's trials in an order of ``SORTS``, at most ``limit``; those without a key come last.

    ``filters`` are parameters: ``states`` and ``numbers``.
    """
    key = SORTS[by]
    statement = select(_trials.c.number).where(_trials.c.study_id == bindparam("study_id"), _is_seen)
    statement = statement.order_by(key.is_(None), key.desc() if descending else key, _trials.c.number)
    lists = {"states": _trials.c.state, "numbers": _trials.c.number}
    chosen = (column.in_(bindparam(name, expanding=True)) for name, column in lists.items() if name in filters)
    return statement.where(*chosen).limit(bindparam("limit"))


@cache
def num_trials(by_state: bool) -> sa.Select[Any]:
    """How many trials a study has; ``by_state`` adds the parameter ``states``."""
    statement = select(func.count()).where(_trials.c.study_id == bindparam("study_id"), _is_seen)
    return statement.where(_trials.c.state.in_(bindparam("states", expanding=True))) if by_state else statement


@cache
def spread_by(name: str) -> sa.Select[Any]:
    """Ids of trials of a study: each ``every``-th and the last in the order of a column of ``measured``."""
    column = _measured.c[name]
    place = func.row_number().over(order_by=(column, _measured.c.trial_id)).label("place")
    ordered = select(_measured.c.trial_id, place).where(_of_measured, column.is_not(None)).subquery()
    is_chosen = (ordered.c.place - 1) % bindparam("every") == 0
    statement = select(ordered.c.trial_id).join(_trials, _trials.c.id == ordered.c.trial_id).where(_is_seen)
    return statement.where(sa.or_(is_chosen, ordered.c.place == bindparam("last")))


@cache
def errors(name: str) -> tuple[sa.Select[Any], sa.Select[Any], sa.Select[Any]]:
    """The number of known errors of a study in one column of ``measured``, two from ``offset`` on, and the largest."""
    column = _measured.c[name]
    number = select(func.count(column)).where(_of_measured, column.is_not(None))
    ordered = select(column).where(_of_measured, column.is_not(None))
    middle = ordered.order_by(column).limit(2).offset(bindparam("offset"))
    return number, middle, ordered.order_by(column.desc()).limit(1)


@cache
def best_trial(prefers_large: bool, is_completed: bool) -> sa.Select[Any]:
    """The best completed trial of a study, or the best that still runs: see ``Trials.leaders``."""
    value = _trials.c.value
    # The state is part of the text, not a parameter: otherwise no database uses the index of completed trials.
    completed = _trials.c.state == sa.literal_column(f"'{TrialState.COMPLETED.value}'")
    live = one_of(_trials.c.state, TrialState.RUNNING, TrialState.PAUSED)
    return (
        select_trials()
        .where(_trials.c.study_id == bindparam("study_id"), completed if is_completed else live)
        .where(_counts_alone)
        .where(value > -math.inf, value < math.inf)  # also excludes NaN, which sorts above infinity: see schema.Real
        .order_by(value.desc() if prefers_large else value, _trials.c.number)
        .limit(1)
    )


@cache
def events(of_study: bool) -> sa.Select[Any]:
    """A page of events; ``of_study`` keeps those of the parameter ``study_id``."""
    statement = select_fields(schema.events, Event).where(schema.events.c.id > bindparam("after"))
    if of_study:
        statement = statement.where(schema.events.c.study_id == bindparam("study_id"))
    return statement.order_by(schema.events.c.id).limit(bindparam("limit"))


def pattern_of(text: str) -> str:
    """The pattern of LIKE for what has this text in it."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
