"""What all architectures of a family need, from examples of a few: exact, in microseconds.

Candidates of one study run the same operations on other sizes. So their logs are the same, event by event, and each
size follows from those of the architecture by a formula (``estimators.formula``). ``fit`` finds the formulas, or says
why it cannot; ``Family.costs`` then knows the lines of any candidate between the smallest and the largest examples.
Depth is told by a few blocks (``estimators.depth``). Nothing is traced here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from estimators.depth import TRACED_BLOCKS, Passes, stretch
from estimators.formula import RANKS, Formula, Monomial, Points, Shards, Solver, Whole
from estimators.work import Work

Rows = npt.NDArray[np.int64]
"""How many buffers of each size class are alive, by moment."""

SAMPLES = "micro_batch"
LEAST_DEPTH = 3
"""Blocks: a first, a last, and one between."""


class NoFamily(Exception):
    """The examples do not follow from each other; the message says what does not."""


@dataclass(frozen=True, slots=True)
class Example:
    """What a few blocks of one architecture have shown under one layout.

    ``shapes`` are those of the parameters, each with its block; ``dimensions`` all that occur in parameters and
    samples. ``updates`` are the first two of the optimizer, ``updates_of_more`` those with one block more.
    """

    num_blocks: int
    shapes: tuple[tuple[tuple[int, ...], int | None], ...]
    dimensions: tuple[int, ...]
    passes: Passes
    single: Passes | None
    updates: tuple[Passes, ...]
    updates_of_more: tuple[Passes, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "num_blocks": self.num_blocks,
            "shapes": [[list(shape), block] for shape, block in self.shapes],
            "dimensions": list(self.dimensions),
            "passes": _passes_json(self.passes),
            "single": _passes_json(self.single) if self.single else None,
            "updates": [_passes_json(update) for update in self.updates],
            "updates_of_more": [_passes_json(update) for update in self.updates_of_more],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Example:
        return cls(
            int(data["num_blocks"]),
            tuple((tuple(shape), block) for shape, block in data["shapes"]),
            tuple(data["dimensions"]),
            _passes_from_json(data["passes"]),
            _passes_from_json(data["single"]) if data["single"] else None,
            tuple(map(_passes_from_json, data["updates"])),
            tuple(map(_passes_from_json, data["updates_of_more"])),
        )


@dataclass(frozen=True, slots=True)
class Moments:
    """Those at which most may be alive, as counts of size classes: ``base`` with ``LEAST_DEPTH`` blocks, and
    ``per_block`` more for each further one."""

    base: Rows
    per_block: Rows

    def bytes(self, sizes: npt.NDArray[np.float64], depth: Whole) -> npt.NDArray[np.float64]:
        """[moments, architectures] of ``sizes`` [classes, architectures]; whole numbers below 2**53, so exact."""
        further = (depth - LEAST_DEPTH).astype(np.float64)
        return self.base @ sizes + (self.per_block @ sizes) * further

    def plus(self, other: Moments) -> Moments:
        """With what is alive at the only moment of ``other`` besides."""
        return Moments(self.base + other.base, self.per_block + other.per_block)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of many architectures: lines [moments, architectures] as in ``envelope.Line``, and the peak of one sample."""

    fixed: npt.NDArray[np.float64]
    per_sample: npt.NDArray[np.float64]
    one_sample: npt.NDArray[np.float64]
    states: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Family:
    """``sizes`` are the formulas of the size classes, ``depth`` that of the number of blocks.

    ``passes`` and ``single`` are moments of the passes of two and more samples, and of one; ``updates`` those of the
    optimizer, and ``ends`` what is alive when it begins after either. ``lowest`` and ``highest`` bound the variables.
    """

    sizes: tuple[Formula, ...]
    depth: Monomial
    passes: Moments
    single: Moments | None
    updates: Moments
    ends: tuple[Moments, Moments]
    lowest: Mapping[str, int]
    highest: Mapping[str, int]

    def covers(self, points: Points) -> npt.NDArray[np.bool_]:
        """Which architectures lie between the examples; their number of samples does not matter."""
        inside = np.ones(len(next(iter(points.values()))), dtype=np.bool_)
        for name in self.lowest.keys() - {SAMPLES}:
            inside &= (points[name] >= self.lowest[name]) & (points[name] <= self.highest[name])
        return inside

    def costs(self, points: Points) -> Costs:
        """Of architectures that are covered, and have ``LEAST_DEPTH`` blocks. Raises ``NotWhole``."""
        num = len(next(iter(points.values())))
        two, three = (
            np.array([size.at({**points, SAMPLES: np.full(num, n)}) for size in self.sizes], dtype=np.float64)
            for n in (2, 3)
        )
        depth = self.depth.at(points)
        slopes = three - two
        fixed = two - 2 * slopes
        updates = self.updates.bytes(fixed, depth)
        lines = np.concatenate([self.passes.bytes(fixed, depth), updates])
        slope = np.concatenate([self.passes.bytes(slopes, depth), np.zeros_like(updates)])
        if self.single is None:
            return Costs(lines, slope, (lines + 2 * slope).max(axis=0), self.ends[0].bytes(fixed, depth)[0])
        one = fixed + slopes
        after, after_single = (end.bytes(one, depth)[0] for end in self.ends)
        kept = np.maximum(0, after_single - after)
        single = np.maximum(self.single.bytes(one, depth).max(axis=0), updates.max(axis=0) + kept)
        return Costs(lines, slope, single, after)


