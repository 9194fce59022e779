"""Bounds what is left to gain in a study, for ``budget.terminator``.

The bound is Optuna's (Makarova et al. 2022, "Automatic Termination for Hyperparameter Optimization"): by a Gaussian
process of the better half of the trials, how much better the best candidate of the space may be, with high probability,
than the best that was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import optuna

from scamp_service.search.history import Observation
from scamp_service.search.samplers.optuna_study import OptunaStudy, optuna_is_silent
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec

NEWS = 0.05
"""The bound is computed again once the number of completed trials has grown by this share: it takes some seconds."""


class RegretBound:
    """The bound on the regret of one study. What it answers depends on the trials that it is shown alone."""

    def __init__(self, spec: StudySpec) -> None:
        self._terminator, self._seed = spec.budget.terminator, spec.search.seed
        self._direction = optuna.study.StudyDirection[spec.objective.direction.upper()]
        self._study, self._last = OptunaStudy(Space(spec.space), spec.every_objective), 0

    @property
    def is_wanted(self) -> bool:
        """Whether the study has a terminator."""
        return self._terminator is not None

    def of(self, completed: Sequence[Observation]) -> float | None:
        """The bound, in units of the objective; None without a terminator, or if there is nothing new to say."""
        ended = [trial for trial in completed if trial.values is not None and trial.pruned_at is None]
        if self._terminator is None or len(ended) < max(
            self._terminator.min_trials, math.ceil(self._last * (1 + NEWS))
        ):
            return None
        from optuna.terminator import RegretBoundEvaluator  # imported here: it takes long, and few studies need it

        self._last = len(ended)
        trials = [self._study.frozen(trial) for trial in ended]
        with optuna_is_silent():
            evaluator = RegretBoundEvaluator(seed=self._seed)
            bound = float(evaluator.evaluate(trials, self._direction))
        return bound if math.isfinite(bound) else None
