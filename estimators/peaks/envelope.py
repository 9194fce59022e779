"""Peak memory as a function of the micro-batch, from event logs of a few traced ones: exact, in closed form.

With a fixed sequence of operations the size of every allocation is affine in the micro-batch B, so the bytes that
live after event t are a_t + b_t·B, and the peak is the upper hull of a few lines. ``fit`` refuses logs of which that
is not true, and then a ``PeakTable`` of directly traced micro-batches takes its place. Nothing is traced here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

# (buffer, bytes that it holds from now on); 0 when it is freed. Buffers are numbered in order of first allocation.
EventLog = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """fixed_bytes + bytes_per_sample · micro-batch.

    ``parts`` are (category, bytes per sample, fixed bytes) of what is alive at that moment; empty where nobody asked,
    else they add up to the line.
    """

    bytes_per_sample: int
    fixed_bytes: int
    parts: tuple[tuple[str, int, int], ...] = ()

    def at(self, micro_batch: int) -> int:
        return self.fixed_bytes + self.bytes_per_sample * micro_batch

    def parts_at(self, micro_batch: int) -> dict[str, int]:
        """Bytes by category."""
        return {category: fixed + slope * micro_batch for category, slope, fixed in self.parts}

    def plus(self, category: str, num_bytes: int) -> Line:
        """The line with ``num_bytes`` more that no batch changes."""
        parts = {name: (slope, fixed) for name, slope, fixed in self.parts}
        slope, fixed = parts.get(category, (0, 0))
        parts[category] = slope, fixed + num_bytes
        listed = tuple((name, *part) for name, part in parts.items())
        return Line(self.bytes_per_sample, self.fixed_bytes + num_bytes, listed)

    def to_json(self) -> list[Any]:
        return [self.bytes_per_sample, self.fixed_bytes, [list(part) for part in self.parts]]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Line:
        slope, fixed, parts = data
        return cls(int(slope), int(fixed), tuple((str(c), int(b), int(f)) for c, b, f in parts))


@dataclass(frozen=True, slots=True)
class Envelope:
    """The largest of ``lines`` for micro-batches of 2 and more; of one sample the traced peak itself.

    Operations on dimensions of size 1 skip copies, so the log of a single sample often follows other lines.
    """

    lines: tuple[Line, ...]
    one_sample: Line

    def __post_init__(self) -> None:
        if not any(line.bytes_per_sample > 0 for line in self.lines):
            raise ValueError(f"one line must grow with the micro-batch, or every batch would fit: {self.lines}")
        if any(line.bytes_per_sample < 0 for line in self.lines):
            raise ValueError(f"no line may fall with the micro-batch: {self.lines}")

    def peak_bytes(self, micro_batch: int) -> int:
        return self._highest(micro_batch).at(micro_batch)

    def parts(self, micro_batch: int) -> dict[str, int]:
        return self._highest(micro_batch).parts_at(micro_batch)

    def largest_batch(self, capacity_bytes: int) -> int:
        """min over lines of ⌊(C − a)/b⌋, as every line must stay within C."""
        largest = self._largest_on_lines(capacity_bytes)
        if largest >= 2:
            return largest
        return 1 if self.one_sample.at(1) <= capacity_bytes else 0

    def _highest(self, micro_batch: int) -> Line:
        _check_micro_batch(micro_batch)
        if micro_batch == 1:
            return self.one_sample
        return max(self.lines, key=lambda line: line.at(micro_batch))

    def _largest_on_lines(self, capacity_bytes: int) -> int:
        if any(line.fixed_bytes > capacity_bytes for line in self.lines if line.bytes_per_sample == 0):
            return 0
        growing = [line for line in self.lines if line.bytes_per_sample > 0]
        return min((capacity_bytes - line.fixed_bytes) // line.bytes_per_sample for line in growing)

    def to_json(self) -> dict[str, Any]:
        lines = [line.to_json() for line in self.lines]
        return {"kind": "envelope", "lines": lines, "one_sample": self.one_sample.to_json()}


@dataclass(frozen=True, slots=True)
class PeakTable:
    """Traced peaks of single micro-batches, for a model whose logs are not affine.

    Between two of them the larger counts (never less than any smaller one), and beyond the last nothing is known.
    """

    points: tuple[tuple[int, Line], ...]  # (micro-batch, its peak: a line without a slope), ascending

    def __post_init__(self) -> None:
        sizes = [micro_batch for micro_batch, _ in self.points]
        if not sizes or sizes[0] != 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"points must begin at micro-batch 1 and ascend, got {self.points}")

    def peak_bytes(self, micro_batch: int) -> int:
        """Raises ValueError beyond the largest micro-batch that was traced."""
        return self._highest(micro_batch).fixed_bytes

    def parts(self, micro_batch: int) -> dict[str, int]:
        """Raises ValueError beyond the largest micro-batch that was traced."""
        return self._highest(micro_batch).parts_at(micro_batch)

    def _highest(self, micro_batch: int) -> Line:
        _check_micro_batch(micro_batch)
        highest = self.points[0][1]
        for size, peak in self.points:
            highest = max(highest, peak, key=lambda line: line.fixed_bytes)
            if size >= micro_batch:
                return highest
        raise ValueError(f"traced up to micro-batch {self.points[-1][0]} only, asked for {micro_batch}")

    def largest_batch(self, capacity_bytes: int) -> int:
        largest = 0
        for size, peak in self.points:
            if peak.fixed_bytes > capacity_bytes:
                break
            largest = size
        return largest

    def to_json(self) -> dict[str, Any]:
        return {"kind": "table", "points": [[size, peak.to_json()] for size, peak in self.points]}


def curve_from_json(data: Mapping[str, Any]) -> Envelope | PeakTable:
    """Inverse of ``to_json`` of either curve; raises ValueError, KeyError or TypeError on anything else."""
    if data["kind"] == "envelope":
        return Envelope(tuple(map(Line.from_json, data["lines"])), Line.from_json(data["one_sample"]))
    if data["kind"] == "table":
        return PeakTable(tuple((int(size), Line.from_json(peak)) for size, peak in data["points"]))
    raise ValueError(f"unknown kind of peak curve {data['kind']!r}")


def highest(log: EventLog, categories: Sequence[str] = ()) -> Line:
    """The moment at which most bytes are alive, as a line without a slope. ``categories`` are those of the buffers."""
    live = live_bytes(log)
    if not len(live):
        return Line(0, 0)
    event = int(live.argmax())
    parts = _parts(log, categories, event)
    return Line(0, int(live[event]), tuple((name, 0, size) for name, size in sorted(parts.items())))


def fit(logs: Mapping[int, EventLog], floor: Line, one_sample: Line, categories: Sequence[str] = ()) -> Envelope | None:
    """The envelope of logs traced at micro-batches of 2 and more; None when they are not affine.

    Logs begin with what is alive before. ``floor`` is a peak outside of them that every micro-batch shares.
    2 and the largest give every event's line, so the curve is exact at both, and in between for affine sizes; any
    further log must lie on these lines event by event. Refused are events that do not align, sizes that would not be
    whole bytes in between (as after rounding up), that shrink as the micro-batch grows, or of which none grows: such
    a curve could not be trusted where it was not traced.
    """
    low, high = 2, max(logs)
    if not aligned(logs[low], logs[high]):
        return None
    size_low, size_high = _sizes(logs[low]), _sizes(logs[high])
    if np.any((size_high - size_low) % (high - low)) or np.any(size_high < size_low):
        return None
    slopes = (size_high - size_low) // (high - low)
    for micro_batch in set(logs) - {low, high}:
        expected = size_low + slopes * (micro_batch - low)
        if not aligned(logs[micro_batch], logs[low]) or np.any(_sizes(logs[micro_batch]) != expected):
            return None
    live_low, live_high = live_bytes(logs[low]), live_bytes(logs[high])
    live_slopes = (live_high - live_low) // (high - low)
    if live_slopes.max(initial=0) <= 0:
        return None

    events: dict[Line, int] = {}
    for event, (slope, live) in enumerate(zip(live_slopes.tolist(), live_low.tolist(), strict=True)):
        events.setdefault(Line(slope, live - low * slope), event)

    def with_parts(line: Line) -> Line:
        at_low, at_high = (_parts(logs[size], categories, events[line]) for size in (low, high))
        slopes = {name: (at_high[name] - at_low[name]) // (high - low) for name in sorted(at_low)}
        return replace(line, parts=tuple((name, s, at_low[name] - low * s) for name, s in slopes.items()))

    hull = _hull([*events, floor], start=low)
    return Envelope(tuple(line if line == floor else with_parts(line) for line in hull), one_sample)


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


def live_bytes(log: EventLog) -> npt.NDArray[np.int64]:
    """Bytes alive after each event."""
    held: dict[int, int] = {}
    changes = np.empty(len(log), dtype=np.int64)
    for position, (buffer, size) in enumerate(log):
        changes[position] = size - held.get(buffer, 0)
        held[buffer] = size
    live: npt.NDArray[np.int64] = np.cumsum(changes)
    return live


def _parts(log: EventLog, categories: Sequence[str], event: int) -> dict[str, int]:
    """Bytes alive after ``event``, by category."""
    if not categories:
        return {}
    held = dict(log[: event + 1])
    parts = dict.fromkeys(categories, 0)
    for buffer, size in held.items():
        parts[categories[buffer]] += size
    return parts


def _hull(lines: Sequence[Line], start: int) -> tuple[Line, ...]:
    """The lines that are highest somewhere at or after ``start``, by rising slope.

    Python integers here: products of byte counts overflow 64 bits.
    """
    highest: dict[int, Line] = {}
    for line in lines:
        highest[line.bytes_per_sample] = max(line, highest.get(line.bytes_per_sample, line))
    hull: list[Line] = []
    for line in (highest[slope] for slope in sorted(highest)):
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
