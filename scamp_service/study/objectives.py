"""All objectives of a study as one value, which says what a trial has reached in each, and which of two is better.

A study with one objective has a best trial. One with several has a Pareto front: the trials that no other one
dominates, which would be better in one objective and worse in none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from scamp_service.lifecycle import TrialState
from scamp_service.study.objective import Objective
from scamp_service.study.pareto import front, places


def named_by_place(directions: Sequence[str]) -> list[dict[str, str]]:
    """Objectives as JSON for values that have no names: ``value_0``, ``value_1``, …"""
    return [{"metric": f"value_{index}", "direction": direction} for index, direction in enumerate(directions)]


Values = tuple[float, ...]
"""The value of each objective of a study, in the order of its ``objectives``."""


class Scored(Protocol):
    """The part of a trial that its objectives are read from. ``scamp_service.model.Trial`` has it."""

    @property
    def value(self) -> float | None: ...
    @property
    def values(self) -> Sequence[float | None] | None: ...
    @property
    def quantities(self) -> Mapping[str, float | None]: ...


class Standing(Scored, Protocol):
    """A trial with its state."""

    @property
    def state(self) -> TrialState: ...


T = TypeVar("T", bound=Standing)


@dataclass(frozen=True, slots=True)
class Objectives:
    """One or several objectives, in the order in which values are listed."""

    items: tuple[Objective, ...]

    @property
    def best_of(self) -> str:
        """The direction of the objective by whose best report trials count; empty if they count by their last one."""
        return self.items[0].direction if self.items[0].at == "best" else ""

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> Self:
        """The objectives in the JSON of a stored study. They were checked when it was submitted, not again here."""
        rows = spec.get("objectives") or [spec["objective"]]
        return cls(tuple(Objective.model_construct(**row) for row in rows))

    def __str__(self) -> str:
        """The objectives in words, such as ``maximize accuracy and minimize predicted.peak_mib``."""
        return " and ".join(f"{objective.direction} {objective.metric}" for objective in self.items)

    @property
    def has_several(self) -> bool:
        """Whether there is more than one."""
        return len(self.items) > 1

    @property
    def leading(self) -> Objective:
        """The first that is measured, or else the first. Curves and ``Trial.value`` are its values."""
        return next((objective for objective in self.items if not objective.predicted), self.items[0])

    @property
    def names(self) -> tuple[str, ...]:
        """The metric of each."""
        return tuple(objective.metric for objective in self.items)

    @property
    def measured(self) -> tuple[str, ...]:
        """The metrics that evaluations must report."""
        return tuple(objective.metric for objective in self.items if not objective.predicted)

    @property
    def are_predicted(self) -> bool:
        """Whether all of them are known before a trial is launched."""
        return not self.measured

    def unknown(self, quantities: Mapping[str, float | None]) -> list[str]:
        """Predicted objectives that this candidate has no value for."""
        return [
            objective.metric
            for objective in self.items
            if objective.predicted and not _is_finite(quantities.get(objective.predicted))
        ]

    def values_of(self, trial: Scored) -> Values | None:
        """The trial's newest value of each objective; None unless all are known and finite."""
        return _all(self.each_of(trial))

    def each_of(self, trial: Scored) -> list[float | None]:
        """The trial's newest value of each objective; None for one that is not known, or not finite."""
        if trial.value is not None and not math.isfinite(trial.value):  # it diverged
            measured: Sequence[float | None] = [None] * len(self.items)
        elif self.has_several:
            measured = trial.values or [None] * len(self.items)
        else:
            measured = [trial.value]
        values_known = [
            trial.quantities.get(objective.predicted) if objective.predicted else value
            for objective, value in zip(self.items, measured, strict=True)
        ]
        return [value if _is_finite(value) else None for value in values_known]

    def broken(self, trial: Scored) -> tuple[str, float] | None:
        """The first measured objective of the trial that is not finite, and its value; None if there is none."""
        values = (trial.values or []) if self.has_several else [trial.value]
        for objective, value in zip(self.items, values, strict=False):
            if not objective.predicted and value is not None and not math.isfinite(value):
                return objective.metric, value
        return None

    def with_predicted(self, measured: Sequence[float], quantities: Mapping[str, float | None]) -> Values | None:
        """Values of the ``measured`` objectives, finite or not, with those of the others, which are predicted.

        None if one of these is not known.
        """
        reported = iter(measured)
        all_values = [
            quantities.get(objective.predicted) if objective.predicted else next(reported) for objective in self.items
        ]
        return _all(all_values)

    def keys(self, values: Sequence[float]) -> Values:
        """A key for each objective by which values sort, the best first; ``values`` has one of each objective."""
        return tuple(objective.key(value) for objective, value in zip(self.items, values, strict=True))

    def dominates(self, values: Sequence[float], other: Sequence[float]) -> bool:
        """Whether the first is better in at least one objective, and worse in none."""
        mine, theirs = self.keys(values), self.keys(other)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))

    def places(self, points: Sequence[Sequence[float]]) -> list[int]:
        """Place of each point, 0 for the best: by rank, then the loneliest of a front first. Equal points share one."""
        return [int(place) for place in places([self.keys(point) for point in points])]

    def front(self, points: Sequence[Sequence[float]]) -> list[int]:
        """Indices of the points on the Pareto front, ascending."""
        return [int(index) for index in front([self.keys(point) for point in points])]

    def front_of(self, trials: Iterable[T]) -> list[T]:
        """The COMPLETED trials that no other one dominates, in their order; empty with one objective.

        Before a trial has completed, those that run or are paused are compared.
        """
        if not self.has_several:
            return []
        points = [(trial, values) for trial in trials if (values := self.values_of(trial)) is not None]
        for states in ({TrialState.COMPLETED}, {TrialState.RUNNING, TrialState.PAUSED}):
            if of_states := [(trial, values) for trial, values in points if trial.state in states]:
                return [of_states[index][0] for index in self.front([values for _, values in of_states])]
        return []

    def shown(self, values: Sequence[float]) -> str:
        """The values in words, such as ``accuracy 0.91, predicted.peak_mib 412``."""
        return ", ".join(f"{objective.metric} {value:.4g}" for objective, value in zip(self.items, values, strict=True))


def _all(values: Sequence[float | None]) -> Values | None:
    numbers = tuple(float(value) for value in values if value is not None)
    return numbers if len(numbers) == len(values) else None


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
