"""Proposes parameters by Optuna's tree-structured Parzen estimator (TPE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import optuna

from scamp_service.search.history import Active, Completed
from scamp_service.search.optuna_study import OptunaStudy
from scamp_service.search.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


class Tpe:
    """TPE over each parameter by itself. It stays away from active trials, and starts with random ones."""

    reads_history: ClassVar = True

    def __init__(self, spec: StudySpec) -> None:
        self._seed = spec.search.seed
        self._study = OptunaStudy(Space(spec.space), spec.objective.direction)

    def suggest(self, number: int, completed: Sequence[Completed], active: Sequence[Active]) -> Params:
        """The searched parameters of trial ``number``."""
        sampler = optuna.samplers.TPESampler(seed=seed_of(self._seed, number), constant_liar=True)
        return self._study.ask(sampler, completed, active)
