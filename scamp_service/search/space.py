"""The search space as samplers see it: flat parameters with Optuna's distributions, and the points of a grid.

A stepped range of floats and an ordinal list become ranges of indices for Optuna, so that the values of candidates are
exact; lists among choices become their JSON, as Optuna knows no lists.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from scamp_service.search.draws import draw_from
from scamp_service.study.spaces.points import Points
from scamp_service.study.spaces.slots import Slot, existing_values, flat, nested, slots_of
from scamp_service.study.spaces.space import Categorical, Dimension, Ordinal, Range
from scamp_service.study.values import Params

Suggest = Callable[[str, BaseDistribution], Any]


class Space:
    """The parameters that a study searches, each after those that it depends on."""

    def __init__(self, dimensions: Mapping[str, Dimension]) -> None:
        self._names = list(dimensions)
        self._slots = slots_of(dimensions)
        self._axes = {slot.name: _Axis(slot.dimension) for slot in self._slots}
        self.distributions = {name: axis.distribution for name, axis in self._axes.items()}
        """Distribution of each flat parameter that a candidate may have, for Optuna."""

    @property
    def is_conditional(self) -> bool:
        """Whether candidates differ in the parameters that they have."""
        return any(slot.needs for slot in self._slots)

    def sampled(self, suggest: Suggest, fixed: Mapping[str, Any] | None = None) -> Params:
        """Parameters of a candidate whose values, as Optuna has them, ``suggest`` returns one after another.

        It is asked for flat parameters that exist with those before them. The value of one that is in ``fixed`` (flat,
        as a user has it) is taken from there instead; it is suggested all the same, so that later ones stay equal.
        """
        fixed_values = fixed or {}

        def value_of(slot: Slot) -> Any:
            axis = self._axes[slot.name]
            value = axis.decode(suggest(slot.name, axis.distribution))
            return fixed_values.get(slot.name, value)

        return self.nested(existing_values(self._slots, value_of))

    @property
    def slots(self) -> Sequence[Slot]:
        """Every flat parameter that a candidate may have, each after those that it depends on."""
        return self._slots

    def nested(self, values: Mapping[str, Any]) -> Params:
        """The parameters of a candidate, from its flat ones."""
        return nested(self._slots, values, self._names)

    def drawn(self, name: str, source: random.Random) -> Any:
        """A random value of a flat parameter."""
        axis = self._axes[name]
        return axis.decode(draw_from(axis.distribution, source))

    def flat(self, params: Mapping[str, Any]) -> Params:
        """The flat parameters of a candidate, such as ``layers.0.width``. Those that are not searched are left out."""
        return flat(self._slots, params)

    def encoded(self, params: Mapping[str, Any]) -> Params:
        """Flat parameters as Optuna has them: those that the candidate has."""
        return {name: self._axes[name].encode(value) for name, value in self.flat(params).items()}

    def exact(self, params: Mapping[str, Any]) -> Params:
        """Flat parameters of a user in the types that a sampler would return: 1 becomes 1.0 in a range of floats."""
        return {name: self._axes[name].exact(value) for name, value in self.flat(params).items()}

    # --- the grid --------------------------------------------------------------------------------------------------

    @property
    def num_points(self) -> int:
        """Number of points of the grid. No dimension may be continuous."""
        return self._points.count

    def point(self, number: int) -> Params:
        """Parameters of this point, in the order of ``itertools.product``."""
        return self.nested(self._points.point(number))

    def number_of(self, params: Mapping[str, Any]) -> int | None:
        """Number of the point with these parameters; None if they are not on the grid."""
        return self._points.number_of(self.flat(params))

    @cached_property
    def _points(self) -> Points:
        return Points(self._slots)


class _Axis:
    def __init__(self, dimension: Categorical | Ordinal | Range) -> None:
        self.dimension = dimension
        self.indexed = isinstance(dimension, Ordinal) or (
            isinstance(dimension, Range) and not dimension.integer and dimension.num_values is not None
        )
        choices = dimension.choice if isinstance(dimension, Categorical) else []
        self._labels = [_label(choice) for choice in choices]
        self._has_lists = any(isinstance(choice, list) for choice in choices)
        self.distribution = self._distribution(dimension)

    def _distribution(self, dimension: Categorical | Ordinal | Range) -> BaseDistribution:
        if isinstance(dimension, Categorical):
            return CategoricalDistribution(self._labels)
        if dimension.num_values is None:
            assert isinstance(dimension, Range)
            return FloatDistribution(float(dimension.low), float(dimension.high), log=dimension.log)
        if self.indexed:
            return IntDistribution(0, dimension.num_values - 1)
        assert isinstance(dimension, Range)
        last = int(dimension.value(dimension.num_values - 1))  # Optuna warns unless high is low plus a multiple of step
        return IntDistribution(int(dimension.low), last, log=dimension.log, step=int(dimension.step or 1))

    def decode(self, sampled: Any) -> Any:
        if self.indexed:
            return self.dimension.value(sampled)
        if self._has_lists:
            return self.dimension.value(self._labels.index(sampled))
        return sampled

    def encode(self, value: Any) -> Any:
        match self.dimension:
            case Categorical():
                return _label(value)
            case Ordinal() as ordinal:
                return ordinal.index(value)
        if self.indexed:
            return round((value - self.dimension.low) / self.dimension.step) if self.dimension.step else 0
        return value

    def exact(self, value: Any) -> Any:
        if isinstance(self.dimension, Range) and not self.dimension.integer:
            return float(value)
        return value


def _label(value: Any) -> Any:
    """A choice as Optuna has it."""
    return json.dumps(value) if isinstance(value, list) else value
