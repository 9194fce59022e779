"""Requests about a study that was submitted before: to try candidates of the user's, to continue for longer, to retry
failed trials, to have another priority, to delete.

A request that is repeated changes nothing: candidates have a key, and a budget is given as a whole. A study that would
end at once is not continued: the refusal says which limit it has reached, and what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, select

from scamp_service.access.model import Actor
from scamp_service.errors import Conflict, InvalidInput, NotFound
from scamp_service.lifecycle import (
    LIMIT_RAISED,
    LIVE_STUDIES,
    LIVE_TRIALS,
    STUDY_MOVES,
    Origin,
    StudyState,
    TrialState,
    WaitsFor,
    seen_state,
)
from scamp_service.limits import Reached, limit_reached
from scamp_service.model import Json, Study
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.database import Database
from scamp_service.store.events import TrialChange
from scamp_service.store.parts.counts import Counts
from scamp_service.store.parts.part import WritingPart, no_study
from scamp_service.store.parts.studies import Studies
from scamp_service.store.rows import new_trial
from scamp_service.store.schema import one_of
from scamp_service.store.tallies import BESIDE, own_states
from scamp_service.study.objectives import Objectives, Values
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

RAISED = ("trials", "seconds", "device_hours")
"""Limits of a budget that may be larger later, but not smaller."""
REPLACED = ("target", "max_concurrent")
"""Those that may have any other value later."""
DROPPED = ("seconds", "device_hours", "target", "terminator", "max_concurrent")
"""Those that a study may lose later."""
KEY = "scamp:enqueued:"
"""Attributes of a study with this prefix hold the numbers of the trials that a request has enqueued, by its key."""

RETRIED = "will be planned and run again, as a user retries it after: "
"""Begins the reason of a trial that is retried; the reason for which it had failed follows."""

ENDED = sorted(state for state, moves in STUDY_MOVES.items() if StudyState.DELETED in moves)
"""States of a study that can be deleted."""

_S, _T, _A = schema.studies, schema.trials, schema.study_attributes
_STATE = select(_S.c.state, _S.c.name, _S.c.spec).where(_S.c.id == bindparam("id"))
_DELETE = (
    sa.update(_S)
    .where(_S.c.id == bindparam("_id"), one_of(_S.c.state, *ENDED))
    .values(state=StudyState.DELETED, name="", spec={}, reason="", idempotency_key=None, body_sha256="")
    .returning(_S.c.id)
)
_DELETE_TALLIES = sa.delete(schema.tallies).where(schema.tallies.c.study_id == bindparam("_id"))
_DELETE_ATTRIBUTES = sa.delete(schema.study_attributes).where(schema.study_attributes.c.study_id == bindparam("_id"))
_DELETE_DELIVERIES = sa.delete(schema.deliveries).where(schema.deliveries.c.study_id == bindparam("_id"))
_STUDY = (
    select(_S.c.id, _S.c.name, _S.c.state, _S.c.spec, _S.c.reason, _S.c.ends_as)
    .where(_S.c.id == bindparam("study_id"), _S.c.state != StudyState.DELETED)
    .with_for_update(key_share=True)
)
_RUN_AGAIN = (
    sa.update(_S)
    .where(_S.c.id == bindparam("_id"))
    .values(spec=bindparam("_spec"), state=StudyState.RUNNING, finished_at=None, reason="", ends_as=None)
)
_SET_SPEC = sa.update(_S).where(_S.c.id == bindparam("_id")).values(spec=bindparam("_spec"))
_CONTINUE_CANCELLED = (
    sa.update(_T)
    .where(_T.c.study_id == bindparam("_study_id"), _T.c.state == TrialState.CANCELLED, _T.c.origin != Origin.EXTERNAL)
    .where(_T.c.reason == bindparam("_cancelled_because"))
    .values(state=TrialState.WAITING, finished_at=None, passed_over=0)
    .values(reason=LIMIT_RAISED, waits_for=WaitsFor.NEW_PLAN)
    .returning(_T.c.id, *sql.TRIAL_EVENT)
)
_CHOSEN = select(_T.c.number, _T.c.state).where(_T.c.study_id == bindparam("study_id"), _T.c.origin != Origin.EXTERNAL)
_RETRY = (
    sa.update(_T)
    .where(_T.c.study_id == bindparam("_study_id"), _T.c.number == bindparam("_number"))
    .where(_T.c.state == TrialState.FAILED)
    .values(state=TrialState.WAITING, waits_for=WaitsFor.NEW_PLAN, finished_at=None)
    .values(num_failures=0, num_lost=0, num_faults=0, retry_at=0.0, passed_over=0, reason=RETRIED + _T.c.reason)
    .returning(_T.c.id, *sql.TRIAL_EVENT)
)
_KNOWN = select(_A.c.value).where(_A.c.study_id == bindparam("study_id"), _A.c.name == bindparam("name"))


class Requests(WritingPart):
    """The methods of the store for requests of users about a study."""

    def __init__(self, database: Database, fence: Json | None = None, actor: Actor | None = None) -> None:
        super().__init__(database, fence, actor)
        self._studies, self._counts = Studies(database), Counts(database)

    def enqueue(
        self,
        study_id: int,
        candidates: Sequence[Json],
        key: str,
        *,
        results: Sequence[Values] = (),
        now: float,
    ) -> list[int]:
        """Add trials with these parameters, in addition to the study's budget; returns their numbers.

        A study that is COMPLETED runs again for them. With ``results``, the value of each objective that each was found
        to have elsewhere, they are COMPLETED trials, and the study does not run for them. A request with the same
        ``key`` returns the same. Raises ``NotFound``, and ``Conflict`` for a study that was stopped, has failed, or has
        reached a limit of its budget.
        """
        name, before = KEY + key, self._studies.get(study_id)
        reached = None
        runs_again = before.state is StudyState.COMPLETED and not results
        if runs_again:
            _expect_own(before)
            reached = self._limit_reached(before, parse_study(before.spec), now)
        with self._write() as connection:
            study = self._locked_study(connection, study_id)
            known_number = connection.execute(_KNOWN, {"study_id": study_id, "name": name}).scalar()
            if known_number is not None:
                return list(known_number)
            _expect_may_continue(study)
            if reached:
                raise Conflict(f"study {study_id} would end at once: {reached.why}; extend it first: {reached.remedy}")
            first = int(connection.execute(sql.NEXT_NUMBER, {"study_id": study_id}).scalar_one())
            new: list[TrialChange] = []
            for number, (params, values) in enumerate(zip_longest(candidates, results), first):
                row = new_trial(study_id, number, params, now) | {"origin": Origin.ENQUEUED}
                if values is not None:
                    row |= _told(values, Objectives.of_spec(study.spec), now)
                trial_id = connection.execute(sa.insert(_T).returning(_T.c.id), row).scalar_one()
                change = TrialChange.of_new(trial_id, number)
                new.append(replace(change, **{name: row[name] for name in ("state", "value", "reason") if name in row}))
            numbers = [change.number for change in new]
            row = {"study_id": study_id, "is_system": False, "name": name, "value": numbers}
            connection.execute(sa.insert(_A), row)
            self._record(connection, "tell" if results else "enqueue", study_id, trials=numbers)
            runs_again = study.state is StudyState.COMPLETED and not results
            if runs_again:
                connection.execute(_RUN_AGAIN, {"_id": study_id, "_spec": study.spec})
            num_new, state = float(len(new)), TrialState.COMPLETED if results else TrialState.WAITING
            self._tally(connection, study_id, {state.value: num_new, BESIDE: num_new})
            self._emit_trials(connection, new, now, study_id)
            if runs_again:
                self._emit_study(connection, study_id, study.name, seen_state(StudyState.RUNNING, study.spec), now=now)
        return numbers

    def extend(self, study_id: int, limits: Mapping[str, Any], *, now: float) -> None:
        """Change limits of a study's budget: see ``RAISED``, ``REPLACED`` and, with None for a value, ``DROPPED``.

        A study that is COMPLETED runs again. If a limit had ended it, the trials that were cancelled for that continue.
        Raises ``NotFound``, ``InvalidInput`` for limits that are lower than before, and ``Conflict`` for a study that
        was stopped, has failed, has reached one of the new limits already, or would have nothing to do.
        """
        before = self._studies.get(study_id)
        _expect_own(before)
        reached = self._limit_reached(before, _extended(before.spec, limits), now)
        num_proposed = self._num_proposed(study_id)
        with self._write() as connection:
            study = self._locked_study(connection, study_id)
            _expect_may_continue(study)
            spec = _extended(study.spec, limits)
            if spec.to_json() == study.spec:
                return
            if reached:
                raise Conflict(f"study {study_id} would end at once: {reached.why}; {reached.remedy}")
            connection.execute(_RUN_AGAIN, {"_id": study_id, "_spec": spec.to_json()})
            self._record(connection, "extend", study_id, **limits)
            if study.state is StudyState.COMPLETED and not self._continue_cancelled(connection, study, now):
                _expect_more_candidates(study, spec, num_proposed)
            self._emit_study(connection, study_id, study.name, seen_state(StudyState.RUNNING, study.spec), now=now)

    def retry(self, study_id: int, numbers: Collection[int] | None = None, *, now: float) -> list[int]:
        """Let failed trials run again, all or those with these numbers; returns the numbers of those that had failed.

        A study that is COMPLETED or FAILED runs again. A trial that has not ended stays as it is. Raises ``NotFound``,
        and ``Conflict`` for trials that have ended in another state, for a study that was stopped, and for one that has
        reached a limit of its budget.
        """
        before = self._studies.get(study_id)
        _expect_own(before)
        reached = self._limit_reached(before, parse_study(before.spec), now)
        with self._write() as connection:
            study = self._locked_study(connection, study_id)
            states = {row.number: row.state for row in connection.execute(_CHOSEN, {"study_id": study_id})}
            failed = _failed(study_id, states, numbers)
            if not failed:
                return []
            if study.state is not StudyState.FAILED:
                _expect_may_continue(study)
            if reached:
                remedy = "clone it" if study.state is StudyState.FAILED else f"extend it first: {reached.remedy}"
                raise Conflict(f"study {study_id} would end at once: {reached.why}; {remedy}")
            if study.state is not StudyState.RUNNING:
                connection.execute(_RUN_AGAIN, {"_id": study_id, "_spec": study.spec})
            self._record(connection, "retry", study_id, trials=failed)
            keys = [{"_study_id": study_id, "_number": number} for number in failed]
            retried = [connection.execute(_RETRY, key).one() for key in keys]
            num_retried = float(len(retried))
            changes = {TrialState.FAILED.value: -num_retried, TrialState.WAITING.value: num_retried}
            self._tally(connection, study_id, changes)
            for trial in retried:
                self._emit_trial(connection, trial.id, trial, now)
            if study.state is not StudyState.RUNNING:
                self._emit_study(connection, study_id, study.name, seen_state(StudyState.RUNNING, study.spec), now=now)
        return failed

    def describe(self, study_id: int, changes: Mapping[str, Any], *, now: float) -> None:
        """Change the name, tags or note of a study, or whether it is archived. Raises ``NotFound``."""
        with self._write() as connection:
            study = connection.execute(_STUDY, {"study_id": study_id}).first()
            if study is None:
                raise no_study(study_id)
            if not changes:
                return
            values = dict(changes)
            if "name" in changes and "name" in study.spec:
                values["spec"] = {**study.spec, "name": changes["name"]}
            connection.execute(sa.update(_S).where(_S.c.id == study_id).values(**values))
            self._record(connection, "describe", study_id, **changes)
            name = changes.get("name", study.name)
            self._emit_study(connection, study_id, name, seen_state(study.state, study.spec), now=now)

    def prioritize(self, study_id: int, priority: int, *, now: float) -> None:
        """Give a study another priority: the next placement uses it. Raises ``NotFound`` and ``InvalidInput``."""
        with self._write() as connection:
            study = self._locked_study(connection, study_id)
            self._set_in_spec(connection, study, {"priority": priority}, now)

    def pause(self, study_id: int, *, paused: bool, now: float) -> None:
        """Let no trial of a study run, or all. Raises ``NotFound``, and ``Conflict`` for one that is not RUNNING."""
        with self._write() as connection:
            study = self._locked_study(connection, study_id)
            if study.state is not StudyState.RUNNING:
                raise Conflict(
                    f"study {study_id} is {study.state.value}; only a running study can be paused or resumed"
                )
            self._set_in_spec(connection, study, {"paused": paused}, now)

    def delete(self, study_id: int, *, now: float) -> None:
        """Delete a study that has ended: from now on nobody sees it. No effect if it is deleted already.

        Raises ``NotFound``, and ``Conflict`` while the study or any of its attempts has not ended.
        """
        with self._write() as connection:
            row = connection.execute(_STATE, {"id": study_id}).first()
            if row is None:
                raise no_study(study_id)
            if row.state is StudyState.DELETED:
                return
            if row.state in LIVE_STUDIES:
                state = seen_state(row.state, row.spec)
                raise Conflict(
                    f"study {study_id} is {state.value}: stop it with `scamp stop {study_id}` or POST "
                    f"/v1/studies/{study_id}:stop, and delete it once it has ended"
                )
            if connection.execute(queries.OPEN_OF_STUDY, {"study_id": study_id}).first():
                raise Conflict(
                    f"the last trials of study {study_id} are still being stopped; try again in a few seconds"
                )
            connection.execute(_DELETE_TALLIES, {"_id": study_id})
            connection.execute(_DELETE_ATTRIBUTES, {"_id": study_id})
            if connection.execute(_DELETE, {"_id": study_id}).first():
                connection.execute(_DELETE_DELIVERIES, {"_id": study_id})
                self._record(connection, "delete", study_id, name=row.name)
                self._emit_study(connection, study_id, row.name, StudyState.DELETED, now=now)

    def _locked_study(self, connection: sa.Connection, study_id: int) -> Any:
        """A study of ScaMP, in some columns, which nobody else changes before the end of the transaction."""
        study = connection.execute(_STUDY, {"study_id": study_id}).first()
        if study is None:
            raise no_study(study_id)
        _expect_own(study)
        return study

    def _set_in_spec(self, connection: sa.Connection, study: Any, fields: Json, now: float) -> None:
        spec = parse_study({**study.spec, **fields}).to_json()
        if spec != study.spec:
            connection.execute(_SET_SPEC, {"_id": study.id, "_spec": spec})
            self._record(connection, "change", study.id, **fields)
            self._emit_study(connection, study.id, study.name, seen_state(study.state, spec), now=now)

    def _limit_reached(self, study: Study, spec: StudySpec, now: float) -> Reached | None:
        """The limit of the budget in ``spec`` that the study has reached, if any."""
        return limit_reached(spec, self._counts.used(study, spec, now=now))

    def _num_proposed(self, study_id: int) -> int:
        """Number of trials that the study's sampler has proposed."""
        tallies = self._counts.tallies(study_id)
        return sum(own_states(tallies).values()) - int(tallies.get(BESIDE, 0))

    def _continue_cancelled(self, connection: sa.Connection, study: Any, now: float) -> bool:
        """Let the trials wait again that the limit which has ended the study had cancelled; whether there are any."""
        keys = {"_study_id": study.id, "_cancelled_because": study.reason}
        trials = connection.execute(_CONTINUE_CANCELLED, keys).all() if study.reason else ()
        num_trials = float(len(trials))
        if trials:
            changes = {TrialState.CANCELLED.value: -num_trials, TrialState.WAITING.value: num_trials}
            self._tally(connection, study.id, changes)
        for trial in trials:
            self._emit_trial(connection, trial.id, trial, now)
        return bool(trials)


