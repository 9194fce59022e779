"""What all architectures of one blueprint need, from examples of a few: exact, in microseconds.

Candidates of one study run the same operations on other sizes. So their logs are the same, event by event, and each
size follows from those of the architecture by a formula (``scaling.formula``). ``fit`` finds the formulas, or says
why it cannot; ``Blueprint.costs`` then knows the lines of any candidate between the smallest and the largest examples.
Depth is told by a few blocks (``estimators.peaks.depth``). Nothing is traced here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from estimators.peaks.depth import Passes
from estimators.scaling.example import Example, NoBlueprint
from estimators.scaling.formula import RANKS, Formula, Monomial, Points, Shards, Solver, Whole
from estimators.scaling.moments import LEAST_DEPTH, Moments, highest, joined, moments_of, of_update, states_of
from estimators.work import Work

SAMPLES = "micro_batch"


@dataclass(frozen=True, slots=True)
class Costs:
    """Of many architectures: lines [architectures, moments] as in ``envelope.Line``, the peak of one sample, and the
    states when the optimizer begins."""

    fixed: npt.NDArray[np.float64]
    per_sample: npt.NDArray[np.float64]
    one_sample: npt.NDArray[np.float64]
    states: npt.NDArray[np.float64]
    _largest: dict[int, Whole] = field(default_factory=dict, compare=False, repr=False)

    def curve(self, place: int) -> Lines:
        """Of one of the architectures."""
        return Lines(self, place)

    def largest(self, capacity_bytes: int) -> Whole:
        """Of each architecture the largest micro-batch whose peak is within ``capacity_bytes``.

        Of all at once, and remembered, since one is asked about after another.
        """
        if capacity_bytes not in self._largest:
            room = capacity_bytes - self.fixed
            counts = np.full_like(room, np.inf)
            np.floor_divide(room, self.per_sample, out=counts, where=self.per_sample > 0)
            most = np.where(room.min(axis=1) >= 0, counts.min(axis=1), 0)
            single = self.one_sample <= capacity_bytes
            self._largest[capacity_bytes] = np.where(most >= 2, most, single).astype(np.int64)
        return self._largest[capacity_bytes]


@dataclass(frozen=True, slots=True)
class Lines:
    """The peak of one architecture (a ``PeakCurve``), from the lines of its blueprint."""

    costs: Costs
    place: int

    def peak_bytes(self, micro_batch: int) -> int:
        costs, place = self.costs, self.place
        if micro_batch == 1:
            return int(costs.one_sample[place])
        return int((costs.fixed[place] + micro_batch * costs.per_sample[place]).max())

    def parts(self, micro_batch: int) -> dict[str, int]:
        """Nothing: lines of blueprints do not tell categories apart."""
        return {}

    def largest_batch(self, capacity_bytes: int) -> int:
        return int(self.costs.largest(capacity_bytes)[self.place])


@dataclass(frozen=True, slots=True)
class Blueprint:
    """``sizes`` are the formulas of the size classes, ``depth`` that of the number of blocks.

    ``passes`` and ``single`` are moments of the passes of two and more samples, and of one; ``updates`` those of the
    optimizer, and ``ends`` what is alive when it begins after either. ``lowest`` and ``highest`` bound the
    variables, but for those of the depth alone. ``even_rows`` are those of parameters that the ranks of all examples
    divide.
    """

    sizes: tuple[Formula, ...]
    depth: Monomial
    passes: Moments
    single: Moments | None
    updates: Moments
    ends: tuple[Moments, Moments]
    lowest: Mapping[str, int]
    highest: Mapping[str, int]
    even_rows: tuple[Monomial, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "sizes": [size.to_json() for size in self.sizes],
            "depth": self.depth.to_json(),
            "passes": self.passes.to_json(),
            "single": self.single.to_json() if self.single else None,
            "updates": self.updates.to_json(),
            "ends": [end.to_json() for end in self.ends],
            "lowest": dict(self.lowest),
            "highest": dict(self.highest),
            "even_rows": [rows.to_json() for rows in self.even_rows],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Blueprint:
        """Raises KeyError, TypeError or ValueError on anything but what ``to_json`` gives."""
        after, after_single = map(Moments.from_json, data["ends"])
        return cls(
            tuple(map(Formula.from_json, data["sizes"])),
            Monomial.from_json(data["depth"]),
            Moments.from_json(data["passes"]),
            Moments.from_json(data["single"]) if data["single"] else None,
            Moments.from_json(data["updates"]),
            (after, after_single),
            {str(name): int(value) for name, value in data["lowest"].items()},
            {str(name): int(value) for name, value in data["highest"].items()},
            tuple(map(Monomial.from_json, data["even_rows"])),
        )

    def tells(self, points: Points) -> npt.NDArray[np.bool_]:
        """Which of the architectures that are covered the formulas tell of; others must be traced.

        Not of those that have too few blocks, nor where ranks do not divide rows that they divide in all examples:
        shards would be rounded up, and no example tells which.
        """
        told: npt.NDArray[np.bool_] = self.depth.at(points) >= LEAST_DEPTH
        for rows in self.even_rows if RANKS in points else ():
            told &= rows.at(points) % points[RANKS] == 0
        return told

    def covers(self, points: Points) -> npt.NDArray[np.bool_]:
        """Which architectures lie between the examples; the micro-batch and the number of blocks may be any."""
        inside = np.ones(len(next(iter(points.values()))), dtype=np.bool_)
        for name in self.lowest:
            inside &= (points[name] >= self.lowest[name]) & (points[name] <= self.highest[name])
        return inside

    def costs(self, points: Points) -> Costs:
        """Of architectures that are covered and told of. Raises ``formula.NotWhole``."""
        one_each = {**points, SAMPLES: np.ones(len(next(iter(points.values()))), dtype=np.int64)}
        one = np.array([size.at(one_each) for size in self.sizes], dtype=np.float64)
        grows = np.array([_grows(size) for size in self.sizes])[:, None]
        fixed, slopes = np.where(grows, 0, one), np.where(grows, one, 0)
        depth = self.depth.at(points)
        updates = self.updates.bytes(fixed, depth)
        lines = np.concatenate([self.passes.bytes(fixed, depth), updates])
        slope = np.concatenate([self.passes.bytes(slopes, depth), np.zeros_like(updates)])
        after, after_single = (end.bytes(one, depth)[0] for end in self.ends)
        if self.single is None:
            single = (lines + 2 * slope).max(axis=0)  # counts as two, so that it fits wherever two do
        else:
            kept = np.maximum(0, after_single - after)
            single = np.maximum(self.single.bytes(one, depth).max(axis=0), updates.max(axis=0) + kept)
        return Costs(np.ascontiguousarray(lines.T), np.ascontiguousarray(slope.T), single, after)


def fit(points: Points, examples: Sequence[Example]) -> Blueprint:
    """The blueprint of examples at ``points``: each is an architecture with its ranks and its micro-batch.

    Raises ``NoBlueprint`` where events do not align, or where a size follows no formula.
    """
    try:
        solver = Solver(points)
    except ValueError as error:
        raise NoBlueprint(str(error)) from None
    depth = solver.monomial(np.array([example.num_blocks for example in examples]))
    if depth is None:
        raise NoBlueprint("the number of blocks follows from no parameter")
    has_single = {example.single is not None for example in examples}
    if len(has_single) > 1:
        raise NoBlueprint("some of the examples refuse a single sample")
    logs = [[example.passes, *example.updates, *example.updates_of_more] for example in examples]
    if has_single == {True}:
        logs = [[*log, example.single] for log, example in zip(logs, examples, strict=True) if example.single]
    _check_operations(points, logs)
    classes: dict[tuple[int, ...], int] = {}
    coded = [_coded(alike, classes) for alike in zip(*logs, strict=True)]
    factors = _factors(solver, points, examples)
    sizes = tuple(_formula(solver, np.array(size), factors) for size in classes)
    if not any(map(_grows, sizes)):
        raise NoBlueprint("nothing grows with the micro-batch, so every batch would fit")
    bounded = [name for name in points if name != SAMPLES and not _of_depth_alone(name, depth, sizes)]
    passes, *others = coded
    num_updates = len(examples[0].updates)
    updates, updates_of_more = others[:num_updates], others[num_updates : 2 * num_updates]
    num = len(classes)
    states = states_of(updates[-1], updates_of_more[-1], num)
    during, after = moments_of(passes, num)
    single, after_single = moments_of(others[-1], num) if has_single == {True} else (None, after)
    pairs = [of_update(few, more, num) for few, more in zip(updates, updates_of_more, strict=True)]
    return Blueprint(
        sizes,
        depth,
        highest(during.plus(states)),
        highest(single.plus(states)) if single is not None else None,
        highest(joined(pairs)),
        (after.plus(states), after_single.plus(states)),
        {name: int(points[name].min()) for name in bounded},
        {name: int(points[name].max()) for name in bounded},
        tuple(_even_rows(factors, points)),
    )


def _check_operations(points: Points, logs: Sequence[Sequence[Passes]]) -> None:
    """Raises ``NoBlueprint`` unless all logs are the same but for their sizes."""
    skeletons = [[_skeleton(passes) for passes in log] for log in logs]
    kinds = [skeletons.index(skeleton) for skeleton in skeletons]
    if not any(kinds):
        return
    parting = []
    for name in points.keys() - {SAMPLES, RANKS}:
        values = points[name].tolist()
        if len(set(values)) == len(set(zip(values, kinds, strict=True))):  # each value has one kind
            parting.append((len(set(values)), name))
    raise NoBlueprint("architectures do not run the same operations", min(parting)[1] if parting else None)


def _coded(passes: Sequence[Passes], classes: dict[tuple[int, ...], int]) -> Passes:
    """The log that all have in common, with the number of a class (from 1) for each size, 0 for none."""
    first = passes[0]
    events = []
    for position, (buffer, _) in enumerate(first.events):
        sizes = tuple(one.events[position][1] for one in passes)
        code = 0 if not any(sizes) else classes.setdefault(sizes, len(classes)) + 1
        events.append((buffer, code))
    marks = [(position, block, Work()) for position, block, _ in first.marks]
    return Passes(tuple(events), first.categories, Work(), first.num_before, first.owners, marks)


def _skeleton(passes: Passes) -> tuple[Any, ...]:
    """All but the sizes."""
    events = [(buffer, size > 0) for buffer, size in passes.events]
    marks = [(position, block) for position, block, _ in passes.marks]
    return events, list(passes.categories), passes.num_before, dict(passes.owners), marks


def _factors(solver: Solver, points: Points, examples: Sequence[Example]) -> list[Monomial | Shards]:
    """What sizes may be products of, but for the variables: dimensions with a constant, shards, units of FSDP."""

    def told(values: Iterable[int]) -> Monomial:
        dimension = solver.dimension(np.array(list(values)))
        if dimension is None:
            raise NoBlueprint("a dimension of the model follows from no parameter")
        return dimension

    num_dimensions = {len(example.dimensions) for example in examples}
    layers = {tuple((len(shape), block) for shape, block in example.shapes) for example in examples}
    if len(num_dimensions) > 1 or len(layers) > 1:
        raise NoBlueprint("architectures do not have the same parameters")
    found = {told(values): None for values in zip(*(example.dimensions for example in examples), strict=True)}
    factors: dict[Monomial | Shards, None] = {d: None for d in found if d.constant}
    if RANKS in points:
        units: dict[int | None, list[tuple[Monomial, Monomial]]] = {}
        for number, (shape, block) in enumerate(examples[0].shapes):
            rows = told(example.shapes[number][0][0] if shape else 1 for example in examples)
            row = told(int(np.prod(example.shapes[number][0][1:], dtype=np.int64)) for example in examples)
            units.setdefault(block, []).append((rows, row))
            factors[Shards(((rows, Monomial(Fraction(1))),))] = None
        factors |= {Shards(tuple(tensors)): None for tensors in units.values()}
    return list(factors)


def _even_rows(factors: Sequence[Monomial | Shards], points: Points) -> Iterator[Monomial]:
    """Of all parameters, those that the ranks of every example divide."""
    rows = {rows: None for factor in factors if isinstance(factor, Shards) for rows, _ in factor.tensors}
    for each in rows:
        if np.all(each.at(points) % points[RANKS] == 0):
            yield each


def _formula(solver: Solver, sizes: Whole, factors: Sequence[Monomial | Shards]) -> Formula:
    formula = solver.formula(sizes, factors)
    if formula is None:
        raise NoBlueprint(f"no formula gives the sizes {sizes.tolist()}")
    samples = dict(formula.monomial.exponents).get(SAMPLES, 0)
    if samples not in (0, 1) or any(SAMPLES in factor.variables for factor in formula.factors):
        raise NoBlueprint(f"the sizes {sizes.tolist()} are not affine in the micro-batch")
    return formula


def _of_depth_alone(name: str, depth: Monomial, sizes: Sequence[Formula]) -> bool:
    """Whether a variable says how many blocks there are, and changes no size: any number of blocks follows."""
    return name in depth.variables and not any(name in size.variables for size in sizes)


def _grows(size: Formula) -> bool:
    """With the micro-batch: then it is proportional to it."""
    return SAMPLES in size.variables
