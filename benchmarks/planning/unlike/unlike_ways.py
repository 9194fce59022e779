"""Chooses a way for each unit of a model on the same ranks, so that early layers may be divided unlike late ones.

Each way says which layout of its input it needs and which layout of its output it leaves, and the same of gradients in
the backward pass. Where neighbours differ, the tensor is converted (``layouts``). A dynamic program over the units
keeps, for each layout that the last unit leaves, the choices that are not slower and larger than another one. What a
unit holds only while it runs is not added up, so every limit of it is tried.

Most choices are left out by a bound: if memory has a price in seconds for each byte, the cheapest choice is found
without counting bytes, and no choice that fits is faster than its seconds plus the price of what it lacks in memory
(Lagrangian relaxation: Everett, "Generalized Lagrange Multiplier Method", Operations Research, 1963).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from benchmarks.planning.unlike.layouts import Conversion, Conversions, Tensor, TensorLayout
from placement.exact.ways import Amounts

_NUM_PRICES = 12  # of memory that are tried, for a bound

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
    for limit in reversed(question.limits()):
        free = question.relaxed(limit, 0.0)
        if free.bound >= best:  # a lower limit allows fewer ways
            break
        for improvement in question.improvements(limit, free, best):
            best, places = improvement
    return priced(units, conversions, room, places) if places is not None else None


def priced(units: Sequence[UnitWays], conversions: Conversions, room: Room, places: Sequence[int]) -> Choice:
    """The cost of these ways together."""
    ways = [unit.ways[place] for unit, place in zip(units, places, strict=True)]
    pairs = list(zip(units, ways, ways[1:], strict=False))
    between = tuple(_between(conversions, unit.output, way.flow, other.flow) for unit, way, other in pairs)
    held = sum(way.state_bytes + room.in_flight * way.kept_bytes for way in ways)
    return Choice(
        tuple(places),
        sum(way.forward_seconds for way in ways) + sum(ahead.seconds for ahead, _ in between),
        sum(way.backward_seconds for way in ways) + sum(back.seconds for _, back in between),
        sum(way.once_seconds for way in ways),
        held + max(way.working_bytes for way in ways),
        between,
    )


def _between(conversions: Conversions, tensor: Tensor, flow: Flow, other: Flow) -> tuple[Conversion, Conversion]:
    ahead = conversions.between(tensor, flow.leaves, other.needs)
    return ahead, conversions.between(tensor, other.gradient_leaves, flow.gradient_needs)


@dataclass(frozen=True, slots=True)
class _Labels:
    """Choices so far, the smallest first; none is slower and larger than another.

    ``sources`` and ``before`` say which list of earlier choices each continues, and which of that list.
    """

    sizes: _Places
    seconds: Amounts
    sources: _Places
    before: _Places

    def where(self, kept: npt.NDArray[np.bool_]) -> _Labels:
        """The choices that are kept."""
        return _Labels(self.sizes[kept], self.seconds[kept], self.sources[kept], self.before[kept])

    def extended(self, size: int, seconds: float, source: int) -> _Labels:
        """Adds choices, which remember their places here."""
        every = np.arange(len(self.sizes))
        return _Labels(self.sizes + size, self.seconds + seconds, np.full_like(every, source), every)


_START = _Labels(np.zeros(1, np.int64), np.zeros(1), np.full(1, -1), np.full(1, -1))


_NONE = _START.where(np.zeros(1, dtype=bool))


def _merged(many: Sequence[_Labels], most: float, below: float) -> _Labels:
    """The choices up to ``most`` size and ``below`` seconds, without those that another one equals or beats in both."""
    names = ("sizes", "seconds", "sources", "before")
    sizes, seconds, sources, before = (np.concatenate([getattr(labels, name) for labels in many]) for name in names)
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
        self._tables: dict[int, _Table] = {}

    def table(self, limit: int) -> _Table:
        """The allowed ways."""
        if limit not in self._tables:
            places = self.allowed(limit)
            starts = np.array([self.start_of[place] for place in places])
            is_at = np.where(starts == np.arange(len(self.starts))[:, None], 0.0, inf)
            amounts = ([values[place] for place in places] for values in (self.end_of, self.seconds, self.sizes))
            ends, seconds, sizes = map(np.array, amounts)
            self._tables[limit] = _Table(np.array(places), starts, ends, seconds, sizes, is_at)
        return self._tables[limit]

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


@dataclass(frozen=True, slots=True)
class _Relaxed:
    """The cheapest ways if each size costs ``price``: their places and size, and the bound that follows.

    ``behind`` has, for each unit and layouts at its end, the least seconds and price of all later units.
    """

    price: float
    bound: float
    seconds: float
    size: int
    places: list[int]
    behind: list[Amounts]


@dataclass(frozen=True, slots=True)
class _Table:
    """The allowed ways of a unit. ``is_at`` has a row for each layouts at the start: infinite for the other ways."""

    places: _Places
    starts: _Places
    ends: _Places
    seconds: Amounts
    sizes: _Places
    is_at: Amounts


class _Question:
    """All that is asked, in numbers."""

    def __init__(self, units: Sequence[UnitWays], conversions: Conversions, room: Room, num_micro_batches: int) -> None:
        by_id: dict[int, _Unit] = {}
        for unit in units:
            if id(unit) not in by_id:
                by_id[id(unit)] = _Unit(unit, room, num_micro_batches)
        self._units = [by_id[id(unit)] for unit in units]
        self._capacity = int(room.capacity_bytes // room.step_bytes)
        self._price = 0.0  # of the tightest bound for the last limit: a good first one for the next
        edges: dict[tuple[int, int], Amounts] = {}
        for earlier, other in pairwise(self._units):
            if (id(earlier), id(other)) not in edges:
                edges[id(earlier), id(other)] = num_micro_batches * _waits(earlier, other, conversions)
        self._edges = [edges[id(unit), id(other)] for unit, other in pairwise(self._units)]

    def limits(self) -> list[int]:
        """Sizes that the unit which works with most may have."""
        least = max(min(unit.working) for unit in self._units)
        every = {size for unit in self._units for size in unit.working}
        return sorted(size for size in every if least <= size <= self._capacity)

    def relaxed(self, limit: int, price: float) -> _Relaxed:
        """The cheapest ways that work within the limit, at this price."""
        tables = {id(unit): unit.table(limit) for unit in self._units}
        fixed = {key: table.is_at + (table.seconds + price * table.sizes) for key, table in tables.items()}
        chosen, least, behind = [], [], [np.zeros(len(self._units[-1].ends))]
        for number in range(len(self._units) - 1, -1, -1):
            key = id(self._units[number])
            costs = fixed[key] + behind[-1][tables[key].ends]
            chosen.append(costs.argmin(axis=1))
            least.append(costs[np.arange(len(costs)), chosen[-1]])
            behind.append((self._edges[number - 1] + least[-1]).min(axis=1) if number else least[-1].min(keepdims=True))
        places, seconds, size, start = [], 0.0, 0, int(least[-1].argmin())
        for number, unit in enumerate(self._units):
            table, way = tables[id(unit)], chosen[-number - 1][start]
            places.append(int(table.places[way]))
            seconds, size = seconds + float(table.seconds[way]), size + int(table.sizes[way])
            if number + 1 < len(self._units):
                edges = self._edges[number][table.ends[way]]
                start = int((edges + least[-number - 2]).argmin())
                seconds += float(edges[start])
        bound = float(behind[-1][0]) - price * (self._capacity - limit)
        return _Relaxed(price, bound, seconds, size, places, behind[-2::-1])

    def improvements(self, limit: int, free: _Relaxed, below: float) -> Iterator[tuple[float, list[int]]]:
        """Yield ways that fit and are faster than ``below``, each faster than the last; finally the fastest."""
        room, best, tightest = self._capacity - limit, below, free
        low, high, price = 0.0, inf, self._price or free.seconds / max(1, room)
        for _ in range(_NUM_PRICES):
            if tightest.bound >= best:
                return
            relaxed = self.relaxed(limit, price)
            if relaxed.bound > tightest.bound:
                tightest, self._price = relaxed, price
            if relaxed.size > room:
                low, price = price, (price + high) / 2 if high < inf else 4 * price
                continue
            if relaxed.seconds < best:
                best = relaxed.seconds
                yield best, relaxed.places
            high, price = price, (low + price) / 2 if low else price / 4
        if tightest.bound < best and (exact := self._fastest(limit, best, free, tightest)) is not None:
            yield exact

    def _fastest(self, limit: int, below: float, free: _Relaxed, tightest: _Relaxed) -> tuple[float, list[int]] | None:
        """The fastest ways that fit, by their places; None if none is faster than ``below``."""
        room = self._capacity - limit
        at_ends, history = [_START], []
        for number, unit in enumerate(self._units):
            edges = self._edges[number - 1] if number else np.zeros((1, len(unit.starts)))
            at_starts = [
                _merged([at_end.extended(0, edges[end, start], end) for end, at_end in enumerate(at_ends)], room, below)
                for start in range(len(unit.starts))
            ]
            at_ends = []
            for end in range(len(unit.ends)):
                many = [
                    at_starts[unit.start_of[place]].extended(unit.sizes[place], unit.seconds[place], place)
                    for place in unit.allowed(limit)
                    if unit.end_of[place] == end
                ]
                labels = _merged(many or [_NONE], room, below - free.behind[number][end])
                priced_seconds = labels.seconds + tightest.price * (labels.sizes - room) + tightest.behind[number][end]
                at_ends.append(labels.where(priced_seconds < below))
            history.append((at_starts, at_ends))
        return self._traced_back(history)

    def _traced_back(self, history: Sequence[tuple[list[_Labels], list[_Labels]]]) -> tuple[float, list[int]] | None:
        last = history[-1][1]
        ends = [(float(labels.seconds[-1]), end) for end, labels in enumerate(last) if len(labels.seconds)]
        if not ends:
            return None
        best, end = min(ends)
        place, ways = len(last[end].seconds) - 1, []
        for unit, (at_starts, at_ends) in zip(reversed(self._units), reversed(history), strict=True):
            way, place = int(at_ends[end].sources[place]), int(at_ends[end].before[place])
            ways.append(way)
            labels = at_starts[unit.start_of[way]]
            end, place = int(labels.sources[place]), int(labels.before[place])
        return best, ways[::-1]


def _waits(before: _Unit, unit: _Unit, conversions: Conversions) -> Amounts:
    """Seconds of conversions for a micro-batch, by the layouts at the end of a unit and at the start of the next."""
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
