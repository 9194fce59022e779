"""The statements with which the store writes. They are built once, so that SQLAlchemy compiles each only once.

Values come as parameters. Those of an UPDATE begin with an underscore, as SQLAlchemy reserves the plain column names.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

from scamp_service.lifecycle import (
    LIVE_TRIALS,
    OPEN_ATTEMPTS,
    AttemptState,
    Origin,
    Outcome,
    StudyState,
    TrialState,
    WaitsFor,
)
from scamp_service.store import schema, tallies
from scamp_service.store.schema import one_of

_T, _A = schema.trials, schema.attempts


def _set(*names: str) -> dict[str, Any]:
    return {name: bindparam(f"_{name}") for name in names}


def _greatest(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """The larger of the stored value and the parameter."""
    value = bindparam(f"_{column.name}", type_=column.type)
    return sa.case((column < value, value), else_=column)


def _if_given(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """The parameter, or the stored value if it is None."""
    return func.coalesce(bindparam(f"_{column.name}", type_=column.type), column)


_of_trial = _T.c.id == bindparam("_id")
_of_attempt = sa.and_(_A.c.trial_id == bindparam("_trial_id"), _A.c.attempt == bindparam("_attempt"))
_by_token = sa.and_(_of_attempt, _A.c.token == bindparam("_token"))
FORGOTTEN = (Outcome.DEPENDS_ON_DIVISION, Outcome.RESUMES_DIFFERENTLY)
"""Outcomes of attempts whose trial forgets what it has reported."""
_reporting = sa.and_(
    _by_token,
    one_of(_A.c.state, AttemptState.STARTING, AttemptState.RUNNING, AttemptState.WITHDRAWN),
    sa.or_(_A.c.outcome.is_(None), ~one_of(_A.c.outcome, *FORGOTTEN)),
)

COUNTED = tuple(_T.c[name] for name in tallies.COUNTED)
_told = ("study_id", "number", "step", "value", "reason", "parent_id", "parent_number")
TRIAL_EVENT = (*COUNTED, *(_T.c[name] for name in _told))
_attempt_event = (
    _A.c.state,
    _A.c.devices,
    _A.c.choice,
    _A.c.outcome,
    _A.c.detail,
    _A.c.created_at,
    _A.c.ended_at,
)

BEFORE_MOVE = select(*COUNTED, _T.c.started_at).where(_T.c.id == bindparam("id")).with_for_update()
"""A trial before a move, in the columns that a move needs. On PostgreSQL nobody else can change it before that."""
STUDY_OF_TRIAL = select(_T.c.study_id).where(_T.c.id == bindparam("id"))
OWNER_OF_STUDY = select(schema.studies.c.owner, schema.studies.c.project).where(schema.studies.c.id == bindparam("id"))
LAST_CHOICE = select(_A.c.choice).where(_A.c.trial_id == bindparam("trial_id"), _A.c.attempt == bindparam("attempt"))
OPEN_ON_STUDY = (
    select(_A.c.devices)
    .join(_T, _T.c.id == _A.c.trial_id)
    .where(one_of(_A.c.state, *sorted(OPEN_ATTEMPTS)))
    .where(_T.c.study_id + 0 == bindparam("study_id"))  # + 0: few attempts are open, but a study has many trials
)

LOCK_STUDY = (
    select(schema.studies.c.state).where(schema.studies.c.id == bindparam("study_id")).with_for_update(key_share=True)
)
"""State of a study. On PostgreSQL nobody else can give its trials numbers, or end it, before this transaction ends."""
_tally_of_study = schema.tallies.c.study_id == bindparam("study_id")
NUM_BESIDE_SEARCH = select(func.coalesce(func.sum(schema.tallies.c.num), 0.0)).where(
    _tally_of_study,
    sa.or_(schema.tallies.c.name == tallies.BESIDE, schema.tallies.c.name.like(f"{tallies.EXTERNAL}%")),
)
"""Number of the study's trials that its sampler has not proposed."""
HAS_LIVE_REQUESTED = (
    select(sa.literal(1))
    .where(_T.c.study_id == bindparam("study_id"), one_of(_T.c.state, *sorted(LIVE_TRIALS)))
    .where(sa.or_(_T.c.origin == Origin.ENQUEUED, _T.c.waits_for == WaitsFor.NEW_PLAN))
    .limit(1)
)
"""A live trial that a user has enqueued, or may have retried."""
NEXT_NUMBER = select(func.coalesce(func.max(_T.c.number) + 1, 0)).where(_T.c.study_id == bindparam("study_id"))

