"""Orders points with several objectives, all of them to be minimized: fronts, and places within them.

Pure. A point dominates another one if it is nowhere worse and somewhere better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]


def front(points: Sequence[Sequence[float]]) -> Ints:
    """Indices of the points on the Pareto front, ascending: those of rank 0, without the ranks of all others."""
    distinct, of_point = _distinct(points)
    return np.flatnonzero(_front(distinct)[of_point]) if len(distinct) else of_point


def places(points: Sequence[Sequence[float]]) -> Ints:
    """Place of each point: 0 for the best, the same for points that compare as equal.

    Points are ordered by rank, and those of one rank by their crowding distance, the loneliest first, as in NSGA-II
    (Deb et al. 2002, section III). The ends of a front come first of all.
    """
    distinct, of_point = _distinct(points)
    ranks, crowding = _ranks(distinct), np.zeros(len(distinct))
    for rank in range(int(ranks.max(initial=-1)) + 1):
        members = np.flatnonzero(ranks == rank)
        crowding[members] = _crowding(distinct[members])
    keys = np.stack([ranks.astype(float), -crowding], axis=1).reshape(-1, 2)
    _, place = np.unique(keys, axis=0, return_inverse=True)
    num_before = np.concatenate([[0], np.cumsum(np.bincount(place.reshape(-1)[of_point]))])  # equal points share one
    return num_before[place.reshape(-1)][of_point].astype(np.intp)


def _distinct(points: Sequence[Sequence[float]]) -> tuple[Floats, Ints]:
    """The distinct points in ascending order, and for each point which of these it is."""
    values = np.asarray(points, np.float64)
    if not len(values):
        return values.reshape(0, 1), np.zeros(0, np.intp)
    distinct, of_point = np.unique(values, axis=0, return_inverse=True)
    return distinct, of_point.reshape(-1)


def _ranks(points: Floats) -> Ints:
    """Ranks of distinct points in ascending order: the front is taken away until nothing is left."""
    ranks, left, rank = np.zeros(len(points), np.intp), np.arange(len(points)), 0
    while len(left):
        on_front = _front(points[left])
        ranks[left[on_front]] = rank
        left, rank = left[~on_front], rank + 1
    return ranks


def _front(points: Floats) -> npt.NDArray[np.bool_]:
    """Which of these distinct points, in ascending order, no other one dominates."""
    if points.shape[1] <= 2:  # one before it dominates a point, unless the last objective is less than all before
        least = np.minimum.accumulate(points[:, -1])
        return np.concatenate([[True], points[1:, -1] < least[:-1]])
    on_front, left = np.zeros(len(points), np.bool_), np.arange(len(points))
    while len(left):
        on_front[left[0]] = True  # nothing after the first in ascending order dominates it
        left = left[(points[left] < points[left[0]]).any(axis=1)]
    return on_front


def _crowding(points: Floats) -> Floats:
    """Crowding distance of each point of a front; infinite at the ends of an objective."""
    crowding = np.zeros(len(points))
    for values in points.T:
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        crowding[order[[0, -1]]] = np.inf
        if ordered[-1] > ordered[0]:
            crowding[order[1:-1]] += (ordered[2:] - ordered[:-2]) / (ordered[-1] - ordered[0])
    return crowding
