"""Finds the formula that gives a size from those of an architecture, using examples of both: exactly, or not at all.

The sizes that a training step allocates are mostly products of dimensions: 4 · micro_batch · context · width.
Logarithms make such a product linear, least squares find the exponents, and the formula must then give every example
exactly, in whole numbers. A dimension may have a constant added (one more token), a shard is rounded up to whole rows,
and FSDP puts the shards of one unit together: such factors are given by the caller and divided out. Nothing is traced
here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Points = Mapping[str, Whole]
"""The variables of several architectures: one array for each variable, by its name."""

SAMPLES = "micro_batch"
"""The variable that activations grow with."""
RANKS = "dp_shard"
"""The variable that shards are divided by."""
PARTS = "tp"
"""The variable that layers are divided by."""
SPARE = 3
"""Number of examples beyond those that determine the exponents. A formula is trusted because it predicts these, too."""
_CONSTANTS = (0, 1, -1, 2, -2)


class NotWhole(ValueError):
    """A formula does not give a whole number at one of the points."""


@dataclass(frozen=True, slots=True)
class Monomial:
    """coefficient · Π variable^exponent + constant."""

    coefficient: Fraction
    exponents: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that it depends on."""
        return frozenset(name for name, _ in self.exponents)

    def is_whole(self, points: Points) -> npt.NDArray[np.bool_]:
        """Whether the value is a whole number, at each of the points."""
        is_integer: npt.NDArray[np.bool_] = np.mod(*self._fraction(points)) == 0
        return is_integer

    def at(self, points: Points) -> Whole:
        """The value at each point; raises ``NotWhole`` if one is not a whole number."""
        return _divided(*self._fraction(points)) + self.constant

    def _fraction(self, points: Points) -> tuple[Whole, Whole]:
        over = np.full(_length(points), self.coefficient.numerator, dtype=np.int64)
        under = np.full(_length(points), self.coefficient.denominator, dtype=np.int64)
        for name, exponent in self.exponents:
            if exponent > 0:
                over = over * points[name] ** exponent
            else:
                under = under * points[name] ** -exponent
        return over, under


@dataclass(frozen=True, slots=True)
class Shards:
    """Elements that one rank holds of some tensors: Σ ⌈rows / ranks⌉ · elements of a row."""

    tensors: tuple[tuple[Monomial, Monomial], ...]  # (rows, elements of a row)

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that it depends on."""
        return frozenset({RANKS}).union(*(part.variables for tensor in self.tensors for part in tensor))

    def is_whole(self, points: Points) -> npt.NDArray[np.bool_]:
        """Whether the value is a whole number, at each of the points."""
        parts = [part.is_whole(points) for tensor in self.tensors for part in tensor]
        return np.asarray(np.logical_and.reduce(parts))

    def at(self, points: Points) -> Whole:
        """The value at each point; raises ``NotWhole`` if one is not a whole number."""
        elements = np.zeros(_length(points), dtype=np.int64)
        for rows, row in self.tensors:
            elements = elements - -rows.at(points) // points[RANKS] * row.at(points)
        return elements


@dataclass(frozen=True, slots=True)
class Padded:
    """Elements of the gradients whose rows the ranks do not divide evenly, padded: Σ ranks · ⌈rows / ranks⌉ · elements
    of a row. At least one element (see ``estimators.tracing.device.cpu.copies``)."""

    gradients: tuple[tuple[Monomial, Monomial], ...]  # (rows, elements of a row)

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that it depends on."""
        return Shards(self.gradients).variables

    def is_whole(self, points: Points) -> npt.NDArray[np.bool_]:
        """Whether the value is a whole number, at each of the points."""
        return Shards(self.gradients).is_whole(points)

    def at(self, points: Points) -> Whole:
        """The value at each point; raises ``NotWhole`` if one is not a whole number."""
        ranks = points[RANKS]
        elements = np.zeros(_length(points), dtype=np.int64)
        for rows, row in self.gradients:
            added = -rows.at(points) % ranks
            elements = elements + np.where(added > 0, (rows.at(points) + added) * row.at(points), 0)
        return np.maximum(elements, 1)


Factor = Monomial | Shards | Padded


