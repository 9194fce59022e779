"""Predicts the units of a model, its divisions and its work, for all architectures that run the same operations.

Each operation's FLOPs and the bytes of each of its tensors follow from the sizes of the architecture by formulas. Added
up between the marks of blocks, they are the work of each unit (``estimators.peaks.units``), the same that a trace of
the candidate would count. Nothing is traced here.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from estimators.model import Divisions
from estimators.peaks.depth import TRACED_BLOCKS, Passes, Segment, homes_of, segments_of
from estimators.peaks.units import Cost, Outline, Unit, merged_units, places_of, run_in_order, unit_of, work_of_passes
from estimators.scaling.example import Example, ModelFacts, NoBlueprint
from estimators.scaling.formula import SAMPLES, Factor, Formula, Points, Solver, Whole
from estimators.work import AMOUNTS, MAPPED_BYTES, OP_KINDS, Operation, StepWork, Work

_Floats = npt.NDArray[np.float64]
_LOW = 2  # samples of the smaller of the two micro-batches that give the lines of units
_NUMBERS = ("most_parts", "most_stages", "most_slabs")
_NUM_AMOUNTS = len(Work().amounts)


@dataclass(frozen=True, slots=True)
class Tally:
    """Work as numbers of operations and sums of formulas.

    ``counts`` are (amount, number of operations), where an amount is a place in ``Work.amounts``. ``sums`` are (amount,
    formula, how many times), and ``fresh`` the same for buffers that count only from ``MAPPED_BYTES`` on.
    """

    counts: tuple[tuple[int, int], ...] = ()
    sums: tuple[tuple[int, int, int], ...] = ()
    fresh: tuple[tuple[int, int, int], ...] = ()

    def at(self, values: _Floats) -> _Floats:
        """Amounts [architectures, amounts], for the ``values`` [formulas, architectures]."""
        amounts = np.zeros((_NUM_AMOUNTS, values.shape[1]))
        for amount, count in self.counts:
            amounts[amount] += count
        for amount, formula, count in self.sums:
            amounts[amount] += count * values[formula]
        for amount, formula, count in self.fresh:
            amounts[amount] += count * np.where(values[formula] >= MAPPED_BYTES, values[formula], 0)
        return amounts.T


@dataclass(frozen=True, slots=True)
class UnitFormulas:
    """One unit of the examples, by formulas: parameters to add up, parts that its layers can be divided into,
    activations to add up with their numbers, the output (None for the last unit), and the bytes in which FSDP sends a
    parameter and a gradient."""

    name: str
    params: tuple[int, ...]
    most_parts: int
    kept_counts: tuple[tuple[int, int], ...]
    output: int | None
    sent_bytes: tuple[int, int] = (4, 4)


@dataclass(frozen=True, slots=True)
class PredictedModel:
    """The facts of a candidate's ``ModelProfile`` besides its peaks."""

    units: tuple[Unit, ...]
    divisions: Divisions
    work: StepWork
    num_params: int