def fit(points: Points, examples: Sequence[Example]) -> Family:
    """The family of examples at ``points``: each is an architecture with its ranks and its micro-batch.

    Raises ``NoFamily`` where events do not align, or where a size follows no formula.
    """
    try:
        solver = Solver(points)
    except ValueError as error:
        raise NoFamily(str(error)) from None
    depth = solver.monomial(np.array([example.num_blocks for example in examples]))
    if depth is None:
        raise NoFamily("the number of blocks follows from no parameter")
    has_single = {example.single is not None for example in examples}
    if len(has_single) > 1:
        raise NoFamily("some of the examples refuse a single sample")
    logs = [[example.passes, *example.updates, *example.updates_of_more] for example in examples]
    if has_single == {True}:
        logs = [[*log, example.single] for log, example in zip(logs, examples, strict=True) if example.single]
    classes: dict[tuple[int, ...], int] = {}
    coded = [_coded(alike, classes) for alike in zip(*logs, strict=True)]
    factors = _factors(solver, points, examples)
    sizes = tuple(_formula(solver, np.array(size), factors) for size in classes)
    passes, *others = coded
    updates, updates_of_more = others[: len(examples[0].updates)], others[len(examples[0].updates) :][:2]
    num = len(classes)
    states = _states(updates[-1], updates_of_more[-1], num)
    during, after = _moments(passes, num)
    single, after_single = _moments(others[-1], num) if has_single == {True} else (None, after)
    pairs = [_of_update(few, more, num) for few, more in zip(updates, updates_of_more, strict=True)]
    both = Moments(np.concatenate([m.base for m in pairs]), np.concatenate([m.per_block for m in pairs]))
    return Family(
        sizes,
        depth,
        _highest(during.plus(states)),
        _highest(single.plus(states)) if single is not None else None,
        _highest(both),
        (after.plus(states), after_single.plus(states)),
        {name: int(values.min()) for name, values in points.items()},
        {name: int(values.max()) for name, values in points.items()},
    )


def _coded(passes: Sequence[Passes], classes: dict[tuple[int, ...], int]) -> Passes:
    """The log that all have in common, with the number of a class (from 1) for each size, 0 for none."""
    first = passes[0]
    for other in passes[1:]:
        if _skeleton(other) != _skeleton(first):
            raise NoFamily("architectures do not run the same operations")
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
            raise NoFamily("a dimension of the model follows from no parameter")
        return dimension

    num_dimensions = {len(example.dimensions) for example in examples}
    layers = {tuple((len(shape), block) for shape, block in example.shapes) for example in examples}
    if len(num_dimensions) > 1 or len(layers) > 1:
        raise NoFamily("architectures do not have the same parameters")
    found = {told(values): None for values in zip(*(example.dimensions for example in examples), strict=True)}
    factors: dict[Monomial | Shards, None] = {d: None for d in found if d.constant}
    if RANKS in points:
        units: dict[int | None, list[tuple[Monomial, Monomial]]] = {}
        for number, (shape, block) in enumerate(examples[0].shapes):
            rows = told(example.shapes[number][0][0] if shape else 1 for example in examples)
            row = told(int(np.prod(example.shapes[number][0][1:], dtype=np.int64)) for example in examples)
            units.setdefault(block, []).append((rows, row))
            factors[Shards(((rows, Monomial(rows.coefficient / rows.coefficient)),))] = None
        factors |= {Shards(tuple(tensors)): None for tensors in units.values()}
    return list(factors)


def _formula(solver: Solver, sizes: Whole, factors: Sequence[Monomial | Shards]) -> Formula:
    formula = solver.formula(sizes, factors)
    if formula is None:
        raise NoFamily(f"no formula gives the sizes {sizes.tolist()}")
    samples = dict(formula.monomial.exponents).get(SAMPLES, 0)
    if samples not in (0, 1) or any(SAMPLES in str(factor) for factor in formula.factors):
        raise NoFamily(f"the sizes {sizes.tolist()} are not affine in the micro-batch")
    return formula


