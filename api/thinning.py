"""Chooses the points of a chart that are worth sending: a browser has about a thousand pixels for any number of points.

Pure. ``lttb`` thins a line and ``spread_evenly`` thins marks whose place says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from scamp_service.study.objective import Objective

Indices = npt.NDArray[np.intp]


def lttb(x: npt.ArrayLike, y: npt.ArrayLike, most: int) -> Indices:
    """Ascending indices of at most ``most`` (at least 2) points that keep the look of the line; all finite.

    Largest triangle, three buckets (Steinarsson 2013, "Downsampling Time Series for Visual Representation", §4.2). The
    first and the last point are kept. The points between are divided into ``most`` − 2 buckets, and of each bucket the
    point is kept that makes the largest triangle with the point kept before and the mean of the next bucket, so spikes
    survive.
    """
    assert most >= 2, "a line has two ends"
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    num = len(xs)
    if num <= most:
        return np.arange(num)
    if most == 2:
        return np.array([0, num - 1])
    xs, ys = _from_zero_to_one(xs), _from_zero_to_one(ys)  # otherwise large numbers overflow when they are multiplied
    edges = 1 + (np.arange(most - 1) * (num - 2)) // (most - 2)
    counts = np.diff(np.append(edges, num))
    mean_x, mean_y = (np.add.reduceat(values, edges) / counts for values in (xs, ys))  # the last bucket: the last point
    places = np.zeros(most, np.intp)
    places[-1] = num - 1
    for bucket, (start, end) in enumerate(pairwise(edges)):
        last = places[bucket]
        base_x, base_y = mean_x[bucket + 1] - xs[last], mean_y[bucket + 1] - ys[last]
        areas = np.abs(base_x * (ys[start:end] - ys[last]) - base_y * (xs[start:end] - xs[last]))
        places[bucket + 1] = start + int(np.argmax(areas))
    return places


def spread_evenly(num: int, most: int) -> Indices:
    """Ascending indices of at most ``most`` of ``num`` points, at equal distances."""
    return np.arange(num) if num <= most else (np.arange(most) * num) // most


def improvements(values: npt.ArrayLike, objective: Objective) -> Indices:
    """Indices of the values that are better than all before them; NaN never is."""
    keys = objective.keys(np.asarray(values, float))
    keys = np.where(np.isnan(keys), np.inf, keys)
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], keys]))[:-1]
    return np.flatnonzero(keys < best_before)


def merged_points(*chosen: Iterable[int]) -> list[int]:
    """Ascending indices that are in any of ``chosen``."""
    return sorted({int(index) for indices in chosen for index in indices})


def _from_zero_to_one(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    low, high = values.min() / 2, values.max() / 2  # halves: the width of a range can be infinite
    return (values / 2 - low) / (high - low) if high > low else np.zeros_like(values)
