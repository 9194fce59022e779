"""Shows a sampler of Optuna a bounded choice of a long history, as the studies of ScaMP do.

The time of TPE grows with every trial that it sees, and beyond about a thousand it finds little more. Copy this file
next to your own program: it needs Optuna alone.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

MOST_SHOWN = 1024  # up to this many trials are shown as they are
NUM_BEST_SHOWN = 25
NUM_NEWEST_SHOWN = 256  # of those that have not ended


class BoundedSampler(BaseSampler):
    """Asks ``sampler``, which sees about a thousand trials of a study: every n-th, the best, and the newest live ones.

    A study with fewer trials, or with several objectives, is shown as it is.
    """

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler
        self._shown: tuple[Any, Study] | None = None
        self._looked: _Looked | None = None  # replaced as a whole, as threads may share the sampler

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The parameters that are sampled together."""
        distributions: dict[str, BaseDistribution] = self._sampler.infer_relative_search_space(
            self._of(study, trial), trial
        )
        return distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Values of the parameters that are sampled together."""
        values: dict[str, Any] = self._sampler.sample_relative(self._of(study, trial), trial, dict(search_space))
        return values

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The value of one parameter."""
        return self._sampler.sample_independent(self._of(study, trial), trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Begin another sequence of random numbers, in a process of its own."""
        self._sampler.reseed_rng()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Tell the sampler that a trial begins."""
        self._sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Tell the sampler how a trial has ended."""
        self._sampler.after_trial(study, trial, state, values)

    def _of(self, study: Study, trial: FrozenTrial) -> Study:
        """The study with the trials that the sampler may see, chosen once for each trial that is asked for."""
        key = (study._study_id, trial._trial_id)
        if self._shown is None or self._shown[0] != key:
            trials = study._storage.get_all_trials(study._study_id, deepcopy=False)
            shown = study
            if len(trials) > MOST_SHOWN and len(study.directions) == 1:
                shown = copy.copy(study)
                shown._storage = cast(BaseStorage, _Shown(study._storage, self._shown_trials(study, trials)))
            self._shown = key, shown
        return self._shown[1]

    def _shown_trials(self, study: Study, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        looked = self._looked
        is_same = looked is not None and looked.storage is study._storage and looked.study_id == study._study_id
        if looked is None or not is_same or looked.num_trials > len(trials):
            looked = _Looked(study._storage, study._study_id)
        sign = -1.0 if study.direction is StudyDirection.MAXIMIZE else 1.0
        self._looked = looked = looked.further(trials, sign)
        return looked.shown(trials)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shown": None, "_looked": None}


class _Shown:
    """A storage that lists only some of the trials of a study."""

    def __init__(self, storage: BaseStorage, trials: Sequence[FrozenTrial]) -> None:
        self._storage, self._trials = storage, trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials that the sampler may see."""
        trials = [trial for trial in self._trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials


@dataclass(frozen=True, slots=True)
class _Looked:
    """Findings in the trials of one study. Those that are complete never change, so each is looked at once."""

    storage: BaseStorage
    study_id: int
    num_trials: int = 0
    best: Sequence[tuple[float, int]] = ()  # sort key and number, the best first
    incomplete: Sequence[int] = ()  # numbers of trials; a failed one of ScaMP may be planned again

    def further(self, trials: Sequence[FrozenTrial], sign: float) -> _Looked:
        """This, with those of all ``trials`` that are new or may have changed."""
        best, incomplete = list(self.best), list[int]()
        for number in (*self.incomplete, *range(self.num_trials, len(trials))):
            trial = trials[number]
            if trial.state is TrialState.COMPLETE:
                best.append((sign * (trial._values or [0.0])[0], number))  # the property takes long
            else:
                incomplete.append(number)
        best = heapq.nsmallest(NUM_BEST_SHOWN, best)
        return replace(self, num_trials=len(trials), best=best, incomplete=incomplete)

    def shown(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Every n-th trial, the best, and the newest that have not ended, by number."""
        stride = 1
        while len(trials) > stride * MOST_SHOWN:
            stride *= 2
        live = [number for number in self.incomplete if not trials[number].state.is_finished()][-NUM_NEWEST_SHOWN:]
        best = (number for _, number in self.best)
        return [trials[number] for number in sorted({*range(0, len(trials), stride), *best, *live})]
