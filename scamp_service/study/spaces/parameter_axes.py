"""The parameters of a study as axes of a chart: a range of numbers, or a list of values in their order.

Names are flat: ``lr``, ``layers`` (the number of blocks), ``layers.0.width``. A study of another program may have no
space; its axes follow from the values of its trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from scamp_service.study.spaces.slots import slots_of
from scamp_service.study.spaces.space import Dimension, Range
from scamp_service.study.values import is_number, key_of

LOG_FROM = 1000
"""Numbers without a range in the study file have a logarithmic axis if the largest is this many times the smallest."""
_SPACE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Dimension])


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
"""In place of a value that a candidate does not have; ``None`` is a value."""


@dataclass(frozen=True)  # without slots, which a cached property cannot have
class ParameterAxis:
    """One parameter. ``choices`` are the values in their order; None: numbers from ``low`` to ``high``."""

    name: str
    choices: tuple[Any, ...] | None = None
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, value: Any) -> float | None:
        """Number of a value on the axis, of choices the index. None where it has none."""
        if value is MISSING:
            return None
        if self.choices is None:
            number = 0 if value == [] else value  # no blocks
            return number if is_number(number) and math.isfinite(number) else None
        return self._places.get(key_of(value))

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {key_of(choice): index for index, choice in enumerate(self.choices or ())}


def value_at(params: Mapping[str, Any], name: str) -> Any:
    """The value of a flat parameter in nested ones; ``MISSING`` if the candidate does not have it."""
    if name in params:
        return params[name]
    head, _, rest = name.partition(".")
    inner = params.get(head, MISSING)
    while rest and isinstance(inner, list):
        place, _, rest = rest.partition(".")
        if not place.isdecimal() or int(place) >= len(inner):
            return MISSING
        inner = inner[int(place)]
    return value_at(inner, rest) if rest and isinstance(inner, Mapping) else MISSING


def axis_value(params: Mapping[str, Any], name: str) -> Any:
    """The value to draw: that of ``value_at``, but of repeated blocks their number."""
    value = value_at(params, name)
    return len(value) if is_blocks(value) else value


def is_blocks(value: Any) -> bool:
    """Whether a value is a list of repeated blocks."""
    return isinstance(value, list) and bool(value) and all(isinstance(block, Mapping) for block in value)


def names_in(params: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """Every flat name of a candidate's parameters."""
    for name, value in params.items():
        yield prefix + name
        if is_blocks(value):
            for index, block in enumerate(value):
                yield from names_in(block, f"{prefix}{name}.{index}.")


def leaves_in(params: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """Flat names of a candidate's values, without those of lists of blocks."""
    for name, value in params.items():
        if not is_blocks(value):
            yield prefix + name
            continue
        for index, block in enumerate(value):
            yield from leaves_in(block, f"{prefix}{name}.{index}.")


def axes_of(space: Mapping[str, Any]) -> dict[str, ParameterAxis]:
    """Axes of the space of a stored study, from its JSON; empty for a study without one."""
    try:
        slots = slots_of(_SPACE.validate_python(space))
    except (ValidationError, ValueError):  # of a version that allowed what this one does not
        return {}
    axes = {}
    for slot in slots:
        dimension = slot.dimension
        if isinstance(dimension, Range):
            axes[slot.name] = ParameterAxis(slot.name, None, float(dimension.low), float(dimension.high), dimension.log)
        else:
            axes[slot.name] = ParameterAxis(
                slot.name, tuple(dimension.value(index) for index in range(dimension.num_values))
            )
    return axes


def fitted_axis(axis: ParameterAxis | None, name: str, values: Sequence[Any]) -> ParameterAxis:
    """The axis with room for all values that trials have; ``axis`` is that of the space, None without one."""
    present = [value for value in values if value is not MISSING]
    if axis is None:
        return _of_values(name, present)
    if axis.choices is not None:
        return ParameterAxis(name, _different((*axis.choices, *present)))
    numbers = [float(value) for value in present if is_number(value) and math.isfinite(value)]
    low, high = min(numbers, default=axis.low), max(numbers, default=axis.high)
    low, high = min(low, axis.low), max(high, axis.high)
    return ParameterAxis(name, None, low, high, axis.log and low > 0)


def _of_values(name: str, present: Sequence[Any]) -> ParameterAxis:
    if not present or not all(is_number(value) and math.isfinite(value) for value in present):
        return ParameterAxis(name, _different(present))
    low, high = float(min(present)), float(max(present))
    return ParameterAxis(name, None, low, high, low > 0 and high >= LOG_FROM * low)


def _different(values: Iterable[Any]) -> tuple[Any, ...]:
    distinct: dict[Any, Any] = {}
    for value in values:
        distinct.setdefault(key_of(value), value)
    return tuple(distinct.values())
