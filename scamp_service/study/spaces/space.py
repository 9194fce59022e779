"""The search space: the values that each parameter may take, and when it exists. ``scamp_service.search`` samples it.

``slots`` says which parameters a space has in all, and how they depend on each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Self, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from scamp_service.study.values import LARGEST_INT, Name, Number, Strict, Value, at_most, is_number, key_of

_EXACT = Context(prec=1200)
"""Precision for any two floats: they differ by at most 632 decimal places, and a quotient has at most 633 digits."""


When = Annotated[dict[Name, Value], Field(max_length=20), at_most(20)]
"""Name of another parameter → the value, or a list of the values, with which a parameter exists. All must hold."""


_Listed = TypeVar("_Listed", "Categorical", "Ordinal")


def _with_allowed_prior(listed: _Listed) -> _Listed:
    if listed.prior is not None and (wrong := listed.why_not(listed.prior)):
        raise ValueError(f"the prior {wrong}")
    return listed


class Categorical(Strict):
    """One of a list of values. ``prior`` is the one that the user believes in."""

    choice: Annotated[list[Value], Field(min_length=1, max_length=1000), at_most(1000)]
    when: When = Field(default={})
    prior: Value = None

    _prior_is_allowed = model_validator(mode="after")(_with_allowed_prior)

    @field_validator("choice")
    @classmethod
    def _different(cls, values: list[Any]) -> list[Any]:
        return _without_equals(values)

    @property
    def num_values(self) -> int:
        """Number of choices."""
        return len(self.choice)

    def value(self, index: int) -> Any:
        """The ``index``-th choice."""
        return self.choice[index]

    def why_not(self, value: Any) -> str:
        """Why ``value`` is not allowed here; empty when it is."""
        return "" if key_of(value) in self._options else f"{value!r} is not one of {_first_values(self.choice)}"

    @cached_property
    def _options(self) -> frozenset[Any]:
        return frozenset(map(key_of, self.choice))


class Ordinal(Strict):
    """One of a list of values whose order means something: samplers take neighbours for similar."""

    ordinal: Annotated[list[Value], Field(min_length=1, max_length=1000), at_most(1000)]
    when: When = Field(default={})
    prior: Value = None

    _prior_is_allowed = model_validator(mode="after")(_with_allowed_prior)

    @field_validator("ordinal")
    @classmethod
    def _different(cls, values: list[Any]) -> list[Any]:
        return _without_equals(values)

    @property
    def num_values(self) -> int:
        """Number of values."""
        return len(self.ordinal)

    def value(self, index: int) -> Any:
        """The ``index``-th value."""
        return self.ordinal[index]

    def index(self, value: Any) -> int:
        """The place of ``value`` in the list."""
        return self._places[key_of(value)]

    def why_not(self, value: Any) -> str:
        """Why ``value`` is not allowed here; empty when it is."""
        return "" if key_of(value) in self._places else f"{value!r} is not one of {_first_values(self.ordinal)}"

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {key_of(value): index for index, value in enumerate(self.ordinal)}


class Prior(Strict):
    """The user's belief about a number: about ``mean``, give or take ``sigma``.

    On a logarithmic scale ``sigma`` is a factor: 3 means from a third of the mean to three times as much. The default
    is a sixth of the range.
    """

    mean: Number
    sigma: Annotated[Number, Field(gt=0)] | None = None


def _as_prior(value: Any) -> Any:
    """``value``, or the prior with this mean."""
    return {"mean": value} if isinstance(value, int | float | str) and not isinstance(value, bool) else value


class Range(Strict):
    """A number from ``low`` to ``high`` (both included); an integer when both are written as integers.

    With ``step`` the values are low, low + step, …, up to ``high``. With ``log`` they are sampled on a log scale.
    """

    low: Number
    high: Number
    log: bool = False
    step: Number | None = None
    when: When = Field(default={})
    prior: Annotated[Prior | None, BeforeValidator(_as_prior)] = None

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

    def why_not(self, value: Any) -> str:
        """Why ``value`` is not allowed here; empty when it is."""
        if not is_number(value) or (self.integer and not isinstance(value, int)):
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
        if self.prior is not None and not self.low <= self.prior.mean <= self.high:
            raise ValueError(f"the prior {self.prior.mean} is not between {self.low} and {self.high}")
        if self.log and self.prior is not None and self.prior.sigma is not None and self.prior.sigma <= 1:
            raise ValueError(f"the sigma of a log range is a factor greater than 1, got {self.prior.sigma}")
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
    """The kind of dimension that is meant: by its keys, or by one that is close to a key; None if it is none."""
    if isinstance(value, Mapping):
        keys = [key for key in _KIND_OF if key in value] or (
            key for name in islice(value, _KEYS_READ) for key in get_close_matches(str(name), _KIND_OF, n=1)
        )
        return next((_KIND_OF[key] for key in keys), None)
    return next((kind for kind, model in MODELS.items() if isinstance(value, model)), None)


def _as_range(value: Any) -> Any:
    """``value``, or the range that has only this number."""
    return {"low": value, "high": value} if isinstance(value, int) and not isinstance(value, bool) else value


_KIND_OF = {
    "choice": "choice",
    "ordinal": "ordinal",
    "repeat": "block",
    "each": "block",
    "low": "range",
    "high": "range",
}
_KEYS_READ = 20
"""Keys that may be misspelt ones: there may be 60,000, whose likeness would take seconds."""
_Plain = Annotated[Categorical, Tag("choice")] | Annotated[Ordinal, Tag("ordinal")] | Annotated[Range, Tag("range")]
Count = Annotated[
    _Plain,
    Discriminator(
        _kind,
        custom_error_type="dimension",
        custom_error_message="must be an integer, {choice: [integer, …]} or {low: integer, high: integer}",
    ),
    BeforeValidator(_as_range),
]
"""The number of blocks."""


class Repeat(Strict):
    """Blocks of the same parameters, each with values of its own: a list of mappings for the workload."""

    repeat: Count
    each: Annotated[dict[Name, Dimension], Field(min_length=1, max_length=100), at_most(100)]
    when: When = Field(default={})

    @property
    def most(self) -> int:
        """The largest number of blocks."""
        return max(map(int, _ends(self.repeat)))

    @model_validator(mode="after")
    def _counts(self) -> Self:
        for value in _ends(self.repeat):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
                raise ValueError(f"repeat is a number of blocks, an integer from 0 to 1000; got {value!r}")
        if self.repeat.when:
            raise ValueError("when belongs next to repeat, not inside it")
        return self


Plain = Categorical | Ordinal | Range
"""A dimension with one value."""
MODELS: Mapping[str, type[Strict]] = {"choice": Categorical, "ordinal": Ordinal, "block": Repeat, "range": Range}
"""The model of each kind of dimension, by the name that it has in the place of an error."""
Dimension = Annotated[
    _Plain | Annotated[Repeat, Tag("block")],
    Discriminator(
        _kind,
        custom_error_type="dimension",
        custom_error_message=(
            "must be {choice: [value, …]}, {ordinal: [value, …]}, {low: number, high: number} "
            "or {repeat: number, each: {name: …}}"
        ),
    ),
]
Repeat.model_rebuild()


def _ends(dimension: Categorical | Ordinal | Range) -> list[Any]:
    """Every value of a list, or both ends of a range."""
    match dimension:
        case Categorical():
            return dimension.choice
        case Ordinal():
            return dimension.ordinal
    return [dimension.low, dimension.high]


def ends(dimension: Categorical | Ordinal | Range) -> list[Any]:
    """Values that have every choice between them, or both ends of a range."""
    bounds = _ends(dimension)
    return bounds[:1] if isinstance(dimension, Range) and dimension.low == dimension.high else bounds


def _without_equals(values: list[Any]) -> list[Any]:
    seen: dict[Any, Any] = {}
    for value in values:
        key = json.dumps(value) if isinstance(value, list) else value  # 1 == 1.0 == True: no sampler tells them apart
        if key in seen:
            raise ValueError(f"lists {seen[key]!r} and {value!r}, which are equal; keep one")
        seen[key] = value
    return values


def _first_values(values: Iterable[Any], most: int = 10) -> str:
    shown = [repr(value) for value in values]
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")
