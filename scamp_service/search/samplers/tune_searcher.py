"""Proposes parameters by any ``Searcher`` of Ray Tune, such as HyperOpt's.

A searcher keeps its state to itself. For each proposal a new one is made, which gets the parameters of the earlier
trials as its first points to evaluate, and then their results; the next suggestion is its own. Tune's searchers know no
conditions: they search every flat parameter, and those that a candidate does not have are ignored.
"""

from __future__ import annotations

import importlib
import math
import random
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from scamp_service.search.draws import draw_from
from scamp_service.search.history import Active, Observation
from scamp_service.search.proposer import SearchEnded
from scamp_service.search.samplers.optuna_study import in_order, optuna_is_silent
from scamp_service.search.samplers.sampler import seed_of
from scamp_service.search.space import Space
from scamp_service.study.sampler_options import TuneOptions
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params

METRIC = "objective"


class TuneSearcher:
    """A searcher of Tune that accepts ``points_to_evaluate``, as those for HyperOpt and Nevergrad do.

    Where it waits for results before it suggests more, the candidate is random.
    """

    reads_history: ClassVar = True
    needs_own_process: ClassVar[bool] = True
    shows_most: ClassVar[int | None] = 100

    def __init__(self, spec: StudySpec) -> None:
        options = spec.search.sampler
        assert isinstance(options, TuneOptions)
        self._options, self._seed, self._space = options, spec.search.seed, Space(spec.space)
        self._mode = "min" if spec.objective.direction == "minimize" else "max"
        self._budget = spec.budget.trials
        self._searched = {
            name: distribution for name, distribution in self._space.distributions.items() if not distribution.single()
        }

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The searched parameters of trial ``number``."""
        earlier = in_order(completed, active)
        seed = seed_of(self._seed, number, attempt)
        suggestion: Any = {}
        if self._searched:
            num_modules = -1
            while len(sys.modules) != num_modules:  # what was imported meanwhile may have drawn random numbers, too
                num_modules = len(sys.modules)
                suggestion = self._suggestion(seed, earlier)
            if suggestion is None:  # it waits for results, while devices are idle
                source = random.Random(seed)
                return self._space.sampled(lambda _, distribution: draw_from(distribution, source))
            if not isinstance(suggestion, dict):
                return None  # Searcher.FINISHED
        return self._space.sampled(
            lambda name, distribution: (
                _value(distribution, suggestion[name]) if name in suggestion else _only_value(distribution)
            )
        )

    def _suggestion(self, seed: int, earlier: Sequence[Active | Observation]) -> Any:
        """The searcher's own suggestion after those of the earlier trials, for this state of the global generators."""
        random.seed(seed)
        np.random.seed(seed)
        with optuna_is_silent():
            points = [self._point(trial) for trial in earlier]
            searcher = self._searcher(seed, points)
            for trial, point in zip(earlier, points, strict=True):
                self._expect(point, searcher.suggest(str(trial.number)))
                if isinstance(trial, Observation):
                    result = None if trial.values is None else {METRIC: trial.values[0], "training_iteration": 1}
                    searcher.on_trial_complete(str(trial.number), result=result, error=trial.values is None)
            return searcher.suggest("next")

    def _expect(self, point: dict[str, Any], suggestion: Any) -> None:
        """Raise ``SearchEnded`` unless the searcher has suggested the point that it was given."""
        is_same = isinstance(suggestion, dict) and all(math.isclose(suggestion[name], point[name]) for name in point)
        if not is_same:
            raise SearchEnded(
                f"the searcher {self._options.searcher} does not suggest the points_to_evaluate that it is given, so "
                "it cannot learn from earlier trials; choose another"
            )

    def _searcher(self, seed: int, points: list[dict[str, Any]]) -> Any:
        search = importlib.import_module("ray.tune.search")
        seeds = {"random_state_seed": seed, "random_state": seed, "seed": seed}
        try:
            searcher = search.create_searcher(
                self._options.searcher,
                points_to_evaluate=points or None,
                **{"budget": self._budget, **seeds, **self._given_options()},
            )
            space = {name: _domain(distribution) for name, distribution in self._searched.items()}
            is_set = searcher.set_search_properties(METRIC, self._mode, space)
        except (ImportError, AssertionError, ValueError, TypeError, KeyError) as error:
            raise SearchEnded(f"the searcher {self._options.searcher} cannot be used: {error}") from error
        if not is_set:
            raise SearchEnded(f"the searcher {self._options.searcher} takes no search space from Tune")
        return searcher

    def _given_options(self) -> dict[str, Any]:
        options = dict(self._options.options)
        if self._options.searcher == "nevergrad":  # a study has only the name of its class
            registry = importlib.import_module("nevergrad").optimizers.registry
            options["optimizer"] = registry[options.get("optimizer", "NGOpt")]
        return options

    def _point(self, trial: Active | Observation) -> dict[str, Any]:
        """The trial's parameters as Tune has them, with any values in place of those that it does not have."""
        values = self._space.encoded(trial.params)
        return {
            name: _code(distribution, values[name]) if name in values else _first(distribution)
            for name, distribution in self._searched.items()
        }


def _domain(distribution: BaseDistribution) -> Any:
    """Tune's domain of a parameter: logarithms of ranges on a logarithmic scale, choices and steps by their number."""
    tune = importlib.import_module("ray.tune")
    match distribution:
        case FloatDistribution(low=low, high=high, log=True):
            return tune.uniform(math.log(low), math.log(high))
        case FloatDistribution(low=low, high=high):
            return tune.uniform(low, high)
        case IntDistribution(low=low, high=high, log=True):
            return tune.uniform(math.log(low - 0.5), math.log(high + 0.5))
        case IntDistribution(low=low, high=high, step=step):
            return tune.randint(0, (high - low) // step + 1)
        case CategoricalDistribution(choices=choices):
            return tune.choice(list(range(len(choices))))
    raise AssertionError(distribution)


def _code(distribution: BaseDistribution, value: Any) -> Any:
    """A value as Tune has it."""
    match distribution:
        case FloatDistribution(log=True) | IntDistribution(log=True):
            return math.log(value)
        case IntDistribution(low=low, step=step):
            return (value - low) // step
        case CategoricalDistribution():
            return int(distribution.to_internal_repr(value))
    return value


def _value(distribution: BaseDistribution, code: Any) -> Any:
    """The value that Tune has proposed, as a plain number or choice inside the range."""
    match distribution:
        case FloatDistribution(low=low, high=high, log=log):
            return min(high, max(low, math.exp(code) if log else float(code)))
        case IntDistribution(low=low, high=high, log=True):
            return min(high, max(low, round(math.exp(code))))
        case IntDistribution(low=low, high=high, step=step):
            return min(high, low + step * int(code))
        case CategoricalDistribution(choices=choices):
            return choices[int(code)]
    raise AssertionError(distribution)


def _first(distribution: BaseDistribution) -> Any:
    """Tune's form of some value."""
    return _code(
        distribution,
        distribution.low
        if isinstance(distribution, FloatDistribution | IntDistribution)
        else _only_value(distribution),
    )


def _only_value(distribution: BaseDistribution) -> Any:
    """The value of a distribution that has only one."""
    match distribution:
        case CategoricalDistribution(choices=choices):
            return choices[0]
        case FloatDistribution(low=low) | IntDistribution(low=low):
            return low
    raise AssertionError(distribution)
