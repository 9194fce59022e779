"""The trials of one study as Optuna sees them, kept in memory: those that have ended for good are read once."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from scamp_service.exchange.frozen_trials import Freezer
from scamp_service.exchange.optuna_space import OptunaSpace
from scamp_service.lifecycle import LIVE_STUDIES, LIVE_TRIALS, StudyState
from scamp_service.lifecycle import TrialState as OwnState
from scamp_service.model import Study
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives

ABOVE_ALL_IDS = 2**62
"""Above the id of any trial."""


class KnownTrials:
    """Trials by number. Not safe for threads: the storage locks it."""

    def __init__(self, store: Store, study: Study) -> None:
        space, objectives = OptunaSpace(study.spec), Objectives.of_spec(study.spec)
        self.metric = objectives.leading.metric
        self.distributions: dict[str, BaseDistribution] = dict(space.distributions)
        """Distribution of each parameter when it was first seen; later ones must be compatible."""
        self._external, self._study_id = store.external, study.id
        self._freezer = Freezer(store, space, objectives)
        self._trials: dict[int, FrozenTrial] = {}  # by number, ascending
        self._unended: dict[int, int] = {}  # id → number of the trials that may still change
        self._newest = 0

    def refresh(self) -> None:
        """Read the trials that are new or may have changed. Raises ``NotFound`` if the study is gone."""
        state = self._external.study_state(self._study_id)
        seen = self._external.seen_trials(self._study_id, after=self._newest, trial_ids=sorted(self._unended))
        for row, trial in zip(seen, self._freezer.frozen(seen), strict=True):
            self._trials[row.number] = trial
            self._newest = max(self._newest, row.id)
            if _may_change(row.state, state):
                self._unended[row.id] = row.number
            else:
                self._unended.pop(row.id, None)
            for name, distribution in trial.distributions.items():
                self.distributions.setdefault(name, distribution)

    def read(self, trial_id: int) -> FrozenTrial:
        """One trial as it is now."""
        (seen,) = self._external.seen_trials(self._study_id, after=ABOVE_ALL_IDS, trial_ids=[trial_id])
        return self._freezer.frozen([seen])[0]

    def overlay(self, trials: Iterable[FrozenTrial]) -> None:
        """Show trials of this study as they are here, not as they were read. Others are ignored."""
        for trial in trials:
            if (frozen := self._trials.get(trial.number)) is not None and frozen._trial_id == trial._trial_id:
                self._trials[trial.number] = trial

    def in_states(self, states: Container[TrialState] | None) -> list[FrozenTrial]:
        """The trials by number; ``states`` keeps only these states."""
        if states is None:
            return list(self._trials.values())
        if any(state in states for state in TrialState if state.is_finished()):
            return [trial for trial in self._trials.values() if trial.state in states]
        unended = (self._trials[number] for number in sorted(self._unended.values()))
        return [trial for trial in unended if trial.state in states]

    def ended(self, number: int) -> FrozenTrial | None:
        """The trial with this number, if it has ended and is known."""
        trial = self._trials.get(number)
        return trial if trial is not None and trial._trial_id not in self._unended else None


def _may_change(trial: OwnState, study: StudyState) -> bool:
    """Whether a trial may have another state later.

    One that fits nowhere is planned again when the cluster grows, while its study is live. One that was cancelled by a
    limit of its study is planned again when the limit is raised, and one that has failed when a user retries it.
    """
    match trial:
        case OwnState.INFEASIBLE:
            return study in LIVE_STUDIES
        case OwnState.CANCELLED:
            return study in LIVE_STUDIES or study is StudyState.COMPLETED
        case OwnState.FAILED:
            return study is not StudyState.EXTERNAL
    return trial in LIVE_TRIALS


def copy_of(trial: FrozenTrial) -> FrozenTrial:
    """A trial that may be changed. Distributions are shared: nobody changes them."""
    copied = copy.copy(trial)
    copied._params, copied._distributions = dict(trial._params), dict(trial._distributions)
    copied.intermediate_values = dict(trial.intermediate_values)
    copied._user_attrs = copy.deepcopy(trial._user_attrs)
    copied._system_attrs = copy.deepcopy(trial._system_attrs)
    copied._values = None if trial._values is None else list(trial._values)
    return copied
