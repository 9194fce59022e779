"""Proposes candidates: first those of ``start_with``, then those of the sampler (Optuna's TPE or random, or a grid).

A proposal depends only on the spec, the trial's number and the history. So a controller that replaces a killed one
proposes the same candidates. Whether a candidate fits is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import random
from array import array
from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from scamp_service.lifecycle import LIVE_TRIALS, TrialState
from scamp_service.study.space import Categorical, Range
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Scalar

Params = dict[str, Scalar]

MOST_SHOWN = 1024
"""TPE sees at most about this many earlier trials. Its time grows with each, and beyond that it finds little more."""
NUM_BEST_SHOWN = 25
"""The best trials are always among them: Optuna's TPE models this many as good, at most."""
NUM_NEWEST_SHOWN = 256
"""So are the newest trials that have not ended, so that a proposal stays away from them."""


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
    """Proposes the candidates of one study. It remembers the trials that it was given."""

    def __init__(self, spec: StudySpec) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # otherwise it logs every study and trial
        self._spec = spec
        self._axes = {name: _Axis(dimension) for name, dimension in spec.space.items()}
        self._distributions = {name: axis.distribution for name, axis in self._axes.items()}
        self._grid: _Grid | None = None
        self._memory = _Memory(self._distributions, spec.objective.direction)

    @property
    def needs_history(self) -> bool:
        """Whether proposals depend on earlier trials."""
        return self._spec.search.sampler == "tpe"

    def propose(self, history: Iterable[Past], first_number: int, count: int) -> list[Params]:
        """Parameters of trials ``first_number``, ``first_number + 1``, …; fewer than ``count`` when the grid ends.

        ``history`` holds at least the trials that are new or have changed since the last call, in any order. The others
        are remembered. Trials from ``first_number`` on are ignored.
        """
        if self.needs_history:
            for past in history:
                self._memory.learn(past, self._encoded(past.params))
        numbers = range(first_number, first_number + count)
        starts = [self._started(number) for number in numbers if number < len(self._spec.start_with)]
        rest = numbers[len(starts) :]
        match self._spec.search.sampler:
            case "grid":
                proposed = self._on_grid(rest)
            case "random":
                proposed = [{**self._spec.fixed, **self._at_random(number)} for number in rest]
            case "tpe":
                proposed = self._tpe(starts, first_number, rest)
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

    def _tpe(self, starts: Sequence[Params], first_number: int, rest: range) -> list[Params]:
        asked = [self._encoded(params) for params in starts]  # trials that count as running while the rest is proposed
        for number in rest:
            # A new sampler for every number, because the state of a random generator would not survive a crash.
            sampler = optuna.samplers.TPESampler(seed=self._seed(number), constant_liar=True)
            asked.append(self._memory.ask(first_number, asked, sampler))
        return [{**self._spec.fixed, **self._decoded(sampled)} for sampled in asked[len(starts) :]]

    def _on_grid(self, rest: range) -> list[Params]:
        if self._grid is None:
            self._grid = _Grid(
                self._axes, self._spec.search.seed, map(self._started, range(len(self._spec.start_with)))
            )
        first = rest.start - len(self._spec.start_with)
        places = range(first, min(first + len(rest), len(self._grid)))
        return [{**self._spec.fixed, **self._grid.point(place)} for place in places]

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


class _Grid:
    """Every point of a grid once, except those ``tried`` before; shuffled, as the budget may end first.

    It holds four bytes for each point, and makes a point when it is asked for.
    """

    def __init__(self, axes: Mapping[str, _Axis], seed: int, tried: Iterable[Params]) -> None:
        self._values = {name: _values(axis) for name, axis in axes.items()}
        order = array("I", range(math.prod(map(len, self._values.values()))))
        random.Random(seed).shuffle(order)
        numbers = [{value: number for number, value in enumerate(values)} for values in self._values.values()]
        left_out = {self._number(numbers, point) for point in tried}
        self._order = array("I", (number for number in order if number not in left_out)) if left_out else order

    def __len__(self) -> int:
        return len(self._order)

    def point(self, place: int) -> Params:
        """The parameters at this place of the shuffled grid."""
        number, point = self._order[place], Params()
        for name, values in reversed(self._values.items()):
            number, index = divmod(number, len(values))
            point[name] = values[index]
        return {name: point[name] for name in self._values}

    def _number(self, numbers: Sequence[Mapping[Scalar, int]], params: Params) -> int | None:
        """The number of a point in the order of ``itertools.product``; None if it is not on the grid."""
        found = 0
        for name, known in zip(self._values, numbers, strict=True):
            if (index := known.get(params[name])) is None:
                return None
            found = found * len(known) + index
        return found


def _values(axis: _Axis) -> Sequence[Scalar]:
    if isinstance(axis.dimension, Categorical):
        return axis.dimension.choice
    count = axis.dimension.num_values
    assert count is not None, "the spec refuses a grid over a continuous range"
    return [axis.dimension.value(index) for index in range(count)]


