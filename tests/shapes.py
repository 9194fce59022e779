"""Shapes as the planner offers them: more ranks only where these save time."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from placement.model import Shape


def pareto(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The shapes that are worth offering, those with the fewest ranks first: each one has fewer seconds than the last.

    Without seconds, only the first one of those with the fewest ranks is.
    """
    front: list[Shape] = []
    for shape in sorted(shapes, key=lambda shape: (shape.num_ranks, inf if shape.seconds is None else shape.seconds)):
        if not front or (shape.seconds is not None and shape.seconds < (front[-1].seconds or 0.0)):
            front.append(shape)
    return tuple(front)
