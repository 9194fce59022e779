"""Proposes candidates: first those of ``start_with``, then those of the sampler (Optuna's TPE or random, or a grid).

Stateless from outside: a proposal depends only on the spec, the trial's number and the history. So a controller that
replaces a killed one proposes the same candidates. Whether a candidate fits is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from scamp_service.lifecycle import LIVE_TRIALS, TrialState
from scamp_service.study.space import Categorical, Range
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Scalar

Params = dict[str, Scalar]


class Past(Protocol):
    """The part of an earlier trial that a proposal may depend on. ``scamp_service.model.Trial`` has it."""

    @property
    def number(self) -> int: ...
    @property
    def state(self) -> TrialState: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def step(self) -> int: ...
    @property
    def value(self) -> float | None: ...


class Search:
    """Proposes the candidates of one study. It keeps only Optuna's view of the history, which it can rebuild."""

    def __init__(self, spec: StudySpec) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # otherwise it logs every study and trial
        self._spec = spec
        self._axes = {name: _Axis(dimension) for name, dimension in spec.space.items()}
        self._distributions = {name: axis.distribution for name, axis in self._axes.items()}
        self._grid: list[Params] | None = None
        self._memory = _Memory(self._distributions, spec.objective.direction)

    def propose(self, history: Sequence[Past], first_number: int, count: int) -> list[Params]:
        """Parameters of trials ``first_number``, ``first_number + 1``, …; fewer than ``count`` when the grid ends.

        ``history`` holds the trials so far, in any order. Trials from ``first_number`` on are ignored.
        """
        numbers = range(first_number, first_number + count)
        starts = [self._started(number) for number in numbers if number < len(self._spec.start_with)]
        rest = numbers[len(starts) :]
        match self._spec.search.sampler:
            case "grid":
                proposed = self._grid_points()[rest.start - len(self._spec.start_with) :][: len(rest)]
            case "random":
                proposed = [{**self._spec.fixed, **self._at_random(number)} for number in rest]
            case "tpe":
                proposed = [] if not rest else self._tpe(history, starts, first_number, rest)
        return starts + proposed

    def _started(self, number: int) -> Params:
        start = {
            name: self._axes[name].exact(value) if name in self._axes else value
            for name, value in self._spec.start_with[number].items()
        }
        return {**self._spec.fixed, **self._at_random(number), **start}

    def _at_random(self, number: int) -> Params:
        """Random parameters, which do not depend on the history."""
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=self._seed(number)))
        return self._decoded(study.ask(self._distributions).params)

    def _tpe(self, history: Sequence[Past], starts: Sequence[Params], first_number: int, rest: range) -> list[Params]:
        self._memory.follow((past for past in history if past.number < first_number), self._encoded)
        for number, params in enumerate(starts, first_number):
            self._memory.add_running(number, self._encoded(params))
        asked = []
        for number in rest:
            # A new sampler for every number, because the state of a random generator would not survive a crash.
            sampler = optuna.samplers.TPESampler(seed=self._seed(number), constant_liar=True)
            asked.append({**self._spec.fixed, **self._decoded(self._memory.ask(number, sampler))})
        return asked

    def _grid_points(self) -> list[Params]:
        """Every point of the grid once, except those of ``start_with``; shuffled, as the budget may end first."""
        if self._grid is None:
            axes = self._axes.values()
            points = [dict(zip(self._axes, values, strict=True)) for values in itertools.product(*map(_values, axes))]
            random.Random(self._spec.search.seed).shuffle(points)
            tried = [self._started(number) for number in range(len(self._spec.start_with))]
            candidates = ({**self._spec.fixed, **point} for point in points)
            self._grid = [candidate for candidate in candidates if candidate not in tried]
        return self._grid

    def _seed(self, number: int) -> int:
        digest = hashlib.sha256(f"{self._spec.search.seed}/{number}".encode()).digest()
        return int.from_bytes(digest[:4])

    def _decoded(self, sampled: Mapping[str, Any]) -> Params:
        return {name: axis.decode(sampled[name]) for name, axis in self._axes.items()}

    def _encoded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: axis.encode(params[name]) for name, axis in self._axes.items()}


class _Axis:
    """One dimension as Optuna sees it. A stepped float becomes an index, so that values are exact decimals."""

    def __init__(self, dimension: Categorical | Range) -> None:
        self.dimension = dimension
        self.indexed = isinstance(dimension, Range) and not dimension.integer and dimension.num_values is not None
        self.distribution = self._distribution(dimension)

    def _distribution(self, dimension: Categorical | Range) -> BaseDistribution:
        if isinstance(dimension, Categorical):
            return CategoricalDistribution(dimension.choice)
        if dimension.num_values is None:
            return FloatDistribution(float(dimension.low), float(dimension.high), log=dimension.log)
        if self.indexed:
            return IntDistribution(0, dimension.num_values - 1)
        last = int(dimension.value(dimension.num_values - 1))  # Optuna warns unless high is low plus a multiple of step
        return IntDistribution(int(dimension.low), last, log=dimension.log, step=int(dimension.step or 1))

    def decode(self, sampled: Any) -> Scalar:
        if self.indexed:
            assert isinstance(self.dimension, Range)
            return self.dimension.value(sampled)
        value: Scalar = sampled
        return value

    def encode(self, value: Any) -> Any:
        if self.indexed:
            assert isinstance(self.dimension, Range)
            return round((value - self.dimension.low) / self.dimension.step) if self.dimension.step else 0
        return value

    def exact(self, value: Scalar) -> Scalar:
        """A user's value in the type that the sampler would return: 1 becomes 1.0 in a range of floats."""
        if isinstance(self.dimension, Range) and not self.dimension.integer:
            return float(value)
        return value


