"""A sampler of Optuna from the user's own file: an object, or a function or class that makes one from a seed."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from optuna.samplers import BaseSampler, CmaEsSampler
from optuna.samplers._ga import BaseGASampler
from optuna.samplers._lazy_random_state import LazyRandomState

from scamp_service.search.history import Active, Observation
from scamp_service.search.samplers.optuna_study import OptunaStudy, optuna_is_silent
from scamp_service.search.samplers.replayed_study import ReplayedStudy
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

_DEPTH = 4


class UserSampler:
    """The ``sampler`` in the user's file.

    Each proposal comes from a new one: a copy of the object with new random states, or what the function makes from the
    trial's seed. Genetic algorithms and CMA-ES get the notes that they keep in the study (see ``ReplayedStudy``).
    """

    reads_history: ClassVar = True
    needs_own_process: ClassVar[bool] = True
    shows_most: ClassVar[int | None] = None

    def __init__(self, spec: StudySpec, sampler: Any) -> None:
        self._seed, self._found = spec.search.seed, sampler
        space, objectives = Space(spec.space), spec.every_objective
        first = self._sampler_of(0, 0)
        self._replayed = isinstance(first, BaseGASampler | CmaEsSampler)
        self._study = OptunaStudy(space, objectives)
        self._with_notes = ReplayedStudy(
            space, objectives, self._sampler_of, ranks_infeasible=isinstance(first, BaseGASampler)
        )

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``."""
        if self._replayed:
            return self._with_notes.ask(number, completed, active, attempt)
        return self._study.ask(self._sampler_of(number, attempt), number, completed, active)

    def _sampler_of(self, number: int, attempt: int) -> BaseSampler:
        seed = seed_of(self._seed, number, attempt)
        random.seed(seed)
        np.random.seed(seed)
        with optuna_is_silent():
            if isinstance(self._found, BaseSampler):
                sampler = copy.deepcopy(self._found)
                reseed(sampler, seed)
            elif callable(self._found):
                sampler = self._found(seed)
            else:
                sampler = self._found
        if not isinstance(sampler, BaseSampler):
            raise TypeError(
                f"search.sampler must name an optuna.samplers.BaseSampler, or a function of a seed that returns one; "
                f"got {type(sampler).__name__}"
            )
        return sampler


def reseed(thing: Any, seed: int, depth: int = _DEPTH) -> None:
    """Seed every random generator in the attributes of an object, and in those of samplers among them."""
    for name, value in sorted(vars(thing).items()):
        own_seed = seed_of(seed, depth + len(name))
        match value:
            case LazyRandomState():
                value.rng.seed(own_seed)
            case np.random.RandomState():
                value.seed(own_seed)
            case np.random.Generator():
                setattr(thing, name, np.random.default_rng(own_seed))
            case random.Random():
                value.seed(own_seed)
            case _ if depth and hasattr(value, "__dict__") and not isinstance(value, type):
                reseed(value, own_seed, depth - 1)