IS_OPEN = select(sa.literal(1)).where(
    _A.c.trial_id == bindparam("trial_id"), one_of(_A.c.state, *sorted(OPEN_ATTEMPTS))
)
LIVE_CHILD = (
    select(_T.c.number)
    .where(_T.c.parent_id == bindparam("trial_id"), one_of(_T.c.state, *sorted(LIVE_TRIALS)))
    .limit(1)
)
"""A trial that has not ended, and begins with the weights of another one or repeats it."""

_open = _A.alias()
_trains_on = (
    select(sa.literal(1))
    .where(_open.c.trial_id == _T.c.id, one_of(_open.c.state, *sorted(OPEN_ATTEMPTS)), _open.c.outcome.is_(None))
    .correlate(_T)
    .exists()
)
_last_step = func.max(_A.c.checkpoint_step)
_counted_step = sa.case((_T.c.best_step <= _last_step, _T.c.best_step), else_=_last_step)
PARENT = (
    select(_T.c.id.label("parent_id"), _T.c.number.label("parent_number"), _counted_step.label("step"))
    .join(_A, _A.c.trial_id == _T.c.id)
    .where(_T.c.study_id == bindparam("study_id"), _T.c.number == bindparam("number"))
    .where(~one_of(_T.c.state, TrialState.RUNNING, TrialState.DELETED), ~_trains_on, _A.c.checkpoint_step >= 0)
    .group_by(_T.c.id, _T.c.number, _T.c.best_step)
)
"""The trial and the step of the checkpoint with which another may begin: the newest, or that of its best report if it
counts by it; no row while it may write checkpoints."""

HAS_BLOB = select(sa.literal(1)).where(schema.blobs.c.sha256 == bindparam("sha256"))
_S = schema.studies
BY_KEY = select(_S.c.id, _S.c.body_sha256).where(_S.c.idempotency_key == bindparam("key"))
CHANGE_NOTHING = (
    sa.delete(schema.studies).where(schema.studies.c.id == -1),
    sa.delete(schema.trials).where(schema.trials.c.id == -1),
    sa.update(schema.identity).values(name=schema.identity.c.name),
)
"""Writes that leave every row as it is, but need all that a new study and its trials need."""