@dataclass(frozen=True, slots=True)
class ModelFormulas:
    """The formulas of one group of architectures.

    ``parts`` are the segments of a pass: the block, the work before the first backward pass, and that after it.
    ``rows`` are the part before the blocks, each block, and the part after them, or the model if no block runs. Unless
    the blocks run ``in_order``, ``places`` has the row that each part belongs to. ``update`` is the work of an
    optimizer's update, ``update_of_block`` that of each block beyond those of the examples. If ``is_whole``, the
    examples have all blocks. ``divisions`` are the formulas of the numbers in ``Divisions`` that are named in
    ``_NUMBERS``; ``template`` has whatever else is in it.
    """

    formulas: tuple[Formula, ...]
    parts: tuple[tuple[int | None, Tally, Tally], ...]
    rows: tuple[UnitFormulas, ...]
    update: Tally
    update_of_block: Tally
    divisions: tuple[int, ...]
    template: Divisions
    in_order: bool
    equal_blocks: bool
    is_whole: bool
    num_blocks: int
    places: tuple[int, ...]

    def predict(self, points: Points, depth: Whole, largest: Whole) -> list[PredictedModel]:
        """The model of each architecture with ``depth`` blocks, for micro-batches of up to ``largest`` samples.

        Raises ``NotWhole`` if a size would not be a whole number.
        """
        low, high = (_Evaluated.of(self, {**points, SAMPLES: size}, depth) for size in (0 * largest + _LOW, largest))
        return [self._model(low, high, index, *sizes) for index, sizes in enumerate(zip(depth, largest, strict=True))]

    def weights(self, depth: Whole) -> list[Whole]:
        """How often the model of each architecture has each part of the examples."""
        once = np.ones_like(depth)
        inner = {1: depth - 2, 2: 0 * depth} if not self.is_whole else {}
        return [once if block is None else inner.get(block, once) for block, _, _ in self.parts]

    def _model(self, low: _Evaluated, high: _Evaluated, index: int, depth: int, largest: int) -> PredictedModel:
        values = [round(value) for value in low.values[:, index].tolist()]
        counts = [1] * len(self.rows)
        if self.in_order and not self.is_whole:
            counts[2:4] = [int(depth) - 2, 0]
        outlines = self._outlines(values, int(depth))
        pairs = zip(outlines, self._costs(low, index), self._costs(high, index), counts, strict=True)
        units = merged_units(
            replace(unit_of(outline, few, many, _LOW, int(largest)), count=count)
            for outline, few, many, count in pairs
            if count
        )
        passes = [_work(evaluated.passes[index]) for evaluated in (low, high)]
        per_sample = (passes[1] - passes[0]) * (1 / (int(largest) - _LOW))
        step = StepWork(passes[0] - per_sample * _LOW, per_sample, _work(low.update[index]))
        numbers: dict[str, Any] = dict(zip(_NUMBERS, (values[formula] for formula in self.divisions), strict=True))
        divisions = replace(self.template, **numbers, most_divided=1)  # units do not say what is in divided layers
        return PredictedModel(units, divisions, step, sum(unit.num_params * unit.count for unit in units))

    def _outlines(self, values: Sequence[int], depth: int) -> list[Outline]:
        names = [row.name for row in self.rows]
        if self.in_order and not self.is_whole:
            names[4] = f"{names[1][:-1]}{depth - 1}"
        return [
            Outline(name, sum(values[formula] for formula in row.params), values[row.most_parts], 0, *row.sent_bytes)
            for name, row in zip(names, self.rows, strict=True)
        ]

    def _costs(self, at: _Evaluated, index: int) -> list[Cost]:
        parts = [(_work(before[index]), _work(after[index])) for before, after in at.parts]
        passes = work_of_passes(parts, self.num_blocks, self.equal_blocks) if self.in_order else parts
        sizes = at.sizes[:, :, index].tolist()
        return [(*both, round(kept), round(out)) for both, (kept, out) in zip(passes, sizes, strict=True)]


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """All formulas at one micro-batch: the work of each part, that of all passes and of the update, and (bytes of
    activations, bytes of output) of each row."""

    values: _Floats
    parts: list[tuple[_Floats, _Floats]]
    passes: _Floats
    update: _Floats
    sizes: _Floats

    @classmethod
    def of(cls, model: ModelFormulas, points: Points, depth: Whole) -> _Evaluated:
        values = np.array([formula.at(points) for formula in model.formulas], dtype=np.float64)
        parts = [(before.at(values), after.at(values)) for _, before, after in model.parts]
        weights = model.weights(depth)
        passes = sum((before + after) * w[:, None] for (before, after), w in zip(parts, weights, strict=True))
        further = 0 * depth if model.is_whole else depth - model.num_blocks
        update = model.update.at(values) + model.update_of_block.at(values) * further[:, None]
        nothing = np.zeros_like(values[0])
        sizes = np.array(
            [
                (
                    sum((count * values[formula] for formula, count in row.kept_counts), nothing),
                    nothing if row.output is None else values[row.output],
                )
                for row in model.rows
            ]
        )
        if not model.in_order:
            none = np.zeros_like(update)
            rows = [(none, none)] * len(model.rows)
            for place, (before, after), w in zip(model.places, parts, weights, strict=True):
                earlier = rows[place]
                rows[place] = earlier[0] + before * w[:, None], earlier[1] + after * w[:, None]
            parts = rows
        return cls(values, parts, np.asarray(passes), update, sizes)


