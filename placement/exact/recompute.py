"""Chooses which units of a stage are recomputed: those that save enough bytes for the least extra time.

This is a knapsack. Units that save the same bytes for the same time are of one type; a model has few types, and only
the number of each type matters. With one type the answer is the smallest number that is enough. With more, all numbers
are combined into the Pareto front of (bytes saved, seconds), built once for each combination of counts. A front of more
than ``MOST_POINTS`` points is thinned: a choice is then still valid, but may not be the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placement.exact.ways import Amounts, Costs

MOST_POINTS = 10_000
"""Most points of a front: two types of 96 units each have at most 9,409."""
MOST_KEPT = 4_000_000
"""Points of all fronts together, of 28 bytes each, after which fronts are forgotten and built again when needed."""

_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Front:
    """Bytes saved per micro-batch, ascending, and the least seconds for each.

    Each point has ``numbers`` units of the last type, and is otherwise a point of the front without this type.
    """

    saved_bytes: Amounts
    seconds: Amounts
    numbers: npt.NDArray[np.int32]
    origins: _Counts


_EMPTY = _Front(np.zeros(1), np.zeros(1), np.zeros(1, np.int32), np.zeros(1, np.int64))
"""The front of no units: nothing is saved in no time."""


class Recompute:
    """Answers which units of a stage to recompute, for the costs of one way on one kind of devices."""

    def __init__(self, costs: Costs) -> None:
        saved_bytes = costs.kept_bytes - costs.recomputed_kept_bytes
        self._usable = (saved_bytes > 0) & np.isfinite(costs.recompute_seconds)
        pairs = np.stack([saved_bytes, costs.recompute_seconds], axis=1)[self._usable]
        self._types, of_units = np.unique(pairs, axis=0, return_inverse=True)
        self._type_of_unit = np.full(costs.num_units, -1)
        self._type_of_unit[self._usable] = of_units.ravel()
        rows = self._type_of_unit[None, :] == np.arange(len(self._types))[:, None]
        self._before = np.concatenate([np.zeros((len(rows), 1), np.int64), rows.cumsum(axis=1)], axis=1)
        self._fronts: dict[tuple[int, ...], _Front] = {}
        self._num_points = 0

    @property
    def num_types(self) -> int:
        """Types of units that can be recomputed and save bytes."""
        return len(self._types)

    def bounds(self, starts: _Counts, ends: _Counts, need_bytes: Amounts) -> tuple[Amounts, Amounts]:
        """Bounds of ``least_seconds``, from below and from above.

        The types that save most bytes in a second are recomputed first. The lower bound may recompute a part of a unit.
        """
        below, rest = np.zeros(need_bytes.shape), np.maximum(need_bytes, 0.0)
        above = below.copy()
        for index in np.argsort(self._types[:, 1] / self._types[:, 0], kind="stable"):
            saved_bytes, extra_seconds = self._types[index]
            counts = self._before[index][ends] - self._before[index][starts]
            numbers = np.minimum(rest / saved_bytes, counts)
            below += numbers * extra_seconds
            above += np.ceil(numbers) * extra_seconds
            rest = np.where(numbers < counts, 0.0, rest - counts * saved_bytes)
        impossible = rest > 0
        return np.where(impossible, np.inf, below), np.where(impossible, np.inf, above)

    def least_seconds(self, starts: _Counts, ends: _Counts, need_bytes: Amounts) -> Amounts:
        """Least extra seconds of a micro-batch by which stages of units [start, end) each save ``need_bytes``.

        0 where nothing must be saved, infinite where it cannot be. ``ends`` has a row for each number of units and a
        column for each of ``starts``; ``need_bytes`` has such a table for each number of micro-batches in flight.
        """
        seconds = np.where(need_bytes > 0, np.inf, 0.0)
        if len(self._types) == 1:
            ((saved_bytes, extra_seconds),) = self._types
            numbers = np.ceil(np.maximum(need_bytes, 0) / saved_bytes)
            return np.where(
                numbers <= self._before[0][ends] - self._before[0][starts], numbers * extra_seconds, seconds
            )
        if not len(self._types):
            return seconds
        counts = (self._before[:, ends] - self._before[:, None, starts]).reshape(len(self._types), -1)
        flat_need = need_bytes.reshape(-1, ends.size)
        flat = seconds.reshape(-1, ends.size)
        needing = np.flatnonzero((flat_need > 0).any(axis=0))
        unique, which = np.unique(counts[:, needing], axis=1, return_inverse=True)
        for index, row in enumerate(unique.T):
            columns = needing[which.ravel() == index]
            front = self._front(tuple(row.tolist()))
            at = np.searchsorted(front.saved_bytes, flat_need[:, columns])
            flat[:, columns] = np.append(front.seconds, np.inf)[at]
        return flat.reshape(need_bytes.shape)

    def units(self, start: int, end: int, need_bytes: float) -> tuple[int, ...]:
        """The units of [start, end) that save ``need_bytes`` of a micro-batch in the least time.

        Of units of one type, the first ones are recomputed. The need must be possible.
        """
        if need_bytes <= 0:
            return ()
        counts = self._before[:, end] - self._before[:, start]
        numbers = self._numbers(tuple(counts.tolist()), need_bytes)
        types = self._type_of_unit[start:end]
        chosen = [start + np.flatnonzero(types == index)[:num] for index, num in enumerate(numbers)]
        return tuple(sorted(np.concatenate(chosen).tolist()))

    def _numbers(self, counts: tuple[int, ...], need_bytes: float) -> list[int]:
        """Number of units of each type to recompute, out of ``counts``."""
        numbers = [0] * len(counts)
        front = self._front(counts)
        point = int(np.searchsorted(front.saved_bytes, need_bytes))
        while any(counts):
            front = self._front(counts)
            last, counts = _without_last(counts)
            numbers[last], point = int(front.numbers[point]), int(front.origins[point])
        return numbers

    def _front(self, counts: tuple[int, ...]) -> _Front:
        """The front of ``counts`` units of the types."""
        if not any(counts):
            return _EMPTY
        front = self._fronts.get(counts)
        if front is None:
            last, fewer = _without_last(counts)
            front = _extended(self._front(fewer), counts[last], *self._types[last])
            if self._num_points > MOST_KEPT:
                self._fronts, self._num_points = {}, 0
            self._fronts[counts] = front
            self._num_points += len(front.seconds)
        return front


def _without_last(counts: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The last type with any units, and the counts without it."""
    last = max(index for index, num in enumerate(counts) if num)
    return last, (*counts[:last], *(0,) * (len(counts) - last))


def _extended(front: _Front, count: int, saved_bytes: float, seconds: float) -> _Front:
    """The front with up to ``count`` units of one more type."""
    more = np.arange(count + 1)
    all_saved = (front.saved_bytes[:, None] + more * saved_bytes).ravel()
    all_seconds = (front.seconds[:, None] + more * seconds).ravel()
    order = np.lexsort((all_seconds, -all_saved))  # most bytes first
    cheapest = np.minimum.accumulate(all_seconds[order])
    is_better = np.concatenate([[True], cheapest[1:] < cheapest[:-1]])
    places = order[is_better][::-1]
    if len(places) > MOST_POINTS:
        places = places[np.linspace(0, len(places) - 1, MOST_POINTS).astype(np.int64)]
    origins, numbers = np.divmod(places, count + 1)
    return _Front(all_saved[places], all_seconds[places], numbers.astype(np.int32), origins)
