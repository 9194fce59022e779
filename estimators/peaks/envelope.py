"""Peak memory as a function of the micro-batch, from event logs of a few traced ones: exact, in closed form.

With a fixed sequence of operations the size of every tensor is affine in the micro-batch B. So the bytes alive after
event t are a_t + b_t·B, and the peak is the upper hull of a few lines. Kernels choose other sizes for what they hold
while they run: a line above these will do unless they decide the peak. ``fit_envelope`` refuses logs for which this is
not true; a ``PeakTable`` of traced micro-batches is used for them instead. Nothing is traced here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

# (buffer, bytes that it holds from now on: 0 when it is freed). Buffers are numbered in order of first allocation.
EventLog = Sequence[tuple[int, int]]
_Numbers = npt.NDArray[np.int64]

WORKSPACE = "workspace"
"""Category of memory that an operation holds only while it runs."""
_MOST_OVER = 1000
"""A hull may lie above a traced peak by this part of it: a thousandth."""


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

    def plus_share(self, category: str, percent: int) -> Line:
        """The line with this part of it more in ``category``, rounded up."""
        slope, fixed = (-(-num_bytes * percent // 100) for num_bytes in (self.bytes_per_sample, self.fixed_bytes))
        parts = (*self.parts, (category, slope, fixed)) if self.parts else ()
        return Line(self.bytes_per_sample + slope, self.fixed_bytes + fixed, parts)


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

    def plus_share(self, category: str, percent: int) -> Envelope:
        """The envelope with ``percent`` of it more in ``category``."""
        if not percent:
            return self
        lines = tuple(line.plus_share(category, percent) for line in self.lines)
        return Envelope(lines, self.one_sample.plus_share(category, percent))

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
    """Traced peaks of some micro-batches, for a model whose peaks lie on no lines.

    A micro-batch between two traced ones gets the highest peak up to the larger of them. If the table ``is_convex``, it
    gets the peak on the line between them: where all tensors are affine and only workspaces are not, the peak is the
    highest of many lines, which lies nowhere above. Beyond the largest traced micro-batch nothing is known.
    """

    points: tuple[tuple[int, Line], ...]  # (micro-batch, its peak: a line without a slope), ascending
    is_convex: bool = False

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
        points = tuple((size, peak.plus(category, num_bytes) if num_bytes else peak) for size, peak in self.points)
        return replace(self, points=points)

    def plus_share(self, category: str, percent: int) -> PeakTable:
        """The table with ``percent`` of each peak more in ``category``."""
        if not percent:
            return self
        return replace(self, points=tuple((size, peak.plus_share(category, percent)) for size, peak in self.points))

    def _highest(self, micro_batch: int) -> Line:
        _check_micro_batch(micro_batch)
        lower, highest = self.points[0], self.points[0][1]
        for size, peak in self.points:
            if size == micro_batch:
                return peak
            highest = max(highest, peak, key=lambda line: line.fixed_bytes)
            if size > micro_batch:
                return _between(lower, (size, peak), micro_batch) if self._joins(lower) else highest
            lower = size, peak
        raise ValueError(f"micro_batch must be at most {self.points[-1][0]}, the largest traced, got {micro_batch}")

    def _joins(self, lower: tuple[int, Line]) -> bool:
        """Whether the micro-batches from this point to the next one lie on a line; a single sample is on no line."""
        return self.is_convex and lower[0] > 1

    def largest_batch(self, capacity_bytes: int) -> int:
        """Largest known micro-batch that, like all smaller ones, is within ``capacity_bytes``; 0 if there is none."""
        largest, lower = 0, (0, Line(0, 0))
        for size, peak in self.points:
            if peak.fixed_bytes > capacity_bytes:
                if self._joins(lower):
                    room, rise = capacity_bytes - lower[1].fixed_bytes, peak.fixed_bytes - lower[1].fixed_bytes
                    largest += room * (size - lower[0]) // rise
                break
            largest, lower = size, (size, peak)
        return largest

    def is_followed(self, micro_batch: int) -> bool:
        """Whether the peak of the next micro-batch is known, so that one that fits can be known to be the largest."""
        return any(
            size == micro_batch + 1 or (self._joins((micro_batch, peak)) and size > micro_batch)
            for size, peak in self.points
        )


def _between(lower: tuple[int, Line], upper: tuple[int, Line], micro_batch: int) -> Line:
    """The peak of a micro-batch on the line between two points."""
    (low, few), (high, many) = lower, upper
    before, after = few.parts_at(0) or {"": few.fixed_bytes}, many.parts_at(0) or {"": many.fixed_bytes}
    parts = {
        name: before.get(name, 0) - (before.get(name, 0) - after.get(name, 0)) * (micro_batch - low) // (high - low)
        for name in {**before, **after}
    }
    return Line(0, sum(parts.values()), tuple((name, 0, size) for name, size in parts.items() if name))


def constant_peak(log: EventLog, categories: Sequence[str] = ()) -> Line:
    """Peak bytes of a log as a line without a slope. ``categories`` has the category of each buffer, by its number."""
    live = live_bytes(log)
    if not len(live):
        return Line(0, 0)
    event = int(live.argmax())
    parts = _parts(log, categories, event)
    return Line(0, int(live[event]), tuple((name, 0, size) for name, size in sorted(parts.items())))


def fit_envelope(
    logs: Mapping[int, EventLog],
    floor: Line,
    one_sample: Line,
    categories: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> Envelope | None:
    """The envelope of logs traced at micro-batches of 2 and more; None if there is none.

    Each log begins with the buffers that are alive before. ``floor`` is a peak outside of the logs that is the same for
    every micro-batch. ``categories`` has those of each log's buffers. The logs of 2 samples and of the largest
    micro-batch give the line of every event, so for affine sizes the curve is exact. Workspaces have lines that lie
    nowhere below them. Without workspaces, logs are refused if their events do not align, if a size lies on no line or
    shrinks as the micro-batch grows, or if nothing grows; and with them, if the curve is over a traced peak by more
    than a thousandth. Such a curve cannot be trusted where it was not traced.
    """
    low, seen = min(logs), _moments(logs, categories)
    if seen is None:
        return None
    sizes, is_affine = _upper_lines({size: moments.sizes for size, moments in seen.items()})
    beside, _ = _upper_lines({size: moments.beside for size, moments in seen.items()})
    if not is_affine:
        return None
    buffers = [buffer for buffer, _ in seen[low].events]
    slopes, fixed = (_alive(buffers, part.tolist()) + more for part, more in zip(sizes, beside, strict=True))
    if slopes.max(initial=0) <= 0:
        return None
    for micro_batch, moments in seen.items():
        amounts = moments.live, slopes * micro_batch + fixed
        peak, most = (max(int(live.max()), floor.at(micro_batch)) for live in amounts)
        if most > peak + peak // _MOST_OVER:
            return None

    events: dict[Line, int] = {}
    for event, (slope, constant) in enumerate(zip(slopes.tolist(), fixed.tolist(), strict=True)):
        events.setdefault(Line(slope, constant), event)

    def with_parts(line: Line) -> Line:
        if not (names := categories.get(low, ())):
            return line
        event = events[line]
        last = {buffer: place for place, (buffer, _) in enumerate(seen[low].events[: event + 1])}
        lines = [(names[buffer], sizes[0][place], sizes[1][place]) for buffer, place in last.items()]
        parts = dict.fromkeys(sorted(names), (0, 0))
        for name, slope, constant in [*lines, (WORKSPACE, beside[0][event], beside[1][event])]:
            if slope or constant:
                so_far = parts.get(name, (0, 0))
                parts[name] = so_far[0] + int(slope), so_far[1] + int(constant)
        return replace(line, parts=tuple((name, *part) for name, part in parts.items()))

    hull = _hull([*events, floor], start=low)
    return Envelope(tuple(line if line == floor else with_parts(line) for line in hull), one_sample)


def follow_lines(
    logs: Mapping[int, EventLog], categories: Mapping[int, Sequence[str]], *, tensors: bool = False
) -> bool:
    """Whether all events of these logs align and all sizes are affine, those of workspaces too unless ``tensors``."""
    seen = _moments(logs, categories)
    return seen is not None and all(
        _upper_lines({size: getattr(moments, name) for size, moments in seen.items()})[1]
        for name in ("sizes", *([] if tensors else ["beside"]))
    )


def event_lines(
    logs: Mapping[int, EventLog], categories: Mapping[int, Sequence[str]]
) -> tuple[EventLog, Sequence[tuple[int, int]]]:
    """The events of the smallest of these logs, which ``fit_envelope`` takes, without workspaces, and the line of each:
    its fixed bytes and its bytes for each sample."""
    seen = _moments(logs, categories)
    assert seen is not None, "the logs have an envelope"
    (slopes, fixed), _ = _upper_lines({size: moments.sizes for size, moments in seen.items()})
    return seen[min(seen)].events, list(zip(fixed.tolist(), slopes.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _Moments:
    """The events of a log that are no workspaces, and the most bytes of workspaces until the next one, ``beside``."""

    events: EventLog
    beside: _Numbers

    @property
    def sizes(self) -> _Numbers:
        return np.fromiter((size for _, size in self.events), dtype=np.int64, count=len(self.events))

    @property
    def live(self) -> _Numbers:
        """Bytes alive at most after each event, until the next one."""
        return live_bytes(self.events) + self.beside


def _moments(logs: Mapping[int, EventLog], categories: Mapping[int, Sequence[str]]) -> dict[int, _Moments] | None:
    """The moments of each log; None if they do not align."""
    seen = {size: _moments_of(log, categories.get(size, ())) for size, log in logs.items()}
    first, *others = (_renumbered(moments.events) for moments in seen.values())
    return seen if all(aligned(first, other) for other in others) else None


def _moments_of(log: EventLog, categories: Sequence[str]) -> _Moments:
    events: list[tuple[int, int]] = []
    beside: list[int] = []
    held: dict[int, int] = {}
    for buffer, size in log:
        if categories and categories[buffer] == WORKSPACE:
            held[buffer] = size
            beside[-1] = max(beside[-1], sum(held.values()))
            if not size:
                del held[buffer]
        else:
            events.append((buffer, size))
            beside.append(sum(held.values()))
    return _Moments(events, np.array(beside, dtype=np.int64))


def _renumbered(events: EventLog) -> EventLog:
    """The events with buffers numbered in order of their first one."""
    numbers: dict[int, int] = {}
    return [(numbers.setdefault(buffer, len(numbers)), size) for buffer, size in events]


def _upper_lines(values: Mapping[int, _Numbers]) -> tuple[tuple[_Numbers, _Numbers], bool]:
    """Lines that lie nowhere below ``values``, by micro-batch, and whether all values lie on them.

    They are given by their slopes, which are no less than 0, and by what is fixed.
    """
    low, high = min(values), max(values)
    slopes = np.maximum(-((values[low] - values[high]) // (high - low)), 0)
    fixed = np.max([amounts - slopes * size for size, amounts in values.items()], axis=0)
    return (slopes, fixed), all(np.all(slopes * size + fixed == amounts) for size, amounts in values.items())


def aligned(first: EventLog, second: EventLog) -> bool:
    """Whether both logs allocate and free the same buffers in the same order, whatever their sizes."""
    return len(first) == len(second) and all(
        a[0] == b[0] and (a[1] == 0) == (b[1] == 0) for a, b in zip(first, second, strict=True)
    )


def _check_micro_batch(micro_batch: int) -> None:
    if micro_batch < 1:
        raise ValueError(f"micro_batch must be at least 1, got {micro_batch}")


def live_bytes(log: EventLog) -> _Numbers:
    """Bytes alive after each event."""
    return _alive([buffer for buffer, _ in log], [size for _, size in log])


def _alive(buffers: Sequence[int], values: Iterable[int]) -> _Numbers:
    """The sum of the latest values of all buffers, after each event."""
    held: dict[int, int] = {}
    changes = np.empty(len(buffers), dtype=np.int64)
    for position, (buffer, value) in enumerate(zip(buffers, values, strict=True)):
        changes[position] = value - held.get(buffer, 0)
        held[buffer] = value
    live: _Numbers = np.cumsum(changes)
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
