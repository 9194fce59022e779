"""Reads from the study database for the decisions, the API and the dashboard. ``Store`` adds the writes.

Lists come in pages by ascending id: pass the last id of a page as ``after``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from estimators.learning import AttemptPhase, Ending, PastAttempt
from estimators.model import MIB
from placement.model import Offer
from placement.option import Option
from scamp_service.errors import NotFound
from scamp_service.lifecycle import Outcome, StudyState, TrialState, seen_state
from scamp_service.limits import Scores, Used
from scamp_service.model import (
    Attempt,
    Event,
    Lease,
    LogLine,
    Metric,
    RecordedPipeline,
    Refusals,
    Study,
    Totals,
    Trial,
)
from scamp_service.store import queries as sql
from scamp_service.store.connected import Connected, in_parts, no_study
from scamp_service.store.options import option_of
from scamp_service.store.recorded_cluster import RecordedCluster
from scamp_service.store.rows import HistoryRow, MeasuredPoint, Point, Score, trial_of
from scamp_service.store.schema import load_json
from scamp_service.store.tallies import (
    DEVICE_SECONDS,
    MIB_SECONDS,
    Counted,
    ErrorSummary,
    device_seconds,
    num_trials_by_state,
)
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives, Values
from scamp_service.study.spec import StudySpec
from workloads.training.checkpoints.name import CheckpointName

_ENDINGS = {
    Outcome.DONE: Ending.FINISHED,
    Outcome.OUT_OF_MEMORY: Ending.OUT_OF_MEMORY,
    Outcome.DEPENDS_ON_DIVISION: Ending.DEPENDS_ON_DIVISION,
}


class Reads(Connected):
    """The read-only methods of the store."""

    def reading(self) -> AbstractContextManager[None]:
        """A block whose reads, in this thread, share one connection; see ``Database.reading``."""
        return self._database.reading()

    # --- studies -----------------------------------------------------------------------------------------------

    def study(self, study_id: int) -> Study:
        """The study with this id. Raises ``NotFound``."""
        row = self._row(sql.ONE_STUDY, id=study_id)
        if row is None:
            raise no_study(study_id)
        return Study(*row)

    def studies(
        self, *, after: int = 0, limit: int = 100, live: bool = False, newest_first: bool = False
    ) -> list[Study]:
        """Studies with id > ``after``, by ascending id; with ``live`` only those RUNNING or STOPPING.

        With ``newest_first`` studies with id < ``after`` (0: from the newest), by descending id.
        """
        return [Study(*row) for row in self._rows(sql.studies(live, newest_first, after > 0), after=after, limit=limit)]

    def live_studies(self) -> Iterator[Study]:
        """Yield all studies that are RUNNING or STOPPING, by ascending id."""
        after = 0
        while page := self.studies(live=True, after=after):
            yield from page
            after = page[-1].id

    def trial_counts(self, study_id: int) -> dict[TrialState, int]:
        """Number of trials by state; absent states are left out."""
        return num_trials_by_state(self.tallies(study_id))

    def tallies(self, study_id: int) -> dict[str, float]:
        """The numbers that are kept about the study's trials: see ``tallies.Counted``. Zeros may be left out."""
        return dict(self._rows(sql.TALLIES, study_id=study_id))

    def mib_seconds(self) -> dict[int, float]:
        """MiB × seconds that attempts which have ended had reserved, by study."""
        return dict(self._rows(sql.EVERY_TALLY, name=MIB_SECONDS))

    def project(self, study_id: int) -> str:
        """The project of a study; empty if it has none, or does not exist."""
        return str((self._value(sql.SPEC, id=study_id) or {}).get("project", ""))

    def counted(self, study_id: int) -> Counted:
        """The numbers that are kept about the study, and what its trials measured."""
        num_oom, excess = self._row(sql.OUT_OF_MEMORY, study_id=study_id)
        tallies = {name: num for name, num in self.tallies(study_id).items() if num}
        peaks, steps = self._spread("peak_error_pct", study_id), self._spread("step_error_pct", study_id)
        return Counted(tallies, peaks, steps, int(num_oom or 0), excess)

    def _spread(self, name: str, study_id: int) -> ErrorSummary:
        number, middle, largest = sql.errors(name)
        num = self._value(number, study_id=study_id)
        if not num:
            return ErrorSummary()
        middle_values = self._values(middle, study_id=study_id, offset=(num - 1) // 2)
        at_middle = middle_values[0] if num % 2 else sum(middle_values) / 2
        return ErrorSummary(at_middle, self._value(largest, study_id=study_id))

    def used(self, study: Study, spec: StudySpec, scores: Callable[[int, Objectives], Scores], *, now: float) -> Used:
        """How far the study is, as far as ``spec`` has limits on it.

        ``scores`` returns its trials that have a value of each objective, as ``complete_scores`` does.
        """
        objectives = spec.every_objective
        has_targets, several = bool(spec.targets), objectives.has_several
        is_timed = spec.budget.device_hours is not None
        return Used(
            seconds=study.ran_seconds,
            device_hours=self.device_seconds(study.id, now=now) / 3600 if is_timed else 0.0,
            regret_bound=study.regret_bound,
            leaders=self.leaders(study.id, spec.objective) if has_targets and not several else (),
            scores=scores(study.id, objectives) if has_targets and several else {},
        )

    def study_totals(self) -> Totals:
        """Counts over all studies."""
        studies = dict(self._rows(sql.STUDY_TOTALS))
        if paused := sum(seen_state(study.state, study.spec) is StudyState.PAUSED for study in self.live_studies()):
            studies |= {StudyState.RUNNING: studies[StudyState.RUNNING] - paused, StudyState.PAUSED: paused}
        trials = {TrialState(name): int(num) for name, num in self._rows(sql.TRIAL_TOTALS) if num}
        return Totals(studies, trials, open_attempts=self._value(sql.ATTEMPT_TOTALS))

    # --- trials ------------------------------------------------------------------------------------------------

    def trial(self, trial_id: int) -> Trial:
        """The trial with this id, which is unique over all studies. Raises ``NotFound``."""
        row = self._row(sql.ONE_TRIAL, id=trial_id)
        if row is None:
            raise NotFound(f"there is no trial {trial_id}; `scamp trials STUDY` shows the trials of a study")
        return trial_of(row)

    def trial_by_number(self, study_id: int, number: int) -> Trial:
        """The trial with this number in its study. Raises ``NotFound``."""
        row = self._row(sql.NUMBERED_TRIAL, study_id=study_id, number=number)
        if row is None:
            raise NotFound(f"study {study_id} has no trial {number}; `scamp trials {study_id}` shows its trials")
        return trial_of(row)

    def trials(
        self, study_id: int, *, after: int = 0, limit: int = 1000, states: Iterable[TrialState] | None = None
    ) -> list[Trial]:
        """Trials with id > ``after``, by ascending id and so also by number; ``states`` keeps only these states."""
        statement = sql.trials_page(states is not None)
        filters: dict[str, Any] = {} if states is None else {"states": list(states)}
        return [trial_of(row) for row in self._rows(statement, study_id=study_id, after=after, limit=limit, **filters)]

    def trials_numbered(self, study_id: int, numbers: Sequence[int]) -> list[Trial]:
        """The trials with these numbers in their study that exist, by number."""
        return [trial_of(row) for row in self._rows(sql.NUMBERED_TRIALS, study_id=study_id, numbers=list(numbers))]

    def history(self, study_id: int) -> list[HistoryRow]:
        """Every trial of the study that has begun or ended, by number, in a few columns."""
        return [HistoryRow(*row) for row in self._rows(sql.HISTORY, study_id=study_id)]

    def scores(self, study_id: int = 0, trial_ids: Collection[int] | None = None) -> list[Score]:
        """Every trial of the study that has a plan or a value, by number, in the columns of its objectives.

        With ``trial_ids`` only these, of any study.
        """
        if trial_ids is None:
            return [Score(*row) for row in self._rows(sql.SCORES, study_id=study_id)]
        return [Score(*row) for row in self._by_ids(sql.SCORES_OF_TRIALS, sorted(trial_ids))]

    def complete_scores(self, study_id: int, objectives: Objectives) -> dict[int, tuple[TrialState, Values]]:
        """Number → state and values of each trial of the study that has a value of all objectives."""
        scored = [(score, objectives.values_of(score)) for score in self.scores(study_id)]
        return {score.number: (score.state, values) for score, values in scored if values}

    def front(self, study_id: int, objectives: Objectives) -> list[Score]:
        """The trials on the Pareto front, by number (see ``Objectives.front_of``); empty with one objective."""
        return objectives.front_of(self.scores(study_id)) if objectives.has_several else []

    def live_trials(self) -> list[Trial]:
        """The trials that ScaMP runs and that are in a non-terminal state, over all studies, by id."""
        return [trial_of(row) for row in self._rows(sql.ALL_LIVE_TRIALS)]

    def refusals(self) -> list[Refusals]:
        """INFEASIBLE trials of running studies by study and by the devices for which this was found, by study."""
        return [Refusals(study, offer, bool(once_fit), at) for study, offer, once_fit, at in self._rows(sql.REFUSALS)]

    def refused_trials(self, study_id: int, offer: Offer, *, limit: int = 100) -> list[Trial]:
        """The first INFEASIBLE trials of a study for which the devices of ``offer`` do not suffice, by id."""
        return [trial_of(row) for row in self._rows(sql.REFUSED_TRIALS, study_id=study_id, offer=offer, limit=limit)]

    def trials_with_ids(self, trial_ids: Sequence[int]) -> list[Trial]:
        """The trials with these ids that exist, by id."""
        return [trial_of(row) for row in self._by_ids(sql.TRIALS_WITH_IDS, trial_ids)]

    def trial_states(self, trial_ids: Sequence[int]) -> dict[int, TrialState]:
        """State by id of the trials with these ids that exist."""
        return dict(self._by_ids(sql.TRIAL_STATES, trial_ids))

    def best_trial(self, study_id: int, objective: Objective) -> Trial | None:
        """The best COMPLETED trial, or else the best that still runs; None if neither exists.

        The lower number wins a tie, and NaN and infinity never win.
        """
        return next(iter(self.leaders(study_id, objective)), None)

    def leading_trial(self, study_id: int, objectives: Objectives) -> Trial | None:
        """The best trial of a study with one objective; None with several, which have a front instead."""
        return None if objectives.has_several else self.best_trial(study_id, objectives.leading)

    def leaders(self, study_id: int, objective: Objective) -> list[Trial]:
        """The best COMPLETED trial, and then the best that still runs or is paused; those that exist."""
        rows = (
            self._row(sql.best_trial(objective.prefers_large, is_completed), study_id=study_id)
            for is_completed in (True, False)
        )
        return [trial_of(row) for row in rows if row]

    def options(self, trial_id: int) -> list[Option]:
        """The plans that were compared when the trial was sized last, in that order; empty before that."""
        return [option_of(data) for data in self._value(sql.OPTIONS, trial_id=trial_id) or ()]

    def pipeline(self, trial_id: int) -> RecordedPipeline | None:
        """The step of the trial's newest plan, if that has a pipeline.

        None for other plans, and for trials that were sized before the database kept it.
        """
        data = self._value(sql.PIPELINE, trial_id=trial_id)
        return RecordedPipeline.from_json(data) if data else None

    # --- attempts ----------------------------------------------------------------------------------------------

    def attempts(self, trial_id: int) -> list[Attempt]:
        """The attempts of a trial, by number."""
        return [Attempt(*row) for row in self._rows(sql.TRIAL_ATTEMPTS, trial_id=trial_id)]

    def open_attempts(self) -> list[Attempt]:
        """Every attempt that is not ENDED, by the time at which it began."""
        return [Attempt(*row) for row in self._rows(sql.ALL_OPEN_ATTEMPTS)]

    def study_attempts(self, study_id: int) -> list[Attempt]:
        """All attempts of the study's trials, by trial and attempt."""
        return [Attempt(*row) for row in self._rows(sql.STUDY_ATTEMPTS, study_id=study_id)]

    def checkpoints(self, trial_ids: Sequence[int]) -> dict[int, CheckpointName]:
        """The last committed checkpoint by trial id, for trials that have one."""
        return {trial_id: CheckpointName(trial_id, step) for trial_id, step in self._by_ids(sql.CHECKPOINTS, trial_ids)}

    def device_seconds(self, study_id: int, *, now: float) -> float:
        """Seconds × devices that the study's attempts have held; open attempts count up to ``now``."""
        held = self.tallies(study_id).get(DEVICE_SECONDS, 0.0)
        return held + sum(device_seconds(attempt, now) for attempt in self.open_holds(study_id))

    def open_holds(self, study_id: int) -> Sequence[Any]:
        """``devices``, ``created_at`` and ``ended_at`` of the study's attempts that have not ended."""
        return self._rows(sql.HOLDS, study_id=study_id)

    def family_runs(self, family: str, num_trials: int) -> list[PastAttempt]:
        """Attempts of a family that say something about its memory or its speed, by trial and attempt.

        They come from the newest ``num_trials`` trials of the family that have begun, over all studies.
        """
        rows = self._rows(sql.FAMILY_RUNS, family=family, num_trials=num_trials)
        return [_run(row) for row in rows]

    def trial_runs(self, trial_ids: Sequence[int]) -> dict[int, list[PastAttempt]]:
        """Attempts that say something about the memory of each of these trials, by attempt."""
        runs: dict[int, list[PastAttempt]] = {trial_id: [] for trial_id in trial_ids}
        for row in self._by_ids(sql.TRIAL_RUNS, trial_ids):
            runs[row.trial_id].append(_run(row))
        return runs

    def families(self, study_id: int) -> list[str]:
        """Families of the study's trials that have been planned; the family with the most trials first."""
        return Counted(self.tallies(study_id)).families

    def measured_attempts(self, study_id: int, *, after: int = 0, num_trials: int = 1000) -> list[tuple[int, Attempt]]:
        """(trial number, attempt) for attempts that measured a peak or ran out of memory, by trial and attempt.

        They come from the first ``num_trials`` trials with such an attempt and id > ``after``.
        """
        rows = self._rows(sql.MEASURED_ATTEMPTS, study_id=study_id, after=after, num_trials=num_trials)
        return [(number, Attempt(*attempt)) for *attempt, number in rows]

    def measured_attempts_of(self, trial_ids: Sequence[int]) -> list[tuple[int, Attempt]]:
        """Measured attempts of these trials."""
        return [(number, Attempt(*attempt)) for *attempt, number in self._by_ids(sql.MEASURED_ATTEMPTS_OF, trial_ids)]

    def measured_points(self, study_id: int) -> list[MeasuredPoint]:
        """Measured attempts of all trials of the study, in a few columns."""
        return [MeasuredPoint(*row) for row in self._rows(sql.MEASURED_POINTS, study_id=study_id)]

    # --- reports -----------------------------------------------------------------------------------------------

    def metrics(self, trial_id: int, *, after: int = -1, limit: int = 10_000) -> list[Metric]:
        """Evaluations at steps > ``after``, by step; if several attempts reported a step, the newest attempt's row."""
        # The newest row of each step is chosen here: SQL would look at the whole rest of the curve for each page.
        newest: dict[int, Metric] = {}
        num = limit + 1
        while len(newest) < limit:
            metrics = [Metric(*row) for row in self._rows(sql.CURVE, trial_id=trial_id, after=after, limit=num)]
            is_end = len(metrics) < num
            complete = {
                row.step: row for row in metrics if is_end or row.step != metrics[-1].step
            }  # rows of the last are cut
            newest |= complete
            if is_end:
                break
            after, num = max(complete, default=after), num if complete else 2 * num
        metrics = list(newest.values())[:limit]
        return metrics or [row for row in self._external_curves([trial_id]) if row.step > after][:limit]

    def curve_lengths(self, trial_ids: Sequence[int]) -> dict[int, int]:
        """Number of stored evaluations by trial id, for trials that have any."""
        lengths: dict[int, int] = dict(self._by_ids(sql.CURVE_LENGTHS, trial_ids))
        for row in self._external_curves([trial_id for trial_id in trial_ids if trial_id not in lengths]):
            lengths[row.trial_id] = lengths.get(row.trial_id, 0) + 1
        return lengths

    def curves(self, trial_ids: Sequence[int]) -> dict[int, list[Point]]:
        """Trial id → its evaluations by step; if several attempts reported a step, only the newest attempt's.

        It reads a few times as fast as ``metrics``.
        """
        curves: dict[int, dict[int, Point]] = {trial_id: {} for trial_id in trial_ids}
        rows = self._by_ids(sql.CURVES, trial_ids)
        every = load_json(f"[{','.join(row[3] for row in rows)}]")
        for (trial_id, step, attempt, _), values in zip(rows, every, strict=True):
            curves[trial_id][step] = Point(step, attempt, values)
        for row in self._external_curves([trial_id for trial_id, points in curves.items() if not points]):
            values = {name: value if math.isfinite(value) else str(value) for name, value in row.values.items()}
            curves[row.trial_id][row.step] = Point(row.step, 0, values)
        return {trial_id: list(points.values()) for trial_id, points in curves.items()}

    def counted_metrics(self, trial_ids: Sequence[int]) -> dict[int, dict[str, float | None]]:
        """Trial id → metrics of its last evaluation, or of its best where trials count by that one.

        NaN and infinity are None. Trials that have reported nothing are left out.
        """
        rows = self._by_ids(sql.COUNTED_METRICS, trial_ids)
        every = load_json(f"[{','.join(text for _, text in rows)}]")
        return {  # attempts ascend: the newest comes last
            trial_id: {name: value if isinstance(value, int | float) else None for name, value in values.items()}
            for (trial_id, _), values in zip(rows, every, strict=True)
        }

    def _external_curves(self, trial_ids: Sequence[int]) -> list[Metric]:
        """The objective by trial and step of those of these trials that other programs run."""
        rows = self._by_ids(sql.EXTERNAL_CURVES, trial_ids) if trial_ids else []
        if not rows:
            return []
        spec = self._value(sql.SPEC_OF_TRIAL, id=rows[0].trial_id)  # all are of one study
        metric = spec["objective"]["metric"]
        return [Metric(trial, 0, step, step, {metric: value}, reported_at) for trial, step, value, reported_at in rows]

    def rungs(
        self, study_id: int, metrics: Sequence[str], steps: Sequence[int], trial_ids: Collection[int] | None = None
    ) -> dict[int, dict[int, tuple[float, ...]]]:
        """Step → trial number → values of ``metrics`` there, for every trial of the study that reported all of them.

        ``trial_ids`` are trials of the study, if only these matter.
        """
        rungs: dict[int, dict[int, tuple[float, ...]]] = {step: {} for step in steps}
        for part in in_parts(steps):  # a rule that judges at every report has many
            if trial_ids is None:
                rows = self._rows(sql.RUNGS, study_id=study_id, steps=part)
            else:
                rows = self._by_ids(sql.RUNGS_OF_TRIALS, sorted(trial_ids), steps=part)
            for number, step, values in rows:
                if all(metric in values for metric in metrics):  # attempts ascend: the newest comes last
                    rungs[step][number] = tuple(values[metric] for metric in metrics)
        return rungs

    def logs(self, trial_id: int, *, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        """(row id, line) with row id > ``after``; ``after=-1`` returns the last ``limit`` lines."""
        if after < 0:
            rows = self._rows(sql.LAST_LOGS, trial_id=trial_id, limit=limit)[::-1]
        else:
            rows = self._rows(sql.LOGS, trial_id=trial_id, after=after, limit=limit)
        return [(row_id, LogLine(*line)) for *line, row_id in rows]

    # --- the rest ----------------------------------------------------------------------------------------------

    def blob(self, sha256: str) -> bytes:
        """The bytes that ``Store.put_blob`` stored. Raises ``NotFound``."""
        data = self._value(sql.BLOB, sha256=sha256)
        if data is None:
            raise NotFound(f"no file with sha256 {sha256} is stored; upload it again")
        return cast(bytes, data)

    def events(self, *, after: int = 0, limit: int = 1000, study_id: int | None = None) -> list[Event]:
        """Events with id > ``after``, in commit order: a reader of event n never later finds an event < n."""
        filters = {} if study_id is None else {"study_id": study_id}
        return [Event(*row) for row in self._rows(sql.events(bool(filters)), after=after, limit=limit, **filters)]

    def changed_since(self, event_id: int, *, limit: int = 1000) -> list[tuple[int, int | None]]:
        """(event id, trial id) of the events after ``event_id``; None for an event that names no trial."""
        return [(row.id, row.trial_id) for row in self._rows(sql.CHANGED_SINCE, after=event_id, limit=limit)]

    def last_event_id(self) -> int:
        """Id of the newest event; 0 while there is none."""
        return int(self._value(sql.LAST_EVENT) or 0)

    def cluster(self) -> tuple[RecordedCluster, float] | None:
        """The last recorded state of the cluster, and when the controller last confirmed it (to the second).

        None before the first record.
        """
        row = self._row(sql.CLUSTER)
        return (RecordedCluster.from_json(row.state), row.confirmed_at) if row else None

    def lease(self, name: str) -> Lease | None:
        """The lease, which may have no holder; None if there never was one."""
        row = self._row(sql.LEASE, name=name)
        return Lease(*row) if row else None

    def lease_age(self, name: str) -> float | None:
        """Seconds since the lease was last renewed; None when nobody has it.

        It is for people to read, and for health checks: clocks jump.
        """
        renewed_at = self._value(sql.LEASE_RENEWED_AT, name=name)
        return None if renewed_at is None else max(0.0, self.now() - renewed_at)


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
