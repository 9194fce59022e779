"""Proposes parameters by Optuna's tree-structured Parzen estimator (TPE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import optuna

from scamp_service.search.history import Active, Completed
from scamp_service.search.optuna_study import OptunaStudy, optuna_is_silent
from scamp_service.search.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


class Tpe:
    """TPE that stays away from active trials, and starts with random ones.

    It models parameters together, and where some of them exist only sometimes, those together that exist together.
    """

    reads_history: ClassVar = True

    def __init__(self, spec: StudySpec) -> None:
        self._seed, space = spec.search.seed, Space(spec.space)
        self._group = space.is_conditional
        self._study = OptunaStudy(space, spec.objective.direction)

    def suggest(
        self, number: int, completed: Sequence[Completed], active: Sequence[Active], attempt: int = 0
    ) -> Params:
        """The searched parameters of trial ``number``."""
        with optuna_is_silent():
            sampler = optuna.samplers.TPESampler(
                seed=seed_of(self._seed, number, attempt), constant_liar=True, group=self._group
            )
        return self._study.ask(sampler, completed, active)
