"""Peak memory as a function of the micro-batch, from event logs of a few traced ones: exact, in closed form.

With a fixed sequence of operations the size of every allocation is affine in the micro-batch B, so the bytes that
live after event t are a_t + b_t·B, and the peak is the upper hull of a few lines. ``fit`` refuses logs of which that
is not true, and then a ``PeakTable`` of directly traced micro-batches takes its place. Nothing is traced here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from estimators.model import PeakCurve

# (buffer, bytes that it holds from now on); 0 when it is freed. Buffers are numbered in order of first allocation.
EventLog = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """fixed_bytes + bytes_per_sample · micro-batch."""

    bytes_per_sample: int
    fixed_bytes: int

    def at(self, micro_batch: int) -> int:
        return self.fixed_bytes + self.bytes_per_sample * micro_batch


@dataclass(frozen=True, slots=True)
class Envelope:
    """The largest of ``lines`` for micro-batches of 2 and more; of one sample the traced peak itself.

    Operations on dimensions of size 1 skip copies, so the log of a single sample often follows other lines.
    """

    lines: tuple[Line, ...]
    one_sample_bytes: int

    def __post_init__(self) -> None:
        if not any(line.bytes_per_sample > 0 for line in self.lines):
            raise ValueError(f"one line must grow with the micro-batch, or every batch would fit: {self.lines}")
        if any(line.bytes_per_sample < 0 for line in self.lines):
            raise ValueError(f"no line may fall with the micro-batch: {self.lines}")

    def peak_bytes(self, micro_batch: int) -> int:
        _check_micro_batch(micro_batch)
        if micro_batch == 1:
            return self.one_sample_bytes
        return max(line.at(micro_batch) for line in self.lines)

    def largest_batch(self, capacity_bytes: int) -> int:
        """min over lines of ⌊(C − a)/b⌋, as every line must stay within C."""
        largest = self._largest_on_lines(capacity_bytes)
        if largest >= 2:
            return largest
        return 1 if self.one_sample_bytes <= capacity_bytes else 0

    def _largest_on_lines(self, capacity_bytes: int) -> int:
        if any(line.fixed_bytes > capacity_bytes for line in self.lines if line.bytes_per_sample == 0):
            return 0
        growing = [line for line in self.lines if line.bytes_per_sample > 0]
        return min((capacity_bytes - line.fixed_bytes) // line.bytes_per_sample for line in growing)

    def to_json(self) -> dict[str, Any]:
        lines = [[line.bytes_per_sample, line.fixed_bytes] for line in self.lines]
        return {"kind": "envelope", "lines": lines, "one_sample_bytes": self.one_sample_bytes}


@dataclass(frozen=True, slots=True)
class PeakTable:
    """Traced peaks of single micro-batches, for a model whose logs are not affine.

    Between two of them the larger counts (never less than any smaller one), and beyond the last nothing is known.
    """

    points: tuple[tuple[int, int], ...]  # (micro-batch, peak bytes), ascending

    def __post_init__(self) -> None:
        sizes = [micro_batch for micro_batch, _ in self.points]
        if not sizes or sizes[0] != 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"points must begin at micro-batch 1 and ascend, got {self.points}")

    def peak_bytes(self, micro_batch: int) -> int:
        """Raises ValueError beyond the largest micro-batch that was traced."""
        _check_micro_batch(micro_batch)
        highest = 0
        for size, peak in self.points:
            highest = max(highest, peak)
            if size >= micro_batch:
                return highest
        raise ValueError(f"traced up to micro-batch {self.points[-1][0]} only, asked for {micro_batch}")

    def largest_batch(self, capacity_bytes: int) -> int:
        largest = 0
        for size, peak in self.points:
            if peak > capacity_bytes:
                break
            largest = size
        return largest

    def to_json(self) -> dict[str, Any]:
        return {"kind": "table", "points": [list(point) for point in self.points]}


def curve_from_json(data: Mapping[str, Any]) -> PeakCurve:
    """Inverse of ``to_json`` of either curve; raises ValueError, KeyError or TypeError on anything else."""
    if data["kind"] == "envelope":
        lines = tuple(Line(int(slope), int(fixed)) for slope, fixed in data["lines"])
        return Envelope(lines, int(data["one_sample_bytes"]))
    if data["kind"] == "table":
        return PeakTable(tuple((int(size), int(peak)) for size, peak in data["points"]))
    raise ValueError(f"unknown kind of peak curve {data['kind']!r}")


def peak(log: EventLog) -> int:
    """Most bytes alive after any event of ``log``."""
    return int(_live_bytes(log).max(initial=0))


def fit(logs: Mapping[int, EventLog], floor_bytes: int, one_sample_bytes: int) -> Envelope | None:
    """The envelope of logs traced at micro-batches of 2 and more; None when they are not affine.

    Logs begin with what is alive before. ``floor_bytes`` is a peak outside of them that every micro-batch shares.
    2 and the largest give every event's line, so the curve is exact at both, and in between for affine sizes; any
    further log must lie on these lines event by event. Refused are events that do not align, sizes that would not be
    whole bytes in between (as after rounding up), that shrink as the micro-batch grows, or of which none grows: such
    a curve could not be trusted where it was not traced.
    """
    low, high = 2, max(logs)
    if not aligned(logs[low], logs[high]):
        return None
    at_low, at_high = _sizes(logs[low]), _sizes(logs[high])
    if np.any((at_high - at_low) % (high - low)) or np.any(at_high < at_low):
        return None
    slopes = (at_high - at_low) // (high - low)
    for micro_batch in set(logs) - {low, high}:
        expected = at_low + slopes * (micro_batch - low)
        if not aligned(logs[micro_batch], logs[low]) or np.any(_sizes(logs[micro_batch]) != expected):
            return None
    live_low, live_high = _live_bytes(logs[low]), _live_bytes(logs[high])
    live_slopes = (live_high - live_low) // (high - low)
    if live_slopes.max(initial=0) <= 0:
        return None
    intercepts = live_low - low * live_slopes
    lines = _hull(np.append(live_slopes, 0), np.append(intercepts, floor_bytes), start=low)
    return Envelope(lines, one_sample_bytes)


def aligned(first: EventLog, second: EventLog) -> bool:
    """Whether both logs allocate and free the same buffers in the same order, whatever their sizes."""
    return len(first) == len(second) and all(
        a[0] == b[0] and (a[1] == 0) == (b[1] == 0) for a, b in zip(first, second, strict=True)
    )


def _check_micro_batch(micro_batch: int) -> None:
    if micro_batch < 1:
        raise ValueError(f"a micro-batch has at least 1 sample, got {micro_batch}")


def _sizes(log: EventLog) -> npt.NDArray[np.int64]:
    return np.fromiter((size for _, size in log), dtype=np.int64, count=len(log))


def _live_bytes(log: EventLog) -> npt.NDArray[np.int64]:
    """Bytes alive after each event."""
    held: dict[int, int] = {}
    changes = np.empty(len(log), dtype=np.int64)
    for position, (buffer, size) in enumerate(log):
        changes[position] = size - held.get(buffer, 0)
        held[buffer] = size
    live: npt.NDArray[np.int64] = np.cumsum(changes)
    return live


def _hull(slopes: npt.NDArray[np.int64], intercepts: npt.NDArray[np.int64], start: int) -> tuple[Line, ...]:
    """The lines that are highest somewhere at or after ``start``, by rising slope.

    Python integers from here on: products of byte counts overflow 64 bits.
    """
    highest: dict[int, int] = {}
    for slope, intercept in zip(slopes.tolist(), intercepts.tolist(), strict=True):
        highest[slope] = max(intercept, highest.get(slope, intercept))
    hull: list[Line] = []
    for line in (Line(slope, highest[slope]) for slope in sorted(highest)):
        while hull and _hidden(hull, line, start):
            hull.pop()
        hull.append(line)
    return tuple(hull)


def _hidden(hull: list[Line], new: Line, start: int) -> bool:
    """Whether the last line of ``hull`` is nowhere above both the one before it and the steeper ``new`` one."""
    last = hull[-1]
    if new.at(start) >= last.at(start):
        return True
    if len(hull) < 2:
        return False
    before = hull[-2]
    # new crosses before no later than last does: x(before, new) ≤ x(before, last), cross-multiplied.
    return (before.fixed_bytes - new.fixed_bytes) * (last.bytes_per_sample - before.bytes_per_sample) <= (
        before.fixed_bytes - last.fixed_bytes
    ) * (new.bytes_per_sample - before.bytes_per_sample)