def fit_model(
    solver: Solver, examples: Sequence[Example], facts: Sequence[ModelFacts], factors: Sequence[Factor]
) -> ModelFormulas:
    """The formulas of the examples, which run the same operations. Raises ``NoBlueprint``."""
    first = examples[0]
    formulas, num_blocks = _Formulas(solver, factors), _num_blocks(first)
    parts = list(segments_of(first.passes))
    in_order = num_blocks > 0 and run_in_order(parts, num_blocks) and len(facts[0].outputs) == num_blocks + 1
    ones: dict[str, Any] = dict.fromkeys((*_NUMBERS, "most_divided"), 1)
    templates = {replace(fact.divisions, **ones) for fact in facts}
    if len({fact.equal_blocks for fact in facts}) > 1 or len(templates) > 1:
        raise NoBlueprint("architectures do not have the same blocks")
    if not in_order and not first.is_whole:
        raise NoBlueprint("the blocks do not run one after another")
    tallies = formulas.tallies([example.passes for example in examples], _bounds(first.passes))
    work = [(part.block, *both) for part, both in zip(parts, tallies, strict=True)]
    updates = [formulas.tally([example.updates[-1].operations for example in examples])]
    updates.append(formulas.tally([example.updates_of_more[-1].operations for example in examples]))
    divisions = tuple(formulas.of([getattr(fact.divisions, name) for fact in facts]) for name in _NUMBERS)
    places = places_of(parts, num_blocks)
    has_blocks = in_order or bool(set(places) - {0, num_blocks + 1})
    kept_counts = _kept_counts(formulas, [example.passes for example in examples], parts)
    if in_order:  # each unit makes its activations in the first of its parts
        parts = parts[: num_blocks + 2]
    rows = _rows(
        formulas,
        examples,
        facts,
        [kept_counts[part.visit, part.block] for part in parts],
        places,
        has_blocks=has_blocks,
    )
    return ModelFormulas(
        formulas=tuple(formulas.formulas),
        parts=tuple(work),
        rows=tuple(rows),
        update=updates[0],
        update_of_block=_difference(*updates),
        divisions=divisions,
        template=templates.pop(),
        in_order=in_order,
        equal_blocks=facts[0].equal_blocks,
        is_whole=first.is_whole,
        num_blocks=num_blocks,
        places=tuple(places) if has_blocks else (0,) * len(places),
    )


class _Formulas:
    """A table of formulas, each found once."""

    def __init__(self, solver: Solver, factors: Sequence[Factor]) -> None:
        self._solver, self._factors = solver, factors
        self._places: dict[tuple[int, ...], int] = {}
        self.formulas: list[Formula] = []

    def of(self, values: Iterable[float]) -> int:
        """Place of the formula that gives these positive whole numbers. Raises ``NoBlueprint``."""
        key = tuple(map(int, values))
        if key not in self._places:
            formula = self._solver.formula(np.array(key, dtype=np.int64), self._factors) if min(key) > 0 else None
            if formula is None:
                raise NoBlueprint(f"no formula gives the amounts {list(key)}")
            self._places[key] = len(self.formulas)
            self.formulas.append(formula)
        return self._places[key]

    def tallies(self, passes: Sequence[Passes], bounds: Sequence[tuple[int, int, int]]) -> list[tuple[Tally, Tally]]:
        """Work of each part before and after the first backward pass; ``bounds`` are places of operations."""
        every = [pass_.operations for pass_ in passes]
        return [
            (
                self.tally([operations[start:turn] for operations in every]),
                self.tally([operations[turn:end] for operations in every]),
            )
            for start, turn, end in bounds
        ]

    def tally(self, operations: Sequence[Sequence[Operation]]) -> Tally:
        """Work of the same operations in all examples."""
        counts: Counter[int] = Counter()
        sums: Counter[tuple[int, int]] = Counter()
        fresh: Counter[tuple[int, int]] = Counter()
        if len({len(steps) for steps in operations}) > 1:
            raise NoBlueprint("architectures do not run the same operations")
        for same in zip(*operations, strict=True):
            kinds = {
                (operation.kind, operation.is_half, len(operation.sizes), len(operation.new_sizes))
                for operation in same
            }
            if len(kinds) > 1:
                raise NoBlueprint("architectures do not run the same operations")
            first = OP_KINDS.index(same[0].kind) * len(AMOUNTS)
            counts[first] += 1
            if any(operation.flops for operation in same):
                formula = self.of(operation.flops for operation in same)
                sums.update([(first + 1, formula), *([(first + 4, formula)] if same[0].is_half else [])])
            for sizes in zip(*(operation.sizes for operation in same), strict=True):
                if any(sizes):
                    sums[first + 2, self.of(sizes)] += 1
            for sizes in zip(*(operation.new_sizes for operation in same), strict=True):
                if max(sizes) > 0:
                    fresh[first + 3, self.of(sizes)] += 1
        return Tally(tuple(counts.items()), *(_triples(counter) for counter in (sums, fresh)))


