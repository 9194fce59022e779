"""The objectives that the trials of a study have reported at one step."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Mapping

from scamp_service.study.objective import Objective


class Rung:
    """The objectives that trials have reported at one step, by trial number, and in order."""

    def __init__(self, objective: Objective, values: Mapping[int, float] | None = None) -> None:
        self._objective = objective
        self._values: dict[int, float] = {}
        self._keys: list[float] = []  # those of finite values, the best first
        self._parts: dict[Hashable, tuple[Callable[[int], bool], Rung]] = {}
        for number, value in (values or {}).items():
            self.report(number, value)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def __getitem__(self, number: int) -> float:
        return self._values[number]

    def report(self, number: int, value: float) -> None:
        """Enter what a trial has reported; it replaces what the trial reported in an earlier attempt."""
        if (before := self._values.get(number)) is not None and math.isfinite(before):
            del self._keys[bisect_left(self._keys, self._objective.key(before))]
        self._values[number] = value
        if math.isfinite(value):
            insort(self._keys, self._objective.key(value))
        for belongs, part in self._parts.values():
            if belongs(number):
                part.report(number, value)

    def num_better(self, value: float) -> int:
        """The number of trials with a better objective. What is not finite is better than nothing."""
        return bisect_left(self._keys, self._objective.key(value))

    def among(self, name: Hashable, belongs: Callable[[int], bool]) -> Rung:
        """A rung with only the trials whose number ``belongs``. It is kept by ``name``, and follows later reports."""
        if name not in self._parts:
            values = {number: value for number, value in self._values.items() if belongs(number)}
            self._parts[name] = belongs, Rung(self._objective, values)
        return self._parts[name][1]

    def percentile_of_others(self, number: int, percentile: float) -> float | None:
        """The value below which ``percentile`` per cent of the others are, counted from the best one.

        Between two values it is interpolated linearly, as by ``numpy.percentile``. None if no other is finite.
        """
        keys = self._keys
        own = self._values.get(number)
        if own is not None and math.isfinite(own):
            place = bisect_left(keys, self._objective.key(own))
            keys = keys[:place] + keys[place + 1 :]
        if not keys:
            return None
        exact = percentile / 100 * (len(keys) - 1)
        low = math.floor(exact)
        high = min(low + 1, len(keys) - 1)
        return self._objective.key(keys[low] + (keys[high] - keys[low]) * (exact - low))  # its own inverse

    def best(self, count: int) -> list[int]:
        """Numbers of the best trials, the best first; fewer than ``count`` if not as many have a finite value."""
        finite = [number for number, value in self._values.items() if math.isfinite(value)]
        return sorted(finite, key=lambda number: (self._objective.key(self._values[number]), number))[:count]

    def best_of(self, values: Iterable[float]) -> float | None:
        """The best of these values, None if none is finite."""
        return min(filter(math.isfinite, values), key=self._objective.key, default=None)