def _alive(passes: Passes, num: int) -> Rows:
    """[events, classes] after each event."""
    changes = np.zeros((len(passes.events), num + 1), dtype=np.int64)
    held: dict[int, int] = {}
    for position, (buffer, code) in enumerate(passes.events):
        changes[position, held.get(buffer, 0)] -= 1
        changes[position, code] += 1
        held[buffer] = code
    return np.cumsum(changes, axis=0)[:, 1:]


def _moments(passes: Passes, num: int) -> tuple[Moments, Moments]:
    """All that may be the peak, and the last.

    Events of the first, the second, the last block and the one before it, and those outside, are the same for any
    number of blocks; what is alive then grows with it evenly. In between it grows or falls from block to block evenly
    too, so no block there needs more than both ends.
    """
    by_depth = []
    for depth in range(LEAST_DEPTH + 3, LEAST_DEPTH + 6):
        longer = stretch(passes, depth)
        if longer is None:
            raise NoFamily("blocks do not do the same")
        by_depth.append(_by_role(longer, depth, _alive(longer, num)))
    first, second, third = by_depth
    if not first.shape == second.shape == third.shape or np.any(third - second != second - first):
        raise NoFamily("what is alive does not grow evenly with the blocks")
    per_block = second - first
    base = first - 3 * per_block
    everything = Moments(base, per_block)
    return everything, Moments(base[-1:], per_block[-1:])


def _by_role(passes: Passes, depth: int, alive: Rows) -> Rows:
    """Those rows of passes that belong to no block between the second and the last but one."""
    bounds = [
        (max(0, passes.num_before - 1), None),
        *((position, block) for position, block, _ in passes.marks),
        (len(alive), None),
    ]
    between = range(2, depth - 2)
    return np.concatenate(
        [alive[start:end] for (start, block), (end, _) in pairwise(bounds) if block is None or block not in between]
    )


def _states(few: Passes, more: Passes, num: int) -> Moments:
    """The optimizer's, alive after an update of ``TRACED_BLOCKS`` blocks, and of one more."""

    def row(update: Passes) -> Rows:
        held = dict(update.events)
        kept = [code for buffer, code in held.items() if code and update.categories[buffer] == "optimizer"]
        return np.bincount(kept, minlength=num + 1)[None, 1:]

    return _even(row(few), row(more))


def _of_update(few: Passes, more: Passes, num: int) -> Moments:
    rows = [_maximal(_alive(update, num)) for update in (few, more)]
    if len(rows[0]) != len(rows[1]):
        raise NoFamily("the optimizer does not grow evenly with the blocks")
    return _even(*rows)


def _even(few: Rows, more: Rows) -> Moments:
    """Of rows with ``TRACED_BLOCKS`` blocks, and with one more."""
    per_block = more - few
    return Moments(few - (TRACED_BLOCKS - LEAST_DEPTH) * per_block, per_block)


def _highest(moments: Moments) -> Moments:
    """Without those that never need more than another, whatever the sizes and the depth."""
    together = _maximal(np.concatenate([moments.base, moments.per_block], axis=1))
    return Moments(*np.split(together, 2, axis=1))


def _maximal(rows: Rows) -> Rows:
    """Those that no other row exceeds in every column, in the order of the rows."""
    rows = np.array(list(dict.fromkeys(map(tuple, rows.tolist()))))
    kept = np.empty((0, rows.shape[1]), dtype=np.int64)
    places = []
    for place in np.argsort(-rows.sum(axis=1), kind="stable").tolist():
        if not len(kept) or not np.any(np.all(kept >= rows[place], axis=1)):
            kept = np.concatenate([kept, rows[place : place + 1]])
            places.append(place)
    return rows[sorted(places)]


def _passes_json(passes: Passes) -> dict[str, Any]:
    return {
        "events": [list(event) for event in passes.events],
        "categories": list(passes.categories),
        "num_before": passes.num_before,
        "owners": [list(owner) for owner in passes.owners.items()],
        "marks": [[position, block] for position, block, _ in passes.marks],
    }


def _passes_from_json(data: Mapping[str, Any]) -> Passes:
    return Passes(
        tuple((buffer, size) for buffer, size in data["events"]),
        tuple(data["categories"]),
        Work(),
        data["num_before"],
        dict(data["owners"]),
        [(position, block, Work()) for position, block in data["marks"]],
    )