def _rows(
    formulas: _Formulas,
    examples: Sequence[Example],
    facts: Sequence[ModelFacts],
    kept_counts: Sequence[Counter[int]],
    places: Sequence[int],
    *,
    has_blocks: bool,
) -> list[UnitFormulas]:
    """``kept_counts`` are the activations of parts, and ``places`` the rows that these belong to."""
    params = _params(formulas, examples)
    if not has_blocks:
        everything = sum(kept_counts, Counter[int]())
        one_part = formulas.of(1 for _ in examples)
        parameters, activations = tuple(itertools.chain(*params)), tuple(everything.items())
        return [UnitFormulas("model", parameters, one_part, activations, None, _sent_bytes(facts[0].outlines[0]))]
    outlines = [[*fact.outlines[: len(params) - 1], fact.outlines[-1]] for fact in facts]
    names = {tuple(outline.name for outline in units) for units in outlines}
    if len(names) > 1 and examples[0].is_whole:
        raise NoBlueprint("the blocks of architectures do not have the same names")
    if not examples[0].is_whole and not _are_numbered(outlines[0]):
        raise NoBlueprint("the names of blocks do not end with their numbers")
    rows = []
    for index, param_sizes in enumerate(params):
        outputs = [fact.outputs[index] for fact in facts if index < len(fact.outputs)]
        output = formulas.of(outputs) if any(outputs) else None
        most_parts = formulas.of(outline[index].most_parts for outline in outlines)
        own_counts = (counts for counts, place in zip(kept_counts, places, strict=False) if place == index)
        kept_sizes = tuple(sum(own_counts, Counter[int]()).items())
        first = outlines[0][index]
        rows.append(UnitFormulas(first.name, param_sizes, most_parts, kept_sizes, output, _sent_bytes(first)))
    return rows


def _sent_bytes(outline: Outline) -> tuple[int, int]:
    return outline.gathered_bytes, outline.reduced_bytes


def _kept_counts(
    formulas: _Formulas, passes: Sequence[Passes], parts: Sequence[Segment]
) -> dict[tuple[int, int | None], Counter[int]]:
    """Formulas of the activations that each part makes, with their numbers, by visit and block."""
    sizes = [dict(reversed([event for event in pass_.events if event[1]])) for pass_ in passes]  # at their first event
    kept_counts: dict[tuple[int, int | None], Counter[int]] = {(part.visit, part.block): Counter() for part in parts}
    for buffer, (visit, block, *_) in homes_of(passes[0], parts).items():
        if passes[0].categories[buffer] == "activations":
            kept_counts[visit, block][formulas.of(size[buffer] for size in sizes)] += 1
    return kept_counts


def _params(formulas: _Formulas, examples: Sequence[Example]) -> list[tuple[int, ...]]:
    """Formulas of the parameters before the blocks, in each block, and after the blocks."""
    num_blocks = _num_blocks(examples[0])
    params: list[list[int]] = [[] for _ in range(num_blocks + 2)]
    reached = False
    for same in zip(*(example.shapes for example in examples), strict=True):
        block = same[0][1]
        reached |= block is not None
        place = (num_blocks + 1 if reached else 0) if block is None else 1 + block
        params[place].append(formulas.of(int(np.prod(shape, dtype=np.int64)) for shape, _ in same))
    return [tuple(sizes) for sizes in params]


def _num_blocks(example: Example) -> int:
    """Number of blocks in the logs."""
    return example.num_blocks if example.is_whole else TRACED_BLOCKS


def _are_numbered(outlines: Sequence[Outline]) -> bool:
    names = [outline.name for outline in outlines[1:-2]]
    return all(name == f"{names[0][:-1]}{number}" for number, name in enumerate(names))


def _bounds(passes: Passes) -> list[tuple[int, int, int]]:
    """(first operation of a part, first one after the first backward pass begins, first one of the next part)."""
    turn, bounds = passes.forward.num_operations, []
    done = [0, *(work.num_operations for _, _, work in passes.marks), len(passes.operations)]
    for start, end in pairwise(done):
        bounds.append((start, min(max(start, turn), end), end))
    return bounds


def _difference(few: Tally, more: Tally) -> Tally:
    """The work of one more block."""
    counts = Counter(dict(more.counts))
    counts.subtract(dict(few.counts))
    return Tally(
        tuple((amount, count) for amount, count in counts.items() if count),
        _decrease(more.sums, few.sums),
        _decrease(more.fresh, few.fresh),
    )


def _decrease(
    more: tuple[tuple[int, int, int], ...], few: tuple[tuple[int, int, int], ...]
) -> tuple[tuple[int, int, int], ...]:
    counts = Counter({(amount, formula): count for amount, formula, count in more})
    counts.subtract({(amount, formula): count for amount, formula, count in few})
    return _triples(counts)


def _triples(counts: Counter[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple((*key, count) for key, count in counts.items() if count)


def _work(amounts: _Floats) -> Work:
    return Work(tuple(amounts.tolist()))
