"""The search space as samplers see it: parameters as Optuna's distributions have them, and the points of a grid.

A stepped range of floats becomes a range of indices for Optuna, so that the values of candidates are exact decimals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from scamp_service.study.space import Categorical, Range
from scamp_service.study.values import Params, Scalar


class Space:
    """The dimensions that a study searches, in the order of its spec."""

    def __init__(self, dimensions: Mapping[str, Categorical | Range]) -> None:
        self._axes = {name: _Axis(dimension) for name, dimension in dimensions.items()}
        self.distributions = {name: axis.distribution for name, axis in self._axes.items()}
        """Distribution of each parameter, for Optuna."""

    def decoded(self, sampled: Mapping[str, Any]) -> Params:
        """Parameters of a candidate, from those that Optuna has sampled."""
        return {name: axis.decode(sampled[name]) for name, axis in self._axes.items()}

    def encoded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as Optuna has them. Those that are not searched are left out."""
        return {name: axis.encode(params[name]) for name, axis in self._axes.items()}

    def exact(self, params: Mapping[str, Scalar]) -> Params:
        """A user's parameters in the types that a sampler would return: 1 becomes 1.0 in a range of floats."""
        return {name: self._axes[name].exact(value) if name in self._axes else value for name, value in params.items()}

    # --- the grid --------------------------------------------------------------------------------------------------

    @cached_property
    def num_points(self) -> int:
        """Number of points of the grid. No dimension may be continuous."""
        return math.prod(map(len, self._values.values()))

    def point(self, number: int) -> Params:
        """Parameters of this point, in the order of ``itertools.product``."""
        point = Params()
        for name, values in reversed(self._values.items()):
            number, index = divmod(number, len(values))
            point[name] = values[index]
        return {name: point[name] for name in self._values}

    def number_of(self, params: Mapping[str, Scalar]) -> int | None:
        """Number of the point with these parameters; None if they are not on the grid."""
        found = 0
        for name, indices in self._indices.items():
            if (index := indices.get(params[name])) is None:
                return None
            found = found * len(indices) + index
        return found

    @cached_property
    def _values(self) -> dict[str, Sequence[Scalar]]:
        return {name: axis.values() for name, axis in self._axes.items()}

    @cached_property
    def _indices(self) -> dict[str, dict[Scalar, int]]:
        return {name: {value: i for i, value in enumerate(values)} for name, values in self._values.items()}


class _Axis:
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
        if isinstance(self.dimension, Range) and not self.dimension.integer:
            return float(value)
        return value

    def values(self) -> Sequence[Scalar]:
        if isinstance(self.dimension, Categorical):
            return self.dimension.choice
        count = self.dimension.num_values
        assert count is not None, "the spec refuses a grid over a continuous range"
        return [self.dimension.value(index) for index in range(count)]