REDATE_REFUSALS = (
    sa.update(_T)
    .where(_T.c.state == TrialState.INFEASIBLE, _T.c.offer.is_not(None), _T.c.finished_at > bindparam("_now"))
    .values(finished_at=bindparam("_now"))
)
INSERT_ATTEMPT = sa.insert(_A)
START = (
    sa.update(_A)
    .where(_by_token, _A.c.state == AttemptState.STARTING)
    .values(state=AttemptState.RUNNING, **_set("started_at"))
    .returning(*_attempt_event)
)
_detail, _outcome = (bindparam(f"_{name}", type_=_A.c[name].type) for name in ("detail", "outcome"))
_is_withdrawn = sa.and_(_A.c.state == AttemptState.WITHDRAWN, _outcome == Outcome.STOPPED)  # its detail says why
END = (
    sa.update(_A)
    .where(_by_token, one_of(_A.c.state, *sorted(OPEN_ATTEMPTS)), _A.c.outcome.is_(None))
    .values({**_set("outcome", "phase"), "detail": sa.case((_is_withdrawn, _A.c.detail), else_=_detail)})
    .returning(*_attempt_event)
)
_M, _of_forgotten = schema.metrics, bindparam("_trial_id", type_=sa.BigInteger)
FORGET_TRAINING = (
    sa.delete(_M).where(_M.c.trial_id == _of_forgotten),
    sa.update(_A).where(_A.c.trial_id == _of_forgotten).values(checkpoint_step=-1, objective_seq=-1),
    sa.update(_T).where(_T.c.id == _of_forgotten).values(step=0, value=None, values=None, best_step=None),
)
KNOWN_OUTCOME = select(_A.c.state, _A.c.outcome).where(_by_token)
IS_BEGINNING = select(sa.literal(1)).where(_reporting, _A.c.started_at.is_not(None), _A.c.checkpoint_step < 0)
_is_newer_time = _A.c.timed_steps < bindparam("_timed_steps", type_=_A.c.timed_steps.type)
_step_seconds = bindparam("_measured_step_seconds", type_=_A.c.measured_step_seconds.type)
REPORT = (
    sa.update(_A)
    .where(_reporting)
    .values({n: _greatest(_A.c[n]) for n in ("measured_bytes", "checkpoint_step", "objective_seq", "timed_steps")})
    .values({n: _if_given(_A.c[n]) for n in ("measured_communication_share", "load")})
    .values(measured_step_seconds=sa.case((_is_newer_time, _step_seconds), else_=_A.c.measured_step_seconds))
    .returning(_A.c.objective_seq, _A.c.timed_steps)
)
_measured = {
    "measured_bytes": _greatest(_T.c.measured_bytes),
    "measured_step_seconds": _if_given(_T.c.measured_step_seconds),
    "measured_communication_share": _if_given(_T.c.measured_communication_share),
    "check_share": _if_given(_T.c.check_share),
    "noise_scale": _if_given(_T.c.noise_scale),
}
UPDATE_VALUE = (
    sa.update(_T)
    .where(_of_trial, _T.c.attempt == bindparam("_attempt"))
    .values({**_measured, **_set("step", "value", "values")})
)
_is_better = {
    "maximize": sa.or_(_T.c.value.is_(None), _T.c.value < bindparam("_value", type_=_T.c.value.type)),
    "minimize": sa.or_(_T.c.value.is_(None), _T.c.value > bindparam("_value", type_=_T.c.value.type)),
}
UPDATE_BEST = {
    direction: sa.update(_T)
    .where(_of_trial, _T.c.attempt == bindparam("_attempt"))
    .values(
        {
            **_measured,
            **_set("step"),
            "value": sa.case((is_better, bindparam("_value", type_=_T.c.value.type)), else_=_T.c.value),
            "best_step": sa.case((is_better, bindparam("_best_step", type_=_T.c.best_step.type)), else_=_T.c.best_step),
        }
    )
    for direction, is_better in _is_better.items()
}
"""By the direction of the objective: sets the value of a trial that counts by its best report, if this is better."""
UPDATE_MEASURED = sa.update(_T).where(_of_trial).values(_measured)

INSERT_EVENT = sa.insert(schema.events)
INSERT_TRIAL_EVENT = INSERT_EVENT.values(
    study_id=select(_T.c.study_id).where(_T.c.id == bindparam("_trial_id")).scalar_subquery(),
    **{name: bindparam(name) for name in ("time", "kind", "trial_id", "data")},
)

_L = schema.leases
_of_lease = sa.and_(_L.c.name == bindparam("_name"), _L.c.term == bindparam("_term"))
_held = sa.and_(_of_lease, _L.c.holder == bindparam("_holder"))
_of_seen = sa.and_(_of_lease, _L.c.renewals == bindparam("_renewals"))
_renewed_at: dict[str, Any] = {"renewed_at": bindparam("_now")}

TAKE_LEASE = sa.update(_L).where(_of_seen)
TAKE_LEASE = TAKE_LEASE.values(holder=bindparam("_taker"), term=_L.c.term + 1, renewals=0, **_renewed_at)
TAKE_LEASE = TAKE_LEASE.returning(_L.c.term)
RENEW_LEASE = sa.update(_L).where(_held).values(renewals=_L.c.renewals + 1, **_renewed_at).returning(_L.c.renewals)
RELEASE_LEASE = sa.update(_L).where(_held).values(holder="")
HOLDS_LEASE = select(_L.c.term).where(_held).with_for_update(read=True)
"""On PostgreSQL nobody can take the lease before this transaction has ended. SQLite has one writer anyway."""


