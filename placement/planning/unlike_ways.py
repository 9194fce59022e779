"""Chooses a way for each unit of a model on the same ranks, so that early layers may be divided unlike late ones.

Each way says which layout of its input it needs and which layout of its output it leaves, and the same of gradients in
the backward pass. Where neighbours differ, the tensor is converted (``layouts``). A dynamic program over the units
keeps, for each layout that the last unit leaves, the choices that are not slower and larger than another one. What a
unit holds only while it runs is not added up, so every limit of it is tried; a bound without memory leaves most out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from placement.planning.layouts import Conversion, Conversions, Tensor, TensorLayout
from placement.planning.ways import Amounts

_Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Flow:
    """Layouts of the input that a unit needs, of the output that it leaves, and of both gradients.

    ``gradient_needs`` is the layout of the gradient of the output, ``gradient_leaves`` that of the input.
    """

    needs: TensorLayout
    leaves: TensorLayout
    gradient_needs: TensorLayout
    gradient_leaves: TensorLayout


@dataclass(frozen=True, slots=True)
class UnitWay:
    """One way to compute a unit, and what it costs a rank for each micro-batch, its own collectives included.

    ``kept_bytes`` are held for each micro-batch in flight, ``state_bytes`` always, and ``working_bytes`` only while the
    unit runs. ``once_seconds`` pass once in a step.
    """

    name: str
    flow: Flow
    forward_seconds: float
    backward_seconds: float
    state_bytes: float = 0.0
    kept_bytes: float = 0.0
    working_bytes: float = 0.0
    once_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UnitWays:
    """The ways to compute one unit, which has this ``output``."""

    output: Tensor
    ways: tuple[UnitWay, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A way for each unit, by its place among those of the unit, and what a rank then needs for a step.

    ``conversions`` has, for each unit but the last, those of its output and of the gradient of its output.
    """

    places: tuple[int, ...]
    forward_seconds: float
    backward_seconds: float
    once_seconds: float
    peak_bytes: float
    conversions: tuple[tuple[Conversion, Conversion], ...]

    def seconds(self, num_micro_batches: int) -> float:
        """Seconds of a step without a pipeline."""
        return num_micro_batches * (self.forward_seconds + self.backward_seconds) + self.once_seconds


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a rank. Bytes are counted in units of ``step_bytes``, rounded up: with 1 the choice is exact."""

    capacity_bytes: float
    in_flight: int = 1
    step_bytes: int = 1


def choose(
    units: Sequence[UnitWays],
    conversions: Conversions,
    room: Room,
    *,
    num_micro_batches: int = 1,
    below_seconds: float = inf,
) -> Choice | None:
    """The ways with the fastest step that fit; None if there are none, or none faster than ``below_seconds``."""
    question = _Question(units, conversions, room, num_micro_batches)
    best, places = below_seconds, None
    for bound, limit in sorted((question.bound(limit), limit) for limit in question.limits()):
        if bound >= best:
            break
        found = question.fastest(limit, best)
        if found is not None:
            best, places = found
    return priced(units, conversions, room, places) if places is not None else None


def priced(units: Sequence[UnitWays], conversions: Conversions, room: Room, places: Sequence[int]) -> Choice:
    """What these ways cost together."""
    ways = [unit.ways[place] for unit, place in zip(units, places, strict=True)]
    pairs = list(zip(units, ways, ways[1:], strict=False))
    between = tuple(_between(conversions, unit.output, one.flow, other.flow) for unit, one, other in pairs)
    held = sum(way.state_bytes + room.in_flight * way.kept_bytes for way in ways)
    return Choice(
        tuple(places),
        sum(way.forward_seconds for way in ways) + sum(ahead.seconds for ahead, _ in between),
        sum(way.backward_seconds for way in ways) + sum(back.seconds for _, back in between),
        sum(way.once_seconds for way in ways),
        held + max(way.working_bytes for way in ways),
        between,
    )


def _between(conversions: Conversions, tensor: Tensor, one: Flow, other: Flow) -> tuple[Conversion, Conversion]:
    ahead = conversions.between(tensor, one.leaves, other.needs)
    return ahead, conversions.between(tensor, other.gradient_leaves, one.gradient_needs)


@dataclass(frozen=True, slots=True)
class _Labels:
    """Choices so far of which none is slower and larger than another, the smallest first.

    ``sources`` and ``before`` say which list of earlier choices each continues, and which of that list.
    """

    sizes: _Places
    seconds: Amounts
    sources: _Places
    before: _Places

    def extended(self, size: int, seconds: float, source: int) -> _Labels:
        """The same choices with more, which remember their places here."""
        every = np.arange(len(self.sizes))
        return _Labels(self.sizes + size, self.seconds + seconds, np.full_like(every, source), every)


_START = _Labels(np.zeros(1, np.int64), np.zeros(1), np.full(1, -1), np.full(1, -1))


def _merged(many: Sequence[_Labels], most: float, below: float) -> _Labels:
    """Those of ``most`` size and ``below`` seconds that no other one is as small and as fast as."""
    names = ("sizes", "seconds", "sources", "before")
    sizes, seconds, sources, before = (np.concatenate([getattr(one, name) for one in many]) for name in names)
    order = np.lexsort((seconds, sizes))
    fastest = np.minimum.accumulate(np.concatenate([[inf], seconds[order]]))[:-1]
    kept = order[(seconds[order] < fastest) & (sizes[order] <= most) & (seconds[order] < below)]
    return _Labels(sizes[kept], seconds[kept], sources[kept], before[kept])


class _Unit:
    """Ways of one unit in numbers. Ways with equal layouts at their start, or at their end, share a number."""

    def __init__(self, unit: UnitWays, room: Room, num_micro_batches: int) -> None:
        self.output, step = unit.output, room.step_bytes
        flows = [way.flow for way in unit.ways]
        self.starts = list(dict.fromkeys((flow.needs, flow.gradient_leaves) for flow in flows))
        self.ends = list(dict.fromkeys((flow.leaves, flow.gradient_needs) for flow in flows))
        self.start_of = [self.starts.index((flow.needs, flow.gradient_leaves)) for flow in flows]
        self.end_of = [self.ends.index((flow.leaves, flow.gradient_needs)) for flow in flows]
        self.seconds = [
            num_micro_batches * (way.forward_seconds + way.backward_seconds) + way.once_seconds for way in unit.ways
        ]
        self.sizes = [ceil((way.state_bytes + room.in_flight * way.kept_bytes) / step) for way in unit.ways]
        self.working = [ceil(way.working_bytes / step) for way in unit.ways]
        self._allowed: dict[int, list[int]] = {}

    def allowed(self, limit: int) -> list[int]:
        """The ways that work within the limit, except those that are slower and larger than another one."""
        if limit not in self._allowed:
            self._allowed[limit] = list(self._undominated(limit))
        return self._allowed[limit]

    def _undominated(self, limit: int) -> Iterator[int]:
        smallest: dict[tuple[int, int], int] = {}
        every = (place for place, working in enumerate(self.working) if working <= limit)
        for place in sorted(every, key=lambda place: (self.seconds[place], self.sizes[place])):
            layouts = self.start_of[place], self.end_of[place]
            if layouts not in smallest or self.sizes[place] < smallest[layouts]:
                smallest[layouts] = self.sizes[place]
                yield place


class _Question:
    """All that is asked, in numbers."""

    def __init__(self, units: Sequence[UnitWays], conversions: Conversions, room: Room, num_micro_batches: int) -> None:
        made: dict[int, _Unit] = {}
        for unit in units:
            if id(unit) not in made:
                made[id(unit)] = _Unit(unit, room, num_micro_batches)
        self._units = [made[id(unit)] for unit in units]
        self._capacity = int(room.capacity_bytes // room.step_bytes)
        self._edges = [
            num_micro_batches * self._waits(before, unit, conversions)
            for before, unit in zip(self._units, self._units[1:], strict=False)
        ]

    def limits(self) -> list[int]:
        """Sizes that the unit which works with most may have."""
        least = max(min(unit.working) for unit in self._units)
        every = {size for unit in self._units for size in unit.working}
        return sorted(size for size in every if least <= size <= self._capacity)

    def bound(self, limit: int) -> float:
        """Seconds of the fastest ways that work within the limit, whatever they hold."""
        return float(self._behind(limit)[0][0].min())

    def fastest(self, limit: int, below: float) -> tuple[float, list[int]] | None:
        """The fastest ways that fit, by their places; None if none is faster than ``below``."""
        seconds_behind, sizes_behind = self._behind(limit)
        room = self._capacity - limit
        at_ends, history = [_START], []
        for number, unit in enumerate(self._units):
            edges = self._edges[number - 1] if number else np.zeros((1, len(unit.starts)))
            allowed = unit.allowed(limit)
            at_starts = [
                _merged([one.extended(0, edges[end, start], end) for end, one in enumerate(at_ends)], room, below)
                for start in range(len(unit.starts))
            ]
            at_ends = []
            for end in range(len(unit.ends)):
                ways = [place for place in allowed if unit.end_of[place] == end]
                many = [
                    at_starts[unit.start_of[place]].extended(unit.sizes[place], unit.seconds[place], place)
                    for place in ways
                ]
                most = room - sizes_behind[number + 1]
                left = below - self._after(number, end, seconds_behind[number + 1 : number + 2])
                at_ends.append(_merged(many or [_none()], most, left))
            history.append((at_starts, at_ends))
        return self._traced_back(history)

    def _traced_back(self, history: Sequence[tuple[list[_Labels], list[_Labels]]]) -> tuple[float, list[int]] | None:
        last = history[-1][1]
        found = [(float(one.seconds[-1]), end) for end, one in enumerate(last) if len(one.seconds)]
        if not found:
            return None
        best, end = min(found)
        place, ways = len(last[end].seconds) - 1, []
        for unit, (at_starts, at_ends) in zip(reversed(self._units), reversed(history), strict=True):
            way, place = int(at_ends[end].sources[place]), int(at_ends[end].before[place])
            ways.append(way)
            labels = at_starts[unit.start_of[way]]
            end, place = int(labels.sources[place]), int(labels.before[place])
        return best, ways[::-1]

    def _behind(self, limit: int) -> tuple[list[Amounts], list[int]]:
        """Least seconds from each unit to the last one, by the layouts at its start; and least sizes."""
        seconds: list[Amounts] = []
        sizes = [0]
        for number in range(len(self._units) - 1, -1, -1):
            unit = self._units[number]
            allowed = unit.allowed(limit)
            after = [self._after(number, end, seconds[-1:]) for end in range(len(unit.ends))]
            least = np.full(len(unit.starts), inf)
            for place in allowed:
                start = unit.start_of[place]
                least[start] = min(least[start], unit.seconds[place] + after[unit.end_of[place]])
            seconds.append(least)
            sizes.append(sizes[-1] + min(unit.sizes[place] for place in allowed))
        return seconds[::-1], sizes[::-1]

    def _after(self, number: int, end: int, behind: Sequence[Amounts]) -> float:
        """Least seconds after a unit that ends in these layouts; ``behind`` has those of the next unit, if any."""
        return float((self._edges[number][end] + behind[0]).min()) if behind else 0.0

    @staticmethod
    def _waits(before: _Unit, unit: _Unit, conversions: Conversions) -> Amounts:
        rows = []
        for leaves, gradient_needs in before.ends:
            pairs = [
                (
                    conversions.between(before.output, leaves, needs),
                    conversions.between(before.output, gradient_leaves, gradient_needs),
                )
                for needs, gradient_leaves in unit.starts
            ]
            rows.append([ahead.seconds + back.seconds for ahead, back in pairs])
        return np.array(rows)


def _none() -> _Labels:
    return _Labels(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
