"""The objectives that the trials of a study have reported at one step."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping

from scamp_service.study.objective import Objective


class Rung:
    """The objectives that trials have reported at one step, by trial id, and in order."""

    def __init__(self, objective: Objective, values: Mapping[int, float] | None = None) -> None:
        self._objective = objective
        self._values: dict[int, float] = {}
        self._keys: list[float] = []  # those of finite values, the best first
        for trial_id, value in (values or {}).items():
            self.report(trial_id, value)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, trial_id: int) -> bool:
        return trial_id in self._values

    def __getitem__(self, trial_id: int) -> float:
        return self._values[trial_id]

    def report(self, trial_id: int, value: float) -> None:
        """Enter what a trial has reported; it replaces what the trial reported in an earlier attempt."""
        if (before := self._values.get(trial_id)) is not None and math.isfinite(before):
            del self._keys[bisect_left(self._keys, self._objective.key(before))]
        self._values[trial_id] = value
        if math.isfinite(value):
            insort(self._keys, self._objective.key(value))

    def num_better(self, value: float) -> int:
        """The number of trials with a better objective. What is not finite is better than nothing."""
        return bisect_left(self._keys, self._objective.key(value))
