"""The search space: the values that each parameter may take. ``scamp_service.search`` samples them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from scamp_service.study.values import LARGEST_INT, Number, Scalar, Strict, at_most

_EXACT = Context(prec=1200)
"""Precision for any two floats: they differ by at most 632 decimal places, and a quotient has at most 633 digits."""


class Categorical(Strict):
    """One of a list of values."""

    choice: Annotated[list[Scalar], Field(min_length=1, max_length=1000), at_most(1000)]

    @field_validator("choice")
    @classmethod
    def _different(cls, values: list[Scalar]) -> list[Scalar]:
        seen: dict[Scalar, Scalar] = {}
        for value in values:
            if value in seen:  # 1 == 1.0 == True: no sampler can tell them apart
                raise ValueError(f"lists {seen[value]!r} and {value!r}, which are equal; keep one")
            seen[value] = value
        return values

    @property
    def num_values(self) -> int:
        """Number of choices."""
        return len(self.choice)

    def why_not(self, value: Scalar) -> str:
        """Why ``value`` is not allowed here; empty when it is."""
        same = (isinstance(value, bool), value) in self._options
        return "" if same else f"{value!r} is not one of {_listed(self.choice)}"

    @cached_property
    def _options(self) -> frozenset[tuple[bool, Scalar]]:
        """The choices, each with whether it is a bool, because ``True == 1``."""
        return frozenset((isinstance(option, bool), option) for option in self.choice)


class Range(Strict):
    """A number from ``low`` to ``high`` (both included); an integer when both are written as integers.

    With ``step`` the values are low, low + step, …, up to ``high``. With ``log`` they are sampled on a log scale.
    """

    low: Number
    high: Number
    log: bool = False
    step: Number | None = None

    @property
    def integer(self) -> bool:
        """Whether all values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def num_values(self) -> int | None:
        """Number of values; None when the range is continuous."""
        if self.low == self.high:
            return 1
        if not self.integer and self.step is None:
            return None
        # In decimals, as the user wrote them: 0.3 / 0.1 is 2.99… in floats.
        width = _EXACT.subtract(Decimal(str(self.high)), Decimal(str(self.low)))
        return int(_EXACT.divide_int(width, Decimal(str(self.step or 1)))) + 1

    def value(self, index: int) -> int | float:
        """The ``index``-th value of a countable range."""
        exact = _EXACT.add(Decimal(str(self.low)), _EXACT.multiply(Decimal(index), Decimal(str(self.step or 1))))
        return int(exact) if self.integer else float(exact)

    def why_not(self, value: Scalar) -> str:
        """Why ``value`` is not allowed here; empty when it is."""
        if isinstance(value, bool | str) or (self.integer and not isinstance(value, int)):
            return f"{value!r} is not {'an integer' if self.integer else 'a number'}"
        if not self.low <= value <= self.high:
            return f"{value} is not between {self.low} and {self.high}"
        if self.step is not None:
            above = _EXACT.subtract(Decimal(str(value)), Decimal(str(self.low)))
            if _EXACT.remainder(above, Decimal(str(self.step))):
                return f"{value} is not {self.low} plus a multiple of {self.step}"
        return ""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        if not math.isfinite(float(self.high) - float(self.low)):
            raise ValueError("the range is too wide: high - low is not finite")
        if self.log and self.low <= 0:
            raise ValueError(f"a log range needs low > 0, got {self.low}")
        if self.log and self.step is not None:
            raise ValueError("a log range cannot have a step")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be positive, got {self.step}")
        if self.integer and self.step is not None and not isinstance(self.step, int):
            raise ValueError(f"the step of an integer range must be an integer, got {self.step}")
        if self.num_values is not None and self.num_values > LARGEST_INT:
            # As a decimal: a tiny step gives an integer that no float can hold.
            raise ValueError(
                f"the range has {Decimal(self.num_values):.3g} values, which is too many; take a larger step"
            )
        return self


def _kind(value: Any) -> str | None:
    if isinstance(value, Categorical) or (isinstance(value, Mapping) and "choice" in value):
        return "choice"
    return "range" if isinstance(value, Range | Mapping) else None


Dimension = Annotated[
    Annotated[Categorical, Tag("choice")] | Annotated[Range, Tag("range")],
    Discriminator(
        _kind,
        custom_error_type="dimension",
        custom_error_message="must be {choice: [value, …]} or {low: number, high: number}",
    ),
]


def _listed(values: Iterable[Scalar], most: int = 10) -> str:
    shown = [repr(value) for value in values]
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")