def _values(axis: _Axis) -> Iterable[Scalar]:
    if isinstance(axis.dimension, Categorical):
        return axis.dimension.choice
    count = axis.dimension.num_values
    assert count is not None, "the spec refuses a grid over a continuous range"
    return (axis.dimension.value(index) for index in range(count))


class _Memory:
    """Optuna's in-memory study, kept in step with the history. It starts over when the history no longer continues it.

    A trial is reported to Optuna once it has ended. A trial that did not fit, or that diverged (it completed or was
    pruned with a value that is NaN or infinite), is reported as pruned before its first report. TPE ranks it behind all
    that worked, and so avoids it without an invented value. Where the objective favours models that do not fit, half of
    the later candidates then fit; if such trials were ignored, almost none would. A failure or a cancellation says
    nothing about the parameters, and is ignored.
    """

    def __init__(
        self, distributions: Mapping[str, BaseDistribution], direction: Literal["maximize", "minimize"]
    ) -> None:
        self._distributions, self._direction = dict(distributions), direction
        self._begin()

    def _begin(self) -> None:
        self._storage = optuna.storages.InMemoryStorage()
        self._study = optuna.create_study(storage=self._storage, direction=self._direction)
        self._running: dict[int, tuple[int, dict[str, Any]]] = {}  # our number → Optuna's id and parameters
        self._over: dict[int, TrialState] = {}  # our number → the state in which it ended
        self._last = -1

    def follow(self, history: Iterable[Past], encoded: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        """Update the study to ``history``. The result is the same as after reading the whole history at once."""
        pasts = sorted(history, key=lambda past: past.number)
        if not self._continues(pasts, encoded):
            self._begin()
        for past in pasts:
            if past.number > self._last:
                self.add_running(past.number, encoded(past.params))
            if past.number in self._running and past.state not in LIVE_TRIALS:
                self._finish(past)

    def _continues(self, pasts: Sequence[Past], encoded: Callable[[Mapping[str, Any]], dict[str, Any]]) -> bool:
        """Whether the study holds exactly the first trials of this history.

        It does not when a proposal was never stored, when a trial has other parameters, or when one that fitted nowhere
        was planned again on a larger cluster.
        """
        known = [past for past in pasts if past.number <= self._last]
        return {past.number for past in known} == self._over.keys() | self._running.keys() and all(
            self._running[past.number][1] == encoded(past.params)
            if past.number in self._running
            else self._over[past.number] is past.state
            for past in known
        )

    def add_running(self, number: int, params: dict[str, Any]) -> None:
        """Add a running trial with these encoded parameters."""
        running = create_trial(state=OptunaState.RUNNING, params=params, distributions=self._distributions)
        trial_id = self._storage.create_new_trial(self._study._study_id, template_trial=running)
        self._remember(number, trial_id, params)

    def ask(self, number: int, sampler: optuna.samplers.BaseSampler) -> dict[str, Any]:
        """Let the sampler propose the encoded parameters of trial ``number``, which then counts as running."""
        self._study.sampler = sampler
        trial = self._study.ask(self._distributions)
        self._remember(number, trial._trial_id, trial.params)
        return trial.params

    def _remember(self, number: int, trial_id: int, params: dict[str, Any]) -> None:
        assert number > self._last, f"trial {number} comes after {self._last}"
        self._running[number] = (trial_id, params)
        self._last = number

    def _finish(self, past: Past) -> None:
        trial_id, _ = self._running.pop(past.number)
        self._over[past.number] = past.state
        state, value, reported = _optuna_result(past)
        for step, intermediate in reported.items():
            self._storage.set_trial_intermediate_value(trial_id, step, intermediate)
        self._storage.set_trial_state_values(trial_id, state, value)


def _optuna_result(past: Past) -> tuple[OptunaState, list[float] | None, dict[int, float]]:
    """Optuna's state, final value and intermediate values for a trial that has ended."""
    value = past.value if past.value is not None and math.isfinite(past.value) else None
    match past.state:
        case TrialState.COMPLETED if value is not None:
            return OptunaState.COMPLETE, [value], {}
        case TrialState.PRUNED if value is not None:
            return OptunaState.PRUNED, None, {past.step: value}
        case TrialState.COMPLETED | TrialState.PRUNED | TrialState.INFEASIBLE:
            return OptunaState.PRUNED, None, {}
    return OptunaState.FAIL, None, {}
