"""The dynamic programs that cut a model into stages, on one or more kinds of devices.

They know times and bytes only by tables, which have a row for each number of units of a stage and a column for its
first unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from placement.exact.ways import Amounts, Devices, StagedWay

SAME = 1 + 1e-9
"""Sums of the same numbers in another order differ by rounding."""


@dataclass(frozen=True, slots=True)
class Table:
    """Stages on one kind of devices, by distance from the last stage (one for all if they cost the same), number of
    units and first unit; infinite where impossible. ``sent_bytes`` are by first unit."""

    seconds: Amounts
    added_seconds: Amounts
    sent_bytes: Amounts


class Program:
    """Dynamic programs over the stages, from the last one to the first.

    The state is the first unit of the stages so far and, for each kind of devices but the last, how many of them are on
    it.
    """

    def __init__(self, staged: StagedWay, devices: Sequence[Devices], tables: Sequence[Table]) -> None:
        self._num_stages, self._tables = staged.num_stages, tables
        self._most = [min(device.count // staged.way.num_ranks, staged.num_stages) for device in devices]
        self._num_rows, self._num_units = tables[0].seconds.shape[1:]
        self._shape = tuple(num + 1 for num in self._most[:-1])

    def smallest_maximum(self) -> float:
        """Smallest maximum that the slowest stage adds to the step."""
        return self._smallest([table.added_seconds for table in self._tables], np.maximum)

    def smallest_sum(self, limit_seconds: float) -> float:
        """Smallest sum of stage times of all cuts with a maximum of at most ``limit_seconds``."""
        return self._smallest(self._within(limit_seconds), np.add)

    def maxima(self, above: float, highest: float) -> Amounts:
        """All values that the maximum can take above one value and up to another, ascending."""
        seconds = [table.added_seconds for table in self._tables]
        values = np.unique(
            np.concatenate(
                [
                    table_seconds[(table_seconds > above * SAME) & (table_seconds <= highest)]
                    for table_seconds in seconds
                ]
            )
        )
        return values[np.append(values[1:] > values[:-1] * SAME, True)] if len(values) else values

    def _within(self, limit_seconds: float) -> list[Amounts]:
        most = limit_seconds * SAME
        return [np.where(table.added_seconds <= most, table.seconds, np.inf) for table in self._tables]

    def _smallest(self, tables: Sequence[Amounts], combined: np.ufunc) -> float:
        """Smallest value of all cuts, where ``combined`` makes one value of those of two neighbouring stages."""
        now, then = (self._buffer() for _ in range(2))
        here, there = self._windows(now), self._windows(then)
        now[(0,) * len(self._shape)][self._num_units] = 0.0
        sums = np.empty((*self._shape, self._num_rows, self._num_units))
        for distance in range(self._num_stages):
            parts = []
            for table in tables:
                combined(table[distance if len(table) > 1 else 0], here, out=sums)
                parts.append(sums.min(axis=-2))
            then.fill(np.inf)
            self._merge(parts, distance + 1, then[..., : self._num_units])
            now, then, here, there = then, now, there, here
        return float(now[..., 0].min())

    def _buffer(self) -> Amounts:
        """Values by state, with room behind the last unit for stages that are too long."""
        return np.full((*self._shape, self._num_units + self._num_rows + 1), np.inf)

    def _windows(self, values: Amounts) -> Amounts:
        """Value behind a stage, by number of units and first unit; a view."""
        step = values.strides[-1]
        shape = (*self._shape, self._num_rows, self._num_units)
        return as_strided(values[..., 1:], shape, (*values.strides[:-1], step, step), writeable=False)

    def _merge(self, parts: Sequence[Amounts], num_stages: int, best: Amounts) -> None:
        """Write the smallest of ``parts``, one for each kind of devices that the new stage may be on."""
        for kind, part in enumerate(parts):
            if kind < len(self._shape):
                np.minimum(_from(best, kind, 1), _from(part, kind, 0), out=_from(best, kind, 1))
            else:
                np.minimum(best, part, out=best)
        if self._shape:
            best[num_stages - np.indices(self._shape).sum(axis=0) > self._most[-1]] = np.inf

    def traced_back(self, limit_seconds: float) -> list[tuple[int, int]]:
        """Number of units and kind of devices of each stage of the best cut with the smallest sum."""
        tables = self._within(limit_seconds)
        levels = [self._buffer() for _ in range(3)]  # seconds, bytes sent, squares of seconds
        for level in levels:
            level[(0,) * len(self._shape)][self._num_units] = 0.0
        choices = []
        for distance in range(self._num_stages):
            here = [table[distance if len(table) > 1 else 0] for table in tables]
            choice, levels = self._chosen(here, levels, distance + 1)
            choices.append(choice)
        return self._path(choices, [level[..., 0] for level in levels])

    def _chosen(
        self, tables: Sequence[Amounts], levels: Sequence[Amounts], num_stages: int
    ) -> tuple[npt.NDArray[np.int64], list[Amounts]]:
        """The best stage of each state: the fewest units of those that are equally good, then the first kind."""
        costs = [
            [table, np.broadcast_to(of_kind.sent_bytes, table.shape), np.square(table)]
            for table, of_kind in zip(tables, self._tables, strict=True)
        ]
        is_best = np.ones((), dtype=bool)
        costs_of_parts = []
        for index, level in enumerate(levels):
            sums = self._side_by_side([cost[index] + self._windows(level) for cost in costs])
            if self._shape:
                sums[num_stages - np.indices(self._shape).sum(axis=0) > self._most[-1]] = np.inf
            sums = np.where(is_best, sums, np.inf)
            least = sums.min(axis=-2)
            is_best = is_best & (sums <= least[..., None, :] * SAME)
            costs_of_parts.append(self._buffer())
            costs_of_parts[-1][..., : self._num_units] = least
        return is_best.argmax(axis=-2), costs_of_parts

    def _side_by_side(self, parts: Sequence[Amounts]) -> Amounts:
        """The parts of all kinds of devices, by the state with the new stage; kinds alternate within the rows."""
        side_by_side = np.full((*self._shape, self._num_rows, len(parts), self._num_units), np.inf)
        for kind, part in enumerate(parts):
            if kind < len(self._shape):
                _from(side_by_side, kind, 1)[..., kind, :] = _from(part, kind, 0)
            else:
                side_by_side[..., kind, :] = part
        return side_by_side.reshape(*self._shape, -1, self._num_units)

    def _path(self, choices: Sequence[npt.NDArray[np.int64]], ends: Sequence[Amounts]) -> list[tuple[int, int]]:
        is_best = np.ones(self._shape, dtype=bool)
        for end in ends:
            is_best &= end <= np.where(is_best, end, np.inf).min() * SAME
        state = [int(index) for index in np.argwhere(is_best)[0]]
        start, path = 0, []
        for choice in reversed(choices):
            row, kind = divmod(int(choice[(*state, start)]), len(self._tables))
            path.append((row + 1, kind))
            start += row + 1
            if kind < len(state):
                state[kind] -= 1
        return path


def _from(values: Amounts, axis: int, first: int) -> Amounts:
    """All but the first (``first`` = 1) or the last (0) along an axis; a view."""
    size = values.shape[axis]
    return values[(slice(None),) * axis + (slice(first, size - 1 + first),)]
