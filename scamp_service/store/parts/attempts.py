"""Attempts of trials: begins, moves and reads them. What their ranks report is in ``reports``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import sqlalchemy as sa

from estimators.learning import AttemptPhase, Ending, PastAttempt
from estimators.model import MIB
from placement.packing.device_time import DeviceTime, of_day, seconds_by_day
from scamp_service.lifecycle import ATTEMPT_MOVES, OPEN_ATTEMPTS, AttemptState, Outcome, TrialState
from scamp_service.model import Attempt, brought_mib
from scamp_service.store import queries
from scamp_service.store import statements as sql
from scamp_service.store.parts.part import WritingPart, legal_states, underscored
from scamp_service.store.rows import UNMEASURED, columns_of, values_of
from scamp_service.store.tallies import held_by
from workloads.training.checkpoints.name import CheckpointName

_ENDINGS = {
    Outcome.DONE: Ending.FINISHED,
    Outcome.OUT_OF_MEMORY: Ending.OUT_OF_MEMORY,
    Outcome.DEPENDS_ON_DIVISION: Ending.DEPENDS_ON_DIVISION,
}


class Attempts(WritingPart):
    """Reads and writes of attempts."""

    def begin(self, attempt: Attempt) -> bool:
        """Insert the attempt and move its trial from QUEUED to RUNNING.

        Returns False unless the trial is QUEUED and its attempt count is one less than this attempt's number. The
        trial's reason becomes that of the placement, and its plan that of the attempt. ``created_at`` of the
        attempt is the time of the move.
        """
        trial_id, now = attempt.trial_id, attempt.created_at
        columns = {"state": TrialState.RUNNING, "attempt": attempt.attempt, "reason": attempt.placement_reason}
        columns |= {"passed_over": 0, "waits_for": None, "requeued_because": ""}
        expected = {"_id": trial_id, "_expected_state": TrialState.QUEUED, "_expected_attempt": attempt.attempt - 1}
        with self._write() as connection:
            before = connection.execute(sql.BEFORE_MOVE, {"id": trial_id}).first()
            if before is None or before.state is not TrialState.QUEUED:
                return False
            columns["started_at"] = now if before.started_at is None else before.started_at
            if before.sized.plan != attempt.plan:
                columns |= UNMEASURED
            columns["sized"] = before.sized.taking(attempt.choice)
            statement = sql.move_trial(tuple(sorted(columns)))
            begun = connection.execute(statement, expected | underscored(columns)).first()
            if begun:
                connection.execute(sql.INSERT_ATTEMPT, columns_of(attempt))
                self._tally_move(connection, before, begun)
                self._tally_gang(connection, begun.study_id, attempt)
                self._emit_trial(connection, trial_id, begun, now)
                self._emit_attempt(connection, trial_id, attempt.attempt, attempt, now, begun.study_id)
        return begun is not None

    def move(
        self,
        trial_id: int,
        attempt: int,
        expected: Iterable[AttemptState],
        to: AttemptState,
        *,
        outcome: Outcome | None = None,
        detail: str = "",
        now: float,
    ) -> bool:
        """Move an attempt to ``to`` if its state is one of ``expected`` that may become ``to``; otherwise False.

        An outcome that the ranks have already reported is kept, with its detail.
        """
        states = legal_states(ATTEMPT_MOVES, expected, to)
        columns: dict[str, Any] = {"state": to, "outcome": outcome, "detail": detail}
        if to not in OPEN_ATTEMPTS:
            columns["ended_at"] = now
        values = {"_trial_id": trial_id, "_attempt": attempt, **underscored(columns)}
        with self._write() as connection:
            moved = connection.execute(sql.move_attempt(states, to not in OPEN_ATTEMPTS), values).first()
            if moved:
                if moved.outcome is Outcome.OUT_OF_MEMORY:
                    self._measure(connection, trial_id)
                if to not in OPEN_ATTEMPTS:
                    study_id = connection.execute(sql.STUDY_OF_TRIAL, {"id": trial_id}).scalar_one()
                    self._tally(connection, study_id, asdict(held_by(moved, now)))
                    self._use(connection, study_id, moved)
                self._emit_attempt(connection, trial_id, attempt, moved, now)
        return moved is not None

    def _use(self, connection: sa.Connection, study_id: int, ended: Any) -> None:
        """Add the devices that an attempt has held to what its study's owner has used."""
        mib = ended.choice.prediction.reserved_mib - brought_mib(ended)
        holder = connection.execute(sql.OWNER_OF_STUDY, {"id": study_id}).one()._mapping
        held = partial(DeviceTime.of_gang, num_devices=len(ended.devices), mib=mib)
        rows = [
            {**holder, "day": day, **asdict(held(seconds, load=of_day(ended.load, day)))}
            for day, seconds in seconds_by_day(ended.created_at, ended.ended_at)
        ]
        if rows:
            connection.execute(sql.add_usage(self._database.sqlite), rows)

    def of_trial(self, trial_id: int) -> list[Attempt]:
        """The attempts of a trial, by number."""
        return self._all(Attempt, queries.TRIAL_ATTEMPTS, trial_id=trial_id)

    def open(self) -> list[Attempt]:
        """Every attempt that is not ENDED, by the time at which it began."""
        return self._all(Attempt, queries.ALL_OPEN_ATTEMPTS)

    def of_study(self, study_id: int) -> list[Attempt]:
        """All attempts of the study's trials, by trial and attempt."""
        return self._all(Attempt, queries.STUDY_ATTEMPTS, study_id=study_id)

    def checkpoints(self, trial_ids: Sequence[int]) -> dict[int, CheckpointName]:
        """The last committed checkpoint by trial id, for trials that have one."""
        return {
            trial_id: CheckpointName(trial_id, step) for trial_id, step in self._by_ids(queries.CHECKPOINTS, trial_ids)
        }

    def family_runs(self, family: str, num_trials: int) -> list[PastAttempt]:
        """Attempts of a family that say something about its memory or its speed, by trial and attempt.

        They come from the newest ``num_trials`` trials of the family that have begun, over all studies.
        """
        return [_run(row) for row in self._rows(queries.FAMILY_RUNS, family=family, num_trials=num_trials)]

    def trial_runs(self, trial_ids: Sequence[int]) -> dict[int, list[PastAttempt]]:
        """Attempts that say something about the memory of each of these trials, by attempt."""
        runs: dict[int, list[PastAttempt]] = {trial_id: [] for trial_id in trial_ids}
        for row in self._by_ids(queries.TRIAL_RUNS, trial_ids):
            runs[row.trial_id].append(_run(row))
        return runs

    def sharing_with(self, attempt: Attempt, study_id: int) -> list[int]:
        """Numbers of the trials that share the process of an attempt, or have done so, and its own."""
        if not attempt.pack:
            return []
        span = {"created_at": attempt.created_at, "ended_at": attempt.ended_at}
        return self._values(queries.NUMBERS_OF_PACK, study_id=study_id, pack=attempt.pack, **span)

    def measured(self, study_id: int, *, after: int = 0, num_trials: int = 1000) -> list[tuple[int, Attempt]]:
        """(trial number, attempt) for attempts that measured a peak or ran out of memory, by trial and attempt.

        They come from the first ``num_trials`` trials with such an attempt and id > ``after``.
        """
        return self._all(_numbered, queries.MEASURED_ATTEMPTS, study_id=study_id, after=after, num_trials=num_trials)

    def measured_of(self, trial_ids: Sequence[int]) -> list[tuple[int, Attempt]]:
        """Measured attempts of these trials."""
        return values_of(_numbered, self._by_ids(queries.MEASURED_ATTEMPTS_OF, trial_ids))

    def measured_trials(self, study_id: int, most: int) -> list[int]:
        """Ids of at most ``most`` measured trials of the study, which show how far predictions are off.

        They are spread over the errors of predicted peaks, and of step times, and over the trials that ran out of
        memory, so that the worst of each are among them.
        """
        trial_ids: set[int] = set()
        for name, share in _SPREAD.items():
            count, *_ = queries.errors(name)
            num = self._value(count, study_id=study_id)
            every = max(1, math.ceil(num / max(1, int(most * share) - 1)))
            trial_ids.update(self._values(queries.spread_by(name), study_id=study_id, every=every, last=num))
        return sorted(trial_ids)