def _expect_own(study: Any) -> None:
    """Raise ``Conflict`` for a study that ScaMP does not run."""
    if study.state is StudyState.EXTERNAL or "directions" in study.spec:
        raise Conflict(f"study {study.id} was run by other programs; ScaMP cannot continue it")


def _expect_may_continue(study: Any) -> None:
    """Raise ``Conflict`` unless the study is RUNNING or COMPLETED."""
    if study.state is StudyState.STOPPING and study.ends_as is StudyState.COMPLETED:
        raise Conflict(f"study {study.id} is just ending at a limit of its budget; try again in a few seconds")
    if study.state not in (StudyState.RUNNING, StudyState.COMPLETED):
        raise Conflict(f"study {study.id} is {study.state.value}; clone it to run it again")


def _expect_more_candidates(study: Any, spec: StudySpec, num_proposed: int) -> None:
    """Raise ``Conflict`` if a COMPLETED study, none of whose trials continues, would have nothing to do."""
    if not study.reason and num_proposed < study.spec["budget"]["trials"]:
        raise Conflict(
            f"study {study.id} has ended because its sampler had no candidates left after {num_proposed} trials; "
            "enqueue candidates, or submit a study with a larger space"
        )
    if num_proposed >= spec.budget.trials:
        raise Conflict(
            f"study {study.id} has tried all its {spec.budget.trials} trials (budget.trials); raise trials, too, or "
            "enqueue candidates"
        )


