"""Proposes every point of a grid once."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from scamp_service.search.history import Active, Completed
from scamp_service.search.space import Space
from scamp_service.search.starts import Starts
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


class Grid:
    """The points of a grid, except those that ``start_with`` has tried; shuffled, as the budget may end first.

    It holds four bytes for each point, and makes a point when it is asked for.
    """

    reads_history: ClassVar = False

    def __init__(self, spec: StudySpec) -> None:
        self._seed, self._space, self._starts = spec.search.seed, Space(spec.space), Starts(spec)

    def suggest(self, number: int, completed: Sequence[Completed], active: Sequence[Active]) -> Params | None:
        """The point of trial ``number``; None after the last one."""
        place = number - len(self._starts)
        return self._space.point(self._order[place]) if place < len(self._order) else None

    @cached_property
    def _order(self) -> array[int]:
        order = array("I", range(self._space.num_points))
        random.Random(self._seed).shuffle(order)
        tried = {self._space.number_of(self._starts[number]) for number in range(len(self._starts))}
        return array("I", (number for number in order if number not in tried)) if tried else order