class _Memory:
    """What the sampler may know of earlier trials, and the choice of what it is shown.

    A trial is shown with its result once it has ended. A trial that did not fit, or that diverged (it completed or was
    pruned with a value that is NaN or infinite), is shown as pruned before its first report. TPE ranks it behind all
    that worked, and so avoids it without an invented value. Where the objective favours models that do not fit, half of
    the later candidates then fit; if such trials were ignored, almost none would. A failure or a cancellation says
    nothing about the parameters, and is ignored.

    After ``MOST_SHOWN`` trials only every second one is shown, after twice as many every fourth, and so on; the best
    ones and the newest live ones are always shown. What is shown depends on the history alone, not on its order.
    """

    def __init__(
        self, distributions: Mapping[str, BaseDistribution], direction: Literal["maximize", "minimize"]
    ) -> None:
        self._distributions, self._direction = dict(distributions), direction
        self._pasts: dict[int, tuple[Past, dict[str, Any]]] = {}  # with encoded parameters
        self._live: set[int] = set()
        self._ranked: list[tuple[tuple[float, ...], int]] = []  # keys of trials that have ended, the best first
        self._frozen: dict[int, FrozenTrial] = {}  # Optuna's view of those that were shown before

    def learn(self, past: Past, params: dict[str, Any]) -> None:
        """Remember one trial as it is now; ``params`` are its encoded parameters."""
        number = past.number
        if number in self._pasts:
            self._forget(number)
        self._pasts[number] = (past, params)
        if past.state in LIVE_TRIALS:
            self._live.add(number)
        elif (key := self._key(past)) is not None:
            insort(self._ranked, (key, number))

    def ask(
        self, first_number: int, asked: Sequence[dict[str, Any]], sampler: optuna.samplers.BaseSampler
    ) -> dict[str, Any]:
        """The encoded parameters that the sampler proposes, from the trials before ``first_number`` and from ``asked``:
        encoded parameters of the trials from there on, which count as running."""
        shown = [self._shown(number) for number in sorted(self._chosen(first_number))]
        shown += [self._running(number, params) for number, params in enumerate(asked, first_number)]
        study = optuna.create_study(storage=_Shown(shown), direction=self._direction, sampler=sampler)
        return study.ask(self._distributions).params

    def _forget(self, number: int) -> None:
        past, _ = self._pasts.pop(number)
        self._live.discard(number)
        self._frozen.pop(number, None)
        if past.state not in LIVE_TRIALS and (key := self._key(past)) is not None:
            del self._ranked[bisect_left(self._ranked, (key, number))]

    def _chosen(self, first_number: int) -> set[int]:
        """Numbers of the trials to show, all before ``first_number``."""
        stride = 1
        while first_number > stride * MOST_SHOWN:
            stride *= 2
        best = (number for _, number in self._ranked if number < first_number)
        newest = heapq.nlargest(NUM_NEWEST_SHOWN, (number for number in self._live if number < first_number))
        chosen = {*range(0, first_number, stride), *itertools.islice(best, NUM_BEST_SHOWN), *newest}
        return {number for number in chosen if number in self._pasts}

    def _shown(self, number: int) -> FrozenTrial:
        if number not in self._frozen:
            past, params = self._pasts[number]
            if past.state in LIVE_TRIALS:
                self._frozen[number] = self._running(number, params)
            else:
                state, value, reported = _optuna_result(past)
                self._frozen[number] = self._trial(number, state, params, value, reported)
        return self._frozen[number]

    def _running(self, number: int, params: dict[str, Any]) -> FrozenTrial:
        return self._trial(number, OptunaState.RUNNING, params, None, {})

    def _trial(
        self, number: int, state: OptunaState, params: dict[str, Any], value: float | None, reported: dict[int, float]
    ) -> FrozenTrial:
        trial = create_trial(
            state=state, value=value, params=params, distributions=self._distributions, intermediate_values=reported
        )
        trial.number = number + 1  # the trial that is asked for has number 0: see _Shown
        return trial

    def _key(self, past: Past) -> tuple[float, ...] | None:
        """Sorts ended trials as TPE does, the best first; None for one that it ignores."""
        state, value, reported = _optuna_result(past)
        sign = -1.0 if self._direction == "maximize" else 1.0
        if state is OptunaState.COMPLETE and value is not None:
            return 0.0, sign * value
        if state is OptunaState.PRUNED and reported:
            ((step, last),) = reported.items()
            return 1.0, -step, sign * last
        return (2.0,) if state is OptunaState.PRUNED else None


class _Shown(InMemoryStorage):
    """Optuna's storage for one proposal: the only trial in it is the one that is asked for, and it lists others."""

    def __init__(self, shown: Sequence[FrozenTrial]) -> None:
        super().__init__()
        self._shown = shown

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[OptunaState] | None = None
    ) -> list[FrozenTrial]:
        """The trials that the sampler may see."""
        return [trial for trial in self._shown if states is None or trial.state in states]


def _optuna_result(past: Past) -> tuple[OptunaState, float | None, dict[int, float]]:
    """Optuna's state, final value and intermediate values for a trial that has ended."""
    value = past.value if past.value is not None and math.isfinite(past.value) else None
    match past.state:
        case TrialState.COMPLETED if value is not None:
            return OptunaState.COMPLETE, value, {}
        case TrialState.PRUNED if value is not None:
            return OptunaState.PRUNED, None, {past.step: value}
        case TrialState.COMPLETED | TrialState.PRUNED | TrialState.INFEASIBLE:
            return OptunaState.PRUNED, None, {}
    return OptunaState.FAIL, None, {}
