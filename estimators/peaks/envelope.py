"""Peak memory as a function of the micro-batch, from event logs of a few traced ones: exact, in closed form.

With a fixed sequence of operations the size of every allocation is affine in the micro-batch B. So the bytes alive
after event t are a_t + b_t·B, and the peak is the upper hull of a few lines. ``fit_envelope`` refuses logs for which
this is not true; a ``PeakTable`` of directly traced micro-batches is used for them instead. Nothing is traced here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

# (buffer, bytes that it holds from now on: 0 when it is freed). Buffers are numbered in order of first allocation.
EventLog = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """fixed_bytes + bytes_per_sample · micro-batch.

    ``parts`` are (category, bytes per sample, fixed bytes) of the memory alive at that moment. They add up to the line,
    or are empty if the categories are not known.
    """

    bytes_per_sample: int
    fixed_bytes: int
    parts: tuple[tuple[str, int, int], ...] = ()

    def at(self, micro_batch: int) -> int:
        """Bytes at this micro-batch."""
        return self.fixed_bytes + self.bytes_per_sample * micro_batch

    def parts_at(self, micro_batch: int) -> dict[str, int]:
        """Bytes by category at this micro-batch."""
        return {category: fixed + slope * micro_batch for category, slope, fixed in self.parts}

    def plus(self, category: str, num_bytes: int) -> Line:
        """The line with ``num_bytes`` more in ``category``, whatever the micro-batch."""
        parts = {name: (slope, fixed) for name, slope, fixed in self.parts}
        slope, fixed = parts.get(category, (0, 0))
        parts[category] = slope, fixed + num_bytes
        listed = tuple((name, *part) for name, part in parts.items())
        return Line(self.bytes_per_sample, self.fixed_bytes + num_bytes, listed)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The highest of ``lines`` for micro-batches of 2 and more; for a single sample, its traced peak.

    Operations on dimensions of size 1 skip copies, so the log of a single sample often lies on other lines.
    """

    lines: tuple[Line, ...]
    one_sample: Line

    def __post_init__(self) -> None:
        if not any(line.bytes_per_sample > 0 for line in self.lines):
            raise ValueError(f"one line must grow with the micro-batch, or every batch would fit: {self.lines}")
        if any(line.bytes_per_sample < 0 for line in self.lines):
            raise ValueError(f"no line may fall with the micro-batch: {self.lines}")

    def peak_bytes(self, micro_batch: int) -> int:
        """Peak bytes at this micro-batch; raises ValueError below 1."""
        return self._highest(micro_batch).at(micro_batch)

    def parts(self, micro_batch: int) -> dict[str, int]:
        """Bytes of the peak by category; raises ValueError below 1."""
        return self._highest(micro_batch).parts_at(micro_batch)

    def largest_batch(self, capacity_bytes: int) -> int:
        """Largest micro-batch within the capacity C, or 0: min over the lines of ⌊(C − a)/b⌋, as each must stay within
        C."""
        largest = self._largest_on_lines(capacity_bytes)
        if largest >= 2:
            return largest
        return 1 if self.one_sample.at(1) <= capacity_bytes else 0

    def plus(self, category: str, num_bytes: int) -> Envelope:
        """The envelope with ``num_bytes`` more in ``category``, whatever the micro-batch."""
        if not num_bytes:
            return self
        lines = tuple(line.plus(category, num_bytes) for line in self.lines)
        return Envelope(lines, self.one_sample.plus(category, num_bytes))

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


@dataclass(frozen=True, slots=True)
class PeakTable:
    """Traced peaks of a few micro-batches, for a model whose logs are not affine.

    A micro-batch between two traced ones gets the highest peak up to the larger of them. Beyond the largest traced
    micro-batch nothing is known.
    """

    points: tuple[tuple[int, Line], ...]  # (micro-batch, its peak: a line without a slope), ascending

    def __post_init__(self) -> None:
        sizes = [micro_batch for micro_batch, _ in self.points]
        if not sizes or sizes[0] != 1 or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"points must begin at micro-batch 1 and ascend, got {self.points}")

    def peak_bytes(self, micro_batch: int) -> int:
        """Peak bytes at this micro-batch; raises ValueError below 1 and beyond the largest micro-batch traced."""
        return self._highest(micro_batch).fixed_bytes

    def parts(self, micro_batch: int) -> dict[str, int]:
        """Bytes of the peak by category; raises ValueError below 1 and beyond the largest micro-batch traced."""
        return self._highest(micro_batch).parts_at(micro_batch)

    def plus(self, category: str, num_bytes: int) -> PeakTable:
        """The table with ``num_bytes`` more in ``category`` at every micro-batch."""
        return PeakTable(
            tuple((size, peak.plus(category, num_bytes) if num_bytes else peak) for size, peak in self.points)
        )

    def _highest(self, micro_batch: int) -> Line:
        _check_micro_batch(micro_batch)
        highest = self.points[0][1]
        for size, peak in self.points:
            highest = max(highest, peak, key=lambda line: line.fixed_bytes)
            if size >= micro_batch:
                return highest
        raise ValueError(f"micro_batch must be at most {self.points[-1][0]}, the largest traced, got {micro_batch}")

    def largest_batch(self, capacity_bytes: int) -> int:
        """Largest traced micro-batch that, like all smaller ones, is within ``capacity_bytes``; 0 if there is none."""
        largest = 0
        for size, peak in self.points:
            if peak.fixed_bytes > capacity_bytes:
                break
            largest = size
        return largest

    def is_followed(self, micro_batch: int) -> bool:
        """Whether the next micro-batch was traced as well, so that one that fits can be known to be the largest."""
        return any(size == micro_batch + 1 for size, _ in self.points)


def constant_peak(log: EventLog, categories: Sequence[str] = ()) -> Line:
    """Peak bytes of a log as a line without a slope. ``categories`` has the category of each buffer, by its number."""
    live = live_bytes(log)
    if not len(live):
        return Line(0, 0)
    event = int(live.argmax())
    parts = _parts(log, categories, event)
    return Line(0, int(live[event]), tuple((name, 0, size) for name, size in sorted(parts.items())))


def fit_envelope(
    logs: Mapping[int, EventLog], floor: Line, one_sample: Line, categories: Sequence[str] = ()
) -> Envelope | None:
    """The envelope of logs traced at micro-batches of 2 and more; None if they are not affine.

    Each log begins with the buffers that are alive before. ``floor`` is a peak outside of the logs that is the same for
    every micro-batch. The logs of 2 samples and of the largest micro-batch give the line of every event, so the curve
    is exact at both and, for affine sizes, between them. Every other log must lie on these lines, event by event. Logs
    are refused if their events do not align, if a size would not be whole bytes in between (as after rounding up), if a
    size shrinks as the micro-batch grows, or if nothing grows: such a curve cannot be trusted where it was not traced.
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
        raise ValueError(f"micro_batch must be at least 1, got {micro_batch}")


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

    Computed with Python integers, because products of byte counts overflow 64 bits.
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
