"""Moves of one value within its dimension: to a neighbour, to the nearest that is allowed, to a share of a range."""

from __future__ import annotations

import random
from typing import Any

from scamp_service.study.spaces.space import Categorical, Ordinal, Range
from scamp_service.study.values import key_of


def moved(dimension: Categorical | Ordinal | Range, value: Any, source: random.Random) -> Any:
    """Another value near ``value``: a neighbour, or another choice; the same one if there is no other.

    In a range it is on average about a seventh of the range away, of its logarithm if it is drawn on that scale.
    """
    match dimension:
        case Categorical():
            return source.choice([choice for choice in dimension.choice if key_of(choice) != key_of(value)] or [value])
        case Ordinal():
            place, last = dimension.index(value), len(dimension.ordinal) - 1
            return dimension.value(source.choice([i for i in (place - 1, place + 1) if 0 <= i <= last] or [place]))
    low, high = float(dimension.low), float(dimension.high)
    for scale in (0.2, 0.2, 0.5, 1.0):
        step = source.gauss(0.0, scale)
        neighbor = nearest(dimension, value * (high / low) ** step if dimension.log else value + (high - low) * step)
        if neighbor != value:
            break
    return neighbor


def nearest(dimension: Range, value: float) -> int | float:
    """The value of a range that is nearest to ``value``."""
    low, high = float(dimension.low), float(dimension.high)
    clipped = min(high, max(low, value))
    if dimension.num_values is None:
        return clipped
    index = round((clipped - low) / float(dimension.step or 1))
    return dimension.value(min(dimension.num_values - 1, max(0, index)))


def uniform(dimension: Range, share: float) -> float:
    """The value at this share of the range, of its logarithm if it is drawn on that scale."""
    low, high = float(dimension.low), float(dimension.high)
    return low * (high / low) ** share if dimension.log else low + (high - low) * share
