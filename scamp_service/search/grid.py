"""Proposes every point of a grid once.

It is not in ``search.samplers``, because it leaves out the points of ``start_with``, which are above the samplers.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import ClassVar

from scamp_service.search.constrained import Constrained, NoCandidate
from scamp_service.search.history import Active, Observation
from scamp_service.search.space import Space
from scamp_service.search.starts import Starts
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params


class Grid:
    """The points of a grid that satisfy the constraints, except those that ``start_with`` or an earlier study has
    tried.

    They are shuffled, as the budget may end first. It holds four bytes for each, and makes a point when it is asked
    for.
    """

    reads_history: ClassVar = False
    needs_own_process: ClassVar[bool] = False
    shows_most: ClassVar[int | None] = None

    def __init__(self, spec: StudySpec) -> None:
        self._seed, self._space, self._starts = spec.search.seed, Space(spec.space), Starts(spec)
        self._constrained = Constrained(spec) if spec.constraints else None
        self._order: array[int] | None = None

    def suggest(
        self, number: int, completed: Sequence[Observation], active: Sequence[Active], attempt: int = 0
    ) -> Params | None:
        """The point of trial ``number``; None after the last one. Raises ``NoCandidate`` if there is no point."""
        if self._order is None:
            self._order = self._order_after(completed)  # the same for each call: the study's own trials are not shown
        place = number - len(self._starts)
        return self._space.point(self._order[place]) if place < len(self._order) else None

    def _order_after(self, earlier: Sequence[Observation]) -> array[int]:
        order = array("I", range(self._space.num_points))
        random.Random(self._seed).shuffle(order)
        if self._constrained is not None:
            order = array("I", (number for number in order if self._constrained.holds(self._space.point(number))))
            if not order:
                raise NoCandidate("the constraints reject every point of the grid")
        candidates = [*map(self._starts.__getitem__, range(len(self._starts))), *(trial.params for trial in earlier)]
        tried = {self._space.number_of(params) for params in candidates}
        return array("I", (number for number in order if number not in tried)) if tried else order
