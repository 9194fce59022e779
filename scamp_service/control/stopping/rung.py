"""The objectives that the trials of a study have reported at one step."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Mapping

from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives, Values


class Rung:
    """The objectives that trials have reported at one step, by trial number, and in order.

    Trials with several objectives are ordered by non-domination rank (see ``Objectives.places``).
    """

    def __init__(self, objectives: Objectives, values: Mapping[int, Values] | None = None) -> None:
        self._objectives = objectives
        self._values: dict[int, Values] = {}
        self._keys: list[float] = []  # of one objective: those of finite values, the best first
        self._places: dict[int, int] | None = None  # of several: those of finite values; None: not known
        self._parts: dict[Hashable, tuple[Callable[[int], bool], Rung]] = {}
        for number, value in (values or {}).items():
            self.report(number, value)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def __getitem__(self, number: int) -> Values:
        return self._values[number]

    def report(self, number: int, values: Values) -> None:
        """Enter what a trial has reported; it replaces what the trial reported in an earlier attempt."""
        if self._values.get(number) == values:
            return
        self.forget(number)
        if not self._objectives.has_several and math.isfinite(values[0]):
            insort(self._keys, self._objective.key(values[0]))
        self._values[number], self._places = values, None
        for belongs, part in self._parts.values():
            if belongs(number):
                part.report(number, values)

    def forget(self, number: int) -> None:
        """Drop what a trial has reported, if anything."""
        before = self._values.pop(number, None)
        if before is not None and not self._objectives.has_several and math.isfinite(before[0]):
            del self._keys[bisect_left(self._keys, self._objective.key(before[0]))]
        self._places = None
        for _, part in self._parts.values():
            part.forget(number)

    def is_finite(self, number: int) -> bool:
        """Whether the trial compares with others."""
        return all(map(math.isfinite, self._values[number]))

    def shown(self, number: int) -> str:
        """Reported values of the trial, in words."""
        if not self._objectives.has_several:
            return f"{self._values[number][0]:.4g}"
        return f"({self._objectives.shown(self._values[number])})"

    def key(self, number: int) -> float:
        """Sorts trials by what they have reported, the best first; infinite if it is not finite."""
        if not self.is_finite(number):
            return math.inf
        if not self._objectives.has_several:
            return self._objective.key(self._values[number][0])
        return float(self._known_places[number])

    def num_better(self, number: int) -> int:
        """The number of trials that are better than this one. What is not finite is better than nothing."""
        if not self.is_finite(number):
            return len(self._known_places) if self._objectives.has_several else len(self._keys)
        if not self._objectives.has_several:
            return bisect_left(self._keys, self.key(number))
        return self._known_places[number]

    def among(self, name: Hashable, belongs: Callable[[int], bool]) -> Rung:
        """A rung with only the trials whose number ``belongs``. It is kept by ``name``, and follows later reports."""
        if name not in self._parts:
            values = {number: value for number, value in self._values.items() if belongs(number)}
            self._parts[name] = belongs, Rung(self._objectives, values)
        return self._parts[name][1]

    def percentile_of_others(self, number: int, percentile: float) -> float | None:
        """The value below which ``percentile`` per cent of the others are, counted from the best one.

        Between two values it is interpolated linearly, as by ``numpy.percentile``. None if no other is finite. Only for
        one objective.
        """
        keys = self._keys
        own_value = self._values.get(number)
        if own_value is not None and math.isfinite(own_value[0]):
            place = bisect_left(keys, self._objective.key(own_value[0]))
            keys = keys[:place] + keys[place + 1 :]
        if not keys:
            return None
        exact = percentile / 100 * (len(keys) - 1)
        low = math.floor(exact)
        high = min(low + 1, len(keys) - 1)
        return self._objective.key(keys[low] + (keys[high] - keys[low]) * (exact - low))  # its own inverse

    def best(self, count: int) -> list[int]:
        """Numbers of the best trials, the best first; fewer than ``count`` if not as many have a finite value."""
        finite = [number for number in self._values if self.is_finite(number)]
        return sorted(finite, key=lambda number: (self.key(number), number))[:count]

    @property
    def _objective(self) -> Objective:
        return self._objectives.items[0]

    @property
    def _known_places(self) -> dict[int, int]:
        """Trial → number of trials that are better, for all with finite values."""
        if self._places is None:
            numbers = sorted(number for number in self._values if self.is_finite(number))
            places = self._objectives.places([self._values[number] for number in numbers])
            self._places = dict(zip(numbers, places, strict=True))
        return self._places