_SPREAD = {"peak_error_pct": 0.4, "step_error_pct": 0.3, "least_excess_pct": 0.3}
"""Errors by which trials are chosen, and the share of each."""


def _numbered(*, number: int, **fields: Any) -> tuple[int, Attempt]:
    return number, Attempt(**fields)


def _run(row: Any) -> PastAttempt:
    """The run in a row of ``queries.FAMILY_RUNS`` or ``queries.TRIAL_RUNS``."""
    plan, prediction = row.choice.plan, row.choice.prediction
    ending = _ENDINGS.get(row.outcome, Ending.OTHER)
    if ending is Ending.OUT_OF_MEMORY and row.phase == AttemptPhase.EVALUATION:
        ending = Ending.EVALUATION_OUT_OF_MEMORY
    return PastAttempt(
        trial_id=row.trial_id,
        layout=plan.layout,
        device_kinds=row.device_kinds,
        traced_bytes=prediction.traced_bytes,
        extra_bytes=prediction.extra_bytes,
        reserved_bytes=prediction.reserved_mib * MIB,
        measured_bytes=row.measured_bytes,
        ending=ending,
        study_id=row.study_id,
        predicted_step_seconds=row.choice.step_seconds,
        step_factor=row.choice.step_factor,
        measured_step_seconds=row.measured_step_seconds,
        micro_batch=plan.micro_batch,
        evaluation_bytes=prediction.evaluation_bytes,
        evaluation_batch=plan.evaluation_micro_batch,
        why=row.why,
    )
