"""The part of the database that the controller keeps in memory, and how it follows the changes.

Reading every live trial and every value at a rung in each cycle takes longer the more trials there are. So a controller
reads them once, and from then on only the trials that the events name: the ids of events grow in commit order, and each
move of a trial and each of its metrics writes one. What a rank reports without an event concerns a trial with an open
attempt; these are always read again. Nothing here is a truth of its own: a new controller begins by reading all.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from estimators.learning import WINDOW_TRIALS, PastAttempt
from scamp_service.control.stopping.rung import Rung
from scamp_service.lifecycle import LIVE_TRIALS, Origin, TrialState
from scamp_service.limits import Scores
from scamp_service.model import Attempt, Trial
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives, Values

EVENTS_AT_ONCE = 1000


class Projection:
    """Live trials of all studies; and, from when they are first asked for, changed trials and rungs of a study and the
    runs of a family. An error while it reads leaves it as it was.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last_event = -1  # nothing was read yet
        self._open: frozenset[int] = frozenset()  # trials with an attempt that was open in the last cycle
        self._live: dict[int, Trial] = {}  # by id: new trials have the largest ids
        self._changed: dict[int, dict[int, Trial]] = {}  # study → trials that changed since they were taken
        self._rungs: dict[int, dict[int, Rung]] = {}
        self._unread: dict[
            int, dict[int, int]
        ] = {}  # study → trials whose values at rungs may have changed: id → number
        self._runs: dict[str, Sequence[PastAttempt]] = {}
        self._scores: dict[int, tuple[Objectives, dict[int, tuple[TrialState, Values]]]] = {}

    def follow(self, attempts: Iterable[Attempt]) -> Collection[Trial]:
        """All live trials by id, as they are now. ``attempts`` are the open ones, read before."""
        is_open = frozenset(attempt.trial_id for attempt in attempts)
        if self._last_event < 0:
            last_event = self._store.events.last_id()  # first: what changes while the rest is read is read again
            changed = self._store.trials.live()
        else:
            last_event, trial_ids = self._events()
            changed = self._store.trials.with_ids(sorted(trial_ids | is_open | self._open))
        self._last_event, self._open = last_event, is_open
        back = {trial.id for trial in changed if _is_live(trial)} - self._live.keys()
        newest = max(self._live, default=0)
        for trial in changed:
            self._note(trial)
        if min(back, default=newest) < newest:  # planned again, such as on a cluster that has grown
            self._live = dict(sorted(self._live.items()))
        return self._live.values()

    def changed_trials(self, study_id: int) -> Collection[Trial]:
        """Trials of a study that changed since the last call, or before; the first call returns all of them.

        It knows the changes of the last ``follow`` and of some that came later.
        """
        if study_id not in self._changed:
            trials = self._store.trials.every(study_id, with_deleted=True)
            self._changed[study_id] = {}
            return trials
        taken, self._changed[study_id] = self._changed[study_id], {}
        return taken.values()

    def forget_study(self, study_id: int) -> None:
        """Begin anew with a study: the next ``changed_trials`` returns all of them."""
        self._changed.pop(study_id, None)

    def forget_ended(self, live_studies: Container[int]) -> None:
        """Drop what is known of studies that are not among ``live_studies``."""
        for study_id in [key for key in (*self._changed, *self._rungs, *self._scores) if key not in live_studies]:
            for cache in (self._changed, self._rungs, self._unread, self._scores):
                cache.pop(study_id, None)

    def rungs(self, study_id: int, objectives: Objectives, steps: Sequence[int]) -> Mapping[int, Rung]:
        """Step → the objectives that the study's trials have reported at that step, and those predicted for them."""
        rungs = self._rungs.setdefault(study_id, {step: Rung(objectives) for step in steps})
        unread = self._unread.get(study_id)
        if unread == {} or objectives.are_predicted:
            return rungs
        for number in (unread or {}).values():  # a trial may have begun anew
            for rung in rungs.values():
                rung.forget(number)
        rung_values = self._store.reports.rungs(study_id, objectives.measured, steps, trial_ids=unread)
        if len(objectives.measured) < len(objectives.items):
            predicted = {score.number: score.quantities for score in self._store.trials.scores(study_id, unread)}
        else:
            predicted = {}
        self._unread[study_id] = {}
        for step, reported in rung_values.items():
            for number, values in reported.items():
                complete = objectives.with_predicted(values, predicted.get(number, {}))
                if complete is not None:
                    rungs[step].report(number, complete)
        return rungs

    def scores(self, study_id: int, objectives: Objectives) -> Scores:
        """Trial → its state and the value of each objective, for those of the study with a value of all."""
        if study_id not in self._scores:
            self._scores[study_id] = objectives, self._store.trials.complete_scores(study_id, objectives)
        return self._scores[study_id][1]

    def family_runs(self, families: Iterable[str]) -> dict[str, Sequence[PastAttempt]]:
        """Family → runs of its newest trials."""
        families = sorted(families)
        for family in families:
            if family not in self._runs:
                self._runs[family] = self._store.attempts.family_runs(family, WINDOW_TRIALS)
        return {family: self._runs[family] for family in families}

    def _events(self) -> tuple[int, set[int]]:
        """Id of the newest event, and the trials that the events since the last cycle name."""
        last, study_ids = self._last_event, set[int]()
        while page := self._store.events.changed_since(last, limit=EVENTS_AT_ONCE):
            last = page[-1][0]
            study_ids |= {trial_id for _, trial_id in page if trial_id is not None}
        return last, study_ids

    def _note(self, trial: Trial) -> None:
        if _is_live(trial):
            self._live[trial.id] = trial
        else:
            self._live.pop(trial.id, None)
        if trial.study_id in self._changed:
            self._changed[trial.study_id][trial.id] = trial
        if trial.study_id in self._scores:
            objectives, scores = self._scores[trial.study_id]
            scores.pop(trial.number, None)
            if (values := objectives.values_of(trial)) and not trial.is_repeat:
                scores[trial.number] = trial.state, values
        if trial.study_id in self._unread:
            self._unread[trial.study_id][trial.id] = trial.number
        self._runs.pop(trial.family, None)


def _is_live(trial: Trial) -> bool:
    return trial.state in LIVE_TRIALS and trial.origin is not Origin.EXTERNAL
