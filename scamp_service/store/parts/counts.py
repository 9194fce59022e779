"""Numbers about studies, of which the store keeps most (see ``tallies``), so that nobody has to read all trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from scamp_service.lifecycle import StudyState, TrialState, seen_state
from scamp_service.limits import Scores, Used
from scamp_service.model import Attempt, Study, Totals, WaitingTrials
from scamp_service.store import queries
from scamp_service.store.database import Database
from scamp_service.store.parts.part import Part
from scamp_service.store.parts.studies import Studies
from scamp_service.store.parts.trials import Trials
from scamp_service.store.tallies import Counted, ErrorSummary, Held, held_by, num_trials_by_state
from scamp_service.study.objectives import Objectives
from scamp_service.study.spec import StudySpec

ScoresOf = Callable[[int, Objectives], Scores]


class Counts(Part):
    """Reads of numbers about studies."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._studies, self._trials = Studies(database), Trials(database)

    def states(self, study_id: int) -> dict[TrialState, int]:
        """Number of trials by state; absent states are left out."""
        return num_trials_by_state(self.tallies(study_id))

    def tallies(self, study_id: int) -> dict[str, float]:
        """The numbers that are kept about the study's trials: see ``tallies.Counted``. Zeros may be left out."""
        return dict(self._rows(queries.TALLIES, study_id=study_id))

    def counted(self, study_id: int) -> Counted:
        """The numbers that are kept about the study, and what its trials measured."""
        num_oom, excess = self._row(queries.OUT_OF_MEMORY, study_id=study_id)
        tallies = {name: num for name, num in self.tallies(study_id).items() if num}
        peaks, steps = self._spread("peak_error_pct", study_id), self._spread("step_error_pct", study_id)
        return Counted(tallies, peaks, steps, int(num_oom or 0), excess)

    def _spread(self, name: str, study_id: int) -> ErrorSummary:
        number, middle, largest = queries.errors(name)
        num = self._value(number, study_id=study_id)
        if not num:
            return ErrorSummary()
        middle_values = self._values(middle, study_id=study_id, offset=(num - 1) // 2)
        at_middle = middle_values[0] if num % 2 else sum(middle_values) / 2
        return ErrorSummary(at_middle, self._value(largest, study_id=study_id))

    def device_seconds(self, study_id: int, *, now: float) -> float:
        """Seconds × devices that the study's attempts have held; open attempts count up to ``now``."""
        return self.held(study_id, now=now).device_seconds

    def held(self, study_id: int, *, now: float) -> Held:
        """Devices and memory that the study's attempts have held; open attempts count up to ``now``."""
        tallies = self.tallies(study_id)
        ended = Held(**{each.name: tallies.get(each.name, 0.0) for each in fields(Held)})
        open_attempts = self._all(Attempt, queries.OPEN_OF_STUDY, study_id=study_id)
        return sum((held_by(attempt, now) for attempt in open_attempts), start=ended)

    def used(self, study: Study, spec: StudySpec, scores: ScoresOf | None = None, *, now: float) -> Used:
        """How far the study is, as far as ``spec`` has limits on it.

        ``scores`` returns its trials that have a value of each objective, as ``Trials.complete_scores`` does.
        """
        objectives = spec.every_objective
        has_targets, several = bool(spec.targets), objectives.has_several
        is_timed = spec.budget.device_hours is not None
        return Used(
            seconds=study.ran_seconds,
            device_hours=self.device_seconds(study.id, now=now) / 3600 if is_timed else 0.0,
            regret_bound=study.regret_bound,
            leaders=self._trials.leaders(study.id, spec.objective) if has_targets and not several else (),
            scores=(scores or self._trials.complete_scores)(study.id, objectives) if has_targets and several else {},
        )

    def waiting(self) -> list[WaitingTrials]:
        """The trials that wait for their first plan or run, by study and by what they wait for."""
        rows = self._rows(queries.WAITING_TRIALS)
        reasons = {trial.id: trial.reason for trial in self._trials.with_ids([row[3] for row in rows])}
        return [WaitingTrials(row[0], row[1], row[2], reasons.get(row[3], "")) for row in rows]

    def totals(self) -> Totals:
        """Counts over all studies."""
        studies = dict(self._rows(queries.STUDY_TOTALS))
        if paused := sum(seen_state(study.state, study.spec) is StudyState.PAUSED for study in self._studies.live()):
            studies |= {StudyState.RUNNING: studies[StudyState.RUNNING] - paused, StudyState.PAUSED: paused}
        trials = {TrialState(name): int(num) for name, num in self._rows(queries.TRIAL_TOTALS) if num}
        return Totals(studies, trials, open_attempts=self._value(queries.ATTEMPT_TOTALS))
