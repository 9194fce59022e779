"""Earlier trials of a study as samplers see them, and the choice of those that a sampler is shown.

A trial that did not fit, or that diverged (it completed or was pruned with a value that is NaN or infinite), has no
value; samplers rank it behind all that worked. Where the objective favours models that do not fit, half of the later
candidates then fit; if such trials were ignored, almost none would. A failure or a cancellation says nothing about the
parameters, and is ignored.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scamp_service.lifecycle import LIVE_TRIALS, Origin, TrialState
from scamp_service.study.objectives import Objectives, Values
from scamp_service.study.predicted import NO_BOUNDS, PredictedBounds

AT_ONCE = 100
"""Trials from which on a whole list is sorted rather than each of them inserted, which moves half of the list."""
MOST_SHOWN = 1024
"""A sampler sees at most about this many earlier trials. The time of TPE grows with each, and beyond that it finds
little more."""
NUM_BEST_SHOWN = 25
"""The best trials are always among them: Optuna's TPE models this many as good, at most."""
NUM_NEWEST_SHOWN = 256
"""So are the newest trials that have not ended, so that a proposal stays away from them."""


class Past(Protocol):
    """The part of an earlier trial that a proposal may depend on. ``scamp_service.model.Trial`` has it."""

    @property
    def number(self) -> int: ...
    @property
    def state(self) -> TrialState: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def step(self) -> int: ...
    @property
    def value(self) -> float | None: ...
    @property
    def values(self) -> Sequence[float | None] | None: ...
    @property
    def origin(self) -> Origin: ...
    @property
    def quantities(self) -> Mapping[str, float | None]: ...


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial as ``Past`` has it, for another process, or with other values than its own."""

    number: int
    state: TrialState
    params: Mapping[str, Any]
    step: int
    value: float | None
    values: Sequence[float | None] | None
    origin: Origin
    quantities: Mapping[str, float | None]

    @classmethod
    def of(cls, past: Past, **changes: Any) -> PastTrial:
        """A trial with these changes."""
        return cls(**{**{name: getattr(past, name) for name in cls.__slots__}, **changes})

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> PastTrial:
        """The trial whose fields are in a row of JSON."""
        return cls(**{**row, "state": TrialState(row["state"]), "origin": Origin(row["origin"])})


@dataclass(frozen=True, slots=True)
class Active:
    """A trial that has not ended, or a candidate that was proposed just now."""

    number: int
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Observation:
    """A trial that has ended or is paused. ``values``, one for each objective, are finite; None if the trial did not
    fit or diverged.

    ``pruned_at`` is the step at which it was stopped early or paused; None if it was neither. ``excesses`` say how far
    it exceeds each bound of the study on what is predicted: not positive where the bound holds.
    """

    number: int
    params: Mapping[str, Any]
    values: Values | None
    pruned_at: int | None = None
    excesses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shown:
    """The earlier trials that a sampler sees, each kind by number."""

    completed: Sequence[Observation] = ()
    active: Sequence[Active] = ()


class History:
    """Every trial of a study that was learned, and which of them to show.

    After ``MOST_SHOWN`` trials only every second one is shown, after twice as many every fourth, and so on; the best
    ones and the newest live ones are always shown. The choice depends on the trials alone, not on their order.
    """

    def __init__(self, objectives: Objectives, predicted: PredictedBounds = NO_BOUNDS) -> None:
        self._objectives, self._predicted = objectives, predicted
        self._completed: dict[int, Observation] = {}
        self._active: dict[int, Active] = {}
        self._ranked: list[tuple[tuple[float, ...], int]] = []  # keys of completed trials, the best first; not of
        # several objectives, where a key would depend on all others
        self._unranked: list[tuple[tuple[float, ...], int]] = []  # those that are not in ``_ranked`` yet
        self._beside: set[int] = set()  # numbers of trials that the sampler has not proposed

    @property
    def num_beside(self) -> int:
        """Number of the study's trials that its sampler has not proposed."""
        return len(self._beside)

    def count(self, past: Past) -> None:
        """Note that the trial exists, but not what it says."""
        if past.origin is not Origin.SEARCH:
            self._beside.add(past.number)

    def learn(self, past: Past) -> None:
        """Remember one trial as it is now."""
        number = past.number
        self._active.pop(number, None)
        if (before := self._completed.pop(number, None)) is not None and not self._objectives.has_several:
            ranked = self._rank_all()
            del ranked[bisect_left(ranked, (self._key(before), number))]
        if (after := observation_of(past, self._objectives, self._predicted)) is not None:
            self._completed[number] = after
            if not self._objectives.has_several:
                self._unranked.append((self._key(after), number))
        elif past.state in LIVE_TRIALS and past.origin is not Origin.REPEAT:
            self._active[number] = Active(number, past.params)

    def shown(self, first_number: int, most: int | None = None) -> Shown:
        """The trials before ``first_number`` that a sampler sees when it proposes that one and later ones.

        They are about ``most``, or ``MOST_SHOWN``.
        """
        stride = 1
        while first_number > stride * (most or MOST_SHOWN):
            stride *= 2
        best = self._best(first_number) if stride > 1 else ()
        newest = heapq.nlargest(NUM_NEWEST_SHOWN, (number for number in self._active if number < first_number))
        chosen = sorted({*range(0, first_number, stride), *itertools.islice(best, NUM_BEST_SHOWN), *newest})
        return Shown(
            [self._completed[number] for number in chosen if number in self._completed],
            [self._active[number] for number in chosen if number in self._active],
        )

    def _rank_all(self) -> list[tuple[tuple[float, ...], int]]:
        """All completed trials in their order. A new controller learns them all at once, later ones one by one."""
        if len(self._unranked) > AT_ONCE:
            self._ranked = sorted(self._ranked + self._unranked)
        else:
            for key in self._unranked:
                insort(self._ranked, key)
        self._unranked.clear()
        return self._ranked

    def _best(self, first_number: int) -> Iterator[int]:
        """Numbers of the completed trials before ``first_number``, the best first."""
        if not self._objectives.has_several:
            return (number for _, number in self._rank_all() if number < first_number)
        scored = [
            (trial.values, trial) for trial in self._completed.values() if trial.values and trial.number < first_number
        ]
        places = self._objectives.places([values for values, _ in scored])
        ordered = sorted(
            (trial.pruned_at is not None, place, trial.number) for (_, trial), place in zip(scored, places, strict=True)
        )
        return (number for _, _, number in ordered)

    def _key(self, trial: Observation) -> tuple[float, ...]:
        """Sorts completed trials, the best first: those that were pruned follow, the latest before, then the rest."""
        if trial.values is None:
            return (2.0,)
        key = self._objectives.keys(trial.values)
        return (0.0, *key) if trial.pruned_at is None else (1.0, -trial.pruned_at, *key)


def observation_of(past: Past, objectives: Objectives, predicted: PredictedBounds = NO_BOUNDS) -> Observation | None:
    """The trial that has ended or is paused, as samplers see it; None for one that they do not see.

    Where all objectives are predicted, a trial has its final values before it is launched.
    """
    if past.origin is Origin.REPEAT:
        return None
    values = objectives.values_of(past)
    excesses = predicted.excesses(past.quantities)
    match past.state:
        case TrialState.PRUNED | TrialState.PAUSED if values is not None:
            pruned_at = None if objectives.are_predicted else past.step
            return Observation(past.number, past.params, values, pruned_at, excesses)
        case TrialState.COMPLETED:
            return Observation(past.number, past.params, values, None, excesses)
        case TrialState.QUEUED | TrialState.RUNNING if objectives.are_predicted and values is not None:
            return Observation(past.number, past.params, values, None, excesses)
        case TrialState.PRUNED | TrialState.INFEASIBLE:
            return Observation(past.number, past.params, None, None, excesses)
    return None