@dataclass(frozen=True, slots=True)
class Formula:
    """A monomial without a constant, times factors: dimensions with a constant, and shards."""

    monomial: Monomial
    factors: tuple[Factor, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that it depends on."""
        return self.monomial.variables.union(*(factor.variables for factor in self.factors))

    def is_whole(self, points: Points) -> npt.NDArray[np.bool_]:
        """Whether the value is a whole number, at each of the points."""
        is_there = np.full(_length(points), True)
        for factor in self.factors:
            is_there &= factor.is_whole(points)
        if is_there.any():
            valid = {name: values[is_there] for name, values in points.items()}
            is_there[is_there] = np.mod(*self._fraction(valid)) == 0
        return is_there

    def at(self, points: Points) -> Whole:
        """The value at each point; raises ``NotWhole`` if one is not a whole number."""
        return _divided(*self._fraction(points))

    def _fraction(self, points: Points) -> tuple[Whole, Whole]:
        monomial = self.monomial
        numerator = Monomial(Fraction(monomial.coefficient.numerator), _of_sign(monomial, 1)).at(points)
        for factor in self.factors:
            numerator = numerator * factor.at(points)
        return numerator, Monomial(Fraction(monomial.coefficient.denominator), _of_sign(monomial, -1)).at(points)


class Solver:
    """Finds formulas in the variables of ``points``; variables that never change are left out.

    Raises ValueError if there are too few points, or if they cannot tell the variables apart.
    """

    def __init__(self, points: Points) -> None:
        self._points = points
        self._names = [name for name, values in points.items() if len(set(values.tolist())) > 1]
        num = _length(points)
        if num < len(self._names) + 1 + SPARE:
            raise ValueError(f"{num} examples are too few for {len(self._names)} variables")
        logs = [np.log(points[name]) for name in self._names]
        matrix = np.stack([np.ones(num), *logs], axis=1)
        if np.linalg.matrix_rank(matrix, tol=1e-6) < matrix.shape[1]:
            raise ValueError(f"the examples cannot tell {', '.join(self._names)} apart")
        self._inverse = np.linalg.pinv(matrix)

    def monomial(self, values: Whole, constants: Sequence[int] = (0,)) -> Monomial | None:
        """A monomial plus one of the ``constants`` that gives these values; None if there is none."""
        for constant in constants:
            if np.all(values > constant) and (monomial := self._fit(values - constant, None)):
                return Monomial(monomial.coefficient, monomial.exponents, constant)
        return None

    def dimension(self, values: Whole) -> Monomial | None:
        """A monomial plus a small constant (−2 to 2) that gives these values; None if there is none."""
        return self.monomial(values, _CONSTANTS)

    def formula(self, values: Whole, factors: Sequence[Factor]) -> Formula | None:
        """A formula with at most two of the ``factors`` that gives these positive values; None if there is none."""
        factor_values = [factor.at(self._points) for factor in factors]
        for num in range(3):
            for chosen in itertools.combinations_with_replacement(range(len(factors)), num):
                product = np.ones(len(values), dtype=np.int64)
                for place in chosen:
                    product = product * factor_values[place]
                if fitted := self._fit(values, product):
                    return Formula(fitted, tuple(factors[place] for place in chosen))
        return None

    def _fit(self, values: Whole, divisor: Whole | None) -> Monomial | None:
        logs = np.log(values) - (np.log(divisor) if divisor is not None else 0)
        _, *solution = self._inverse @ logs
        exponents = [round(exponent) for exponent in solution]
        if any(abs(a - b) > 1e-6 for a, b in zip(solution, exponents, strict=True)):
            return None
        powers = tuple((name, e) for name, e in zip(self._names, exponents, strict=True) if e)
        over = Monomial(Fraction(1), tuple((name, e) for name, e in powers if e > 0)).at(self._points)
        under = Monomial(Fraction(1), tuple((name, -e) for name, e in powers if e < 0)).at(self._points)
        if divisor is not None:
            over = over * divisor
        ratios = {
            Fraction(value * u, o) for value, o, u in zip(values.tolist(), over.tolist(), under.tolist(), strict=True)
        }
        return Monomial(ratios.pop(), powers) if len(ratios) == 1 else None


def _of_sign(monomial: Monomial, sign: int) -> tuple[tuple[str, int], ...]:
    return tuple((name, sign * exponent) for name, exponent in monomial.exponents if sign * exponent > 0)


def _divided(over: Whole, under: Whole) -> Whole:
    if np.any(over % under):
        raise NotWhole("a size would not be whole")
    return over // under


def _length(points: Points) -> int:
    return len(next(iter(points.values())))