NOTE_RAN = sa.update(schema.studies).where(schema.studies.c.id == bindparam("_id")).values(_set("ran_seconds"))
NOTE_REGRET = (
    sa.update(schema.studies)
    .where(schema.studies.c.id == bindparam("_id"))
    .values(_set("regret_bound"))
    .returning(schema.studies.c.name, schema.studies.c.state, schema.studies.c.spec)
)


@cache
def move_study(legal: tuple[StudyState, ...], finishes: bool) -> Any:
    """UPDATE of a study's state if it is one of ``legal``; ``finishes`` also sets ``finished_at``."""
    names = ["state", "reason", "ends_as", *(["finished_at"] if finishes else [])]
    statement = sa.update(schema.studies).where(schema.studies.c.id == bindparam("_id"))
    statement = statement.where(one_of(schema.studies.c.state, *legal))
    return statement.values(_set(*names)).returning(schema.studies.c.name)


@cache
def move_trial(names: tuple[str, ...]) -> Any:
    """UPDATE of the columns ``names`` of a trial, if its state and attempt are as expected."""
    compared = (_T.c.state == bindparam("_expected_state"), _T.c.attempt == bindparam("_expected_attempt"))
    return sa.update(_T).where(_of_trial, *compared).values(_set(*names)).returning(*TRIAL_EVENT)


@cache
def move_attempt(legal: tuple[AttemptState, ...], ends: bool) -> Any:
    """UPDATE of an attempt's state and outcome if its state is one of ``legal``; ``ends`` also sets ``ended_at``.

    A stored outcome is kept, with its detail.
    """
    values = _set("state", *(["ended_at"] if ends else []))
    for name in ("outcome", "detail"):
        values[name] = sa.case((_A.c.outcome.is_(None), bindparam(f"_{name}", type_=_A.c[name].type)), else_=_A.c[name])
    measured = _A.c.measured_bytes, _A.c.measured_communication_share, _A.c.load
    of_pack = _A.c.trial_id, _A.c.attempt, _A.c.pack, _A.c.shared_mib
    moved = sa.update(_A).where(_of_attempt, one_of(_A.c.state, *legal)).values(values)
    return moved.returning(*_attempt_event, *measured, *of_pack)


def _insert(is_sqlite: bool, table: sa.Table) -> Any:
    return sqlite.insert(table) if is_sqlite else postgresql.insert(table)


@cache
def insert_new(is_sqlite: bool, table: sa.Table, unique: tuple[str, ...], returns: str) -> Any:
    """INSERT that skips a row whose ``unique`` columns exist already; ``returns`` names a column of the new row."""
    statement = _insert(is_sqlite, table).on_conflict_do_nothing(index_elements=unique)
    return statement.returning(table.c[returns]) if returns else statement


@cache
def tally(is_sqlite: bool, is_largest: bool) -> Any:
    """INSERT of a tally that adds to the one that exists, or with ``is_largest`` keeps the larger of both."""
    table, statement = schema.tallies, _insert(is_sqlite, schema.tallies)
    inserted_num = statement.excluded.num
    larger = sa.case((table.c.num < inserted_num, inserted_num), else_=table.c.num)
    num = larger if is_largest else table.c.num + inserted_num
    return statement.on_conflict_do_update(index_elements=["study_id", "name"], set_={"num": num})


@cache
def add_usage(is_sqlite: bool) -> Any:
    """INSERT of device time on a day, which adds to what the owner has used in the project on that day."""
    table, statement = schema.usage, _insert(is_sqlite, schema.usage)
    sums = {name: table.c[name] + statement.excluded[name] for name in schema.DEVICE_TIME}
    return statement.on_conflict_do_update(index_elements=["day", "owner", "project"], set_=sums)


@cache
def replace(is_sqlite: bool, table: sa.Table, key: str) -> Any:
    """INSERT that overwrites the row with the same ``key``."""
    statement = _insert(is_sqlite, table)
    others = {column.name: statement.excluded[column.name] for column in table.c if column.name != key}
    return statement.on_conflict_do_update(index_elements=[key], set_=others)


@cache
def upsert(is_sqlite: bool, table: sa.Table) -> Any:
    """INSERT that overwrites the row with the same primary key."""
    statement, keys = _insert(is_sqlite, table), [column.name for column in table.primary_key.columns]
    others = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=others)
