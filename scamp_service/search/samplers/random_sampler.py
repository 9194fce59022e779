"""Proposes parameters at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import optuna

from scamp_service.search.history import Active, Observation
from scamp_service.search.samplers.optuna_study import OptunaStudy
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


class RandomSampler:
    """Random values, uniform in each range or its logarithm. The seed and the trial's number alone decide."""

    reads_history: ClassVar = False
    needs_own_process: ClassVar[bool] = False
    shows_most: ClassVar[int | None] = None

    def __init__(self, spec: StudySpec) -> None:
        self._seed = spec.search.seed
        self._study = OptunaStudy(Space(spec.space), spec.every_objective)

    def suggest(
        self,
        number: int,
        completed: Sequence[Observation] = (),
        active: Sequence[Active] = (),
        attempt: int = 0,
        fixed: Mapping[str, Any] | None = None,
    ) -> Params:
        """The searched parameters of trial ``number``. Flat ones that are ``fixed`` stay as they are."""
        sampler = optuna.samplers.RandomSampler(seed=seed_of(self._seed, number, attempt))
        return self._study.ask(sampler, number, fixed=fixed)