def _failed(study_id: int, states: Mapping[int, TrialState], numbers: Collection[int] | None) -> list[int]:
    """The trials that have failed, among those with these numbers (None: among all). Raises for any that cannot."""
    for number in numbers or ():
        if number not in states:
            raise NotFound(f"study {study_id} has no trial {number}; `scamp trials {study_id}` shows its trials")
        if (state := states[number]) not in (TrialState.FAILED, *LIVE_TRIALS):
            raise Conflict(f"trial {number} of study {study_id} is {state.value}; only failed trials can be retried")
    return sorted(
        number
        for number, state in states.items()
        if state is TrialState.FAILED and (numbers is None or number in numbers)
    )


def _extended(spec: Json, limits: Mapping[str, Any]) -> StudySpec:
    """The spec with these limits. Raises ``InvalidInput``."""
    budget = dict(spec["budget"])
    for name, limit in limits.items():
        if limit is None:
            _expect_one_of(name, DROPPED, "dropped")
        else:
            _expect_one_of(name, (*RAISED, *REPLACED), "changed")
        if limit is not None and name in RAISED:
            _expect_larger(name, limit, budget.get(name))
        budget[name] = limit
    return parse_study({**spec, "budget": budget})


def _expect_one_of(name: str, names: Sequence[str], change: str) -> None:
    if name not in names:
        raise InvalidInput(f"budget.{name} cannot be {change} later; only {', '.join(names)}")


def _expect_larger(name: str, limit: Any, before: float | None) -> None:
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if before is not None and (not is_number or limit < before):
        raise InvalidInput(f"budget.{name} must be a number of at least {before}, the limit so far; got {limit!r}")


def _told(values: Values, objectives: Objectives, now: float) -> dict[str, Any]:
    """Columns of a trial whose values somebody tells."""
    return {
        "state": TrialState.COMPLETED,
        "reason": "its result was told, and it was not trained here",
        "waits_for": None,
        "value": values[objectives.items.index(objectives.leading)],
        "values": values if objectives.has_several else None,
        "finished_at": now,
    }
