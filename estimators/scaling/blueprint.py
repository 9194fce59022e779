"""Predicts the memory of all architectures of one blueprint from a few examples: exactly, in microseconds.

The candidates of one study run the same operations on different sizes. So their logs agree event by event, and each
size follows from those of the architecture by a formula (``scaling.formula``). ``fit_blueprint`` finds the formulas, or
says why it cannot; ``Blueprint.costs`` then gives the lines of any candidate between the smallest and the largest
examples. A few blocks are enough for any depth (``estimators.peaks.depth``). Nothing is traced here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from estimators.peaks.depth import Passes, stretched_objects
from estimators.scaling.example import Example, NoBlueprint
from estimators.scaling.formula import RANKS, SAMPLES, Factor, Formula, Monomial, Padded, Points, Shards, Solver, Whole
from estimators.scaling.model_formulas import ModelFormulas, fit_model
from estimators.scaling.moments import (
    LEAST_DEPTH,
    Moments,
    joined,
    moments_of,
    of_update,
    of_whole,
    optimizer_states,
    undominated,
)
from estimators.work import Work

_Class = tuple[str, tuple[int, ...]]
"""Buffers of one category whose sizes agree in every example."""

_STATES = ("parameters", "buffers", "gradients", "optimizer")
"""Categories of the buffers that examples of updates begin with. What else passes leave behind, such as their loss, is
alive during an update too, but those examples follow no passes."""


@dataclass(frozen=True, slots=True)
class CandidateCosts:
    """Costs of many architectures, in bytes.

    ``fixed`` and ``per_sample`` are lines [architectures, moments] as in ``envelope.Line``. ``one_sample`` is the peak
    of a single sample, and ``states`` what is alive when the optimizer begins [architectures]. ``breakdown`` gives the
    bytes by category of the architecture at an index, for a micro-batch.
    """

    fixed: npt.NDArray[np.float64]
    per_sample: npt.NDArray[np.float64]
    one_sample: npt.NDArray[np.float64]
    states: npt.NDArray[np.float64]
    breakdown: Callable[[int, int], dict[str, int]] = field(compare=False, repr=False)
    _largest: dict[int, Whole] = field(default_factory=dict, compare=False, repr=False)

    def curve(self, index: int) -> Lines:
        """The peak curve of the architecture at this ``index``."""
        return Lines(self, index)

    def largest(self, capacity_bytes: int) -> Whole:
        """The largest micro-batch of each architecture whose peak is within ``capacity_bytes``; 0 if there is none.

        Computed for all architectures at once and kept, because callers ask about one after another.
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
    """The peak curve of one architecture (a ``PeakCurve``), from the lines of its blueprint."""

    costs: CandidateCosts
    index: int

    def peak_bytes(self, micro_batch: int) -> int:
        """Peak bytes at this micro-batch."""
        costs, index = self.costs, self.index
        if micro_batch == 1:
            return int(costs.one_sample[index])
        return int((costs.fixed[index] + micro_batch * costs.per_sample[index]).max())

    def parts(self, micro_batch: int) -> dict[str, int]:
        """Bytes of the peak by category at this micro-batch."""
        return self.costs.breakdown(self.index, micro_batch)

    def largest_batch(self, capacity_bytes: int) -> int:
        """Largest micro-batch whose peak is within ``capacity_bytes``; 0 when not even one sample fits."""
        return int(self.costs.largest(capacity_bytes)[self.index])


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Formulas for the memory of all architectures that run the same operations.

    ``sizes`` are the formulas of the size classes, ``categories`` those of the classes, and ``depth`` is the formula of
    the number of blocks. ``passes`` are the moments of passes of two and more samples,
    ``single`` those of one sample (None if the model refuses it), and ``updates`` those of the optimizer's updates.
    ``ends`` are what is alive when the optimizer begins, after two and more samples and after one. ``lowest`` and
    ``highest`` bound the variables, except those that only set the depth. ``even_rows`` are the rows of parameters that
    are divided evenly by the ranks of every example. ``model`` predicts the units of the model; only the plain layout
    has it. ``objects`` are bytes of autograd's objects with ``LEAST_DEPTH`` blocks, and those that each further block
    adds; ``unknown_percent`` is the one of ``estimators.tracing.device``.
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
    categories: tuple[str, ...] = ()
    model: ModelFormulas | None = None
    objects: tuple[int, int] = (0, 0)
    unknown_percent: int = 0

    def predicts(self, points: Points) -> npt.NDArray[np.bool_]:
        """The covered architectures for which the formulas hold; the others must be traced.

        They do not hold if there are too few blocks, if a size would not be whole, or if the ranks do not evenly divide
        rows that they divide in all examples: some shards would be rounded up, and the examples do not show which.
        """
        valid: npt.NDArray[np.bool_] = self.depth.at(points) >= LEAST_DEPTH
        one_each = {**points, SAMPLES: np.ones(len(valid), dtype=np.int64)}
        for formula in self._formulas:
            valid &= formula.is_whole(one_each)
        for rows in self.even_rows if RANKS in points else ():
            valid &= rows.at(points) % points[RANKS] == 0
        return valid

    def covers(self, points: Points) -> npt.NDArray[np.bool_]:
        """The architectures that lie between the examples. The micro-batch and the number of blocks are not limited."""
        inside = np.ones(len(next(iter(points.values()))), dtype=np.bool_)
        for name in self.lowest:
            inside &= (points[name] >= self.lowest[name]) & (points[name] <= self.highest[name])
        return inside

    @property
    def _formulas(self) -> list[Formula]:
        return list(dict.fromkeys(self.sizes))

    def costs(self, points: Points) -> CandidateCosts:
        """Costs of architectures that are covered and for which the formulas hold (``predicts``).

        Raises ``formula.NotWhole`` if a size would not be a whole number.
        """
        one_each = {**points, SAMPLES: np.ones(len(next(iter(points.values()))), dtype=np.int64)}
        values = {formula: formula.at(one_each) for formula in self._formulas}
        nothing = np.zeros(len(one_each[SAMPLES]))
        fixed, slopes = (
            np.array([values[formula] if _grows(formula) == grows else nothing for formula in self.sizes])
            for grows in (False, True)
        )
        single_sizes = fixed + slopes
        depth = self.depth.at(points)
        updates = self.updates.bytes(fixed, depth)
        lines = np.concatenate([self.passes.bytes(fixed, depth), updates])
        slope = np.concatenate([self.passes.bytes(slopes, depth), self.updates.bytes(slopes, depth)])
        after, after_single = (end.bytes(single_sizes, depth)[0] for end in self.ends)
        if self.single is None:
            single = (lines + 2 * slope).max(axis=0)  # counts as two, so that it fits whenever two do
        else:
            kept_bytes = np.maximum(0, after_single - after)
            updated = self.updates.bytes(single_sizes, depth).max(axis=0) + kept_bytes
            single = np.maximum(self.single.bytes(single_sizes, depth).max(axis=0), updated)

        def breakdown(index: int, micro_batch: int) -> dict[str, int]:
            sizes = fixed[:, index] + micro_batch * slopes[:, index]
            return self._parts(sizes, int(depth[index]), micro_batch)

        return CandidateCosts(np.ascontiguousarray(lines.T), np.ascontiguousarray(slope.T), single, after, breakdown)

    def host_costs(self, points: Points) -> CandidateCosts:
        """Like ``costs``, with the objects of autograd, which lie in the memory of a CPU, and what is unknown there."""
        base, per_block = self.objects
        objects = (base + per_block * (self.depth.at(points) - LEAST_DEPTH)).astype(np.float64)
        tensors, factor = self.costs(points), 1 + self.unknown_percent / 100

        def breakdown(index: int, micro_batch: int) -> dict[str, int]:
            parts = tensors.breakdown(index, micro_batch)
            unknown = {"slack": sum(parts.values()) * self.unknown_percent // 100} if self.unknown_percent else {}
            return {**parts, "objects": int(objects[index]), **unknown}

        fixed, per_sample = np.ceil(tensors.fixed * factor), np.ceil(tensors.per_sample * factor)
        one_sample = np.ceil(tensors.one_sample * factor) + objects
        return CandidateCosts(fixed + objects[:, None], per_sample, one_sample, tensors.states, breakdown)

    def _parts(self, sizes: npt.NDArray[np.float64], depth: int, micro_batch: int) -> dict[str, int]:
        """Bytes by category at the moment of the peak, for the ``sizes`` of the classes at this micro-batch."""
        is_single = micro_batch == 1 and self.single is not None
        passes = self.single if is_single and self.single is not None else self.passes
        during, updates = (events.peak(sizes, depth) for events in (passes, self.updates))
        after, after_single = (float(end.peak(sizes, depth)[0]) for end in self.ends)
        kept_bytes = max(0.0, after_single - after) if is_single else 0.0
        highest_bytes, counts = max(during, (updates[0] + kept_bytes, updates[1]), key=lambda peak: peak[0])
        parts = dict.fromkeys(self.categories, 0)
        for category, num_bytes in zip(self.categories, (counts * sizes).tolist(), strict=True):
            parts[category] += int(num_bytes)
        if highest_bytes > sum(parts.values()):
            parts["gradients"] = parts.get("gradients", 0) + int(highest_bytes) - sum(parts.values())
        return parts


def fit_blueprint(points: Points, examples: Sequence[Example]) -> Blueprint:
    """The blueprint of the examples at ``points``; each point is an architecture with its ranks and its micro-batch.

    Raises ``NoBlueprint`` if the events do not align, or if a size follows no formula.
    """
    try:
        solver = Solver(points)
    except ValueError as error:
        raise NoBlueprint(str(error)) from None
    is_whole = examples[0].is_whole
    if len({example.is_whole for example in examples}) > 1:
        raise NoBlueprint("some of the examples have equal blocks, and others do not")
    depth = solver.monomial(np.array([LEAST_DEPTH if is_whole else example.num_blocks for example in examples]))
    if depth is None:
        raise NoBlueprint("the number of blocks does not follow from the parameters")
    logs = [_Logs.of(example) for example in examples]
    if len({log.single is None for log in logs}) > 1:
        raise NoBlueprint("some of the examples refuse a single sample")
    _check_operations(points, [log.all_passes() for log in logs])
    classes: dict[_Class, int] = {}
    coded = _coded_logs(logs, classes)
    factors, padded = _factors(solver, points, examples)
    sizes = _size_formulas(solver, classes, factors, padded)
    bounded = [name for name in points if name != SAMPLES and not _of_depth_alone(name, depth, sizes)]
    num = len(classes)
    states = optimizer_states(coded.updates[-1], coded.updates_of_more[-1], num)
    moments_in = of_whole if is_whole else moments_of
    during, after = moments_in(coded.passes, num)
    single, after_single = moments_in(coded.single, num) if coded.single is not None else (None, after)
    facts = [example.facts for example in examples if example.facts is not None]
    updates = zip(coded.updates, coded.updates_of_more, strict=True)
    pairs = [of_update(few, more, num) for few, more in updates]
    left = after.only([category not in _STATES for category, _ in classes])
    return Blueprint(
        sizes=sizes,
        depth=depth,
        passes=undominated(during.plus(states)),
        single=undominated(single.plus(states)) if single is not None else None,
        updates=undominated(joined(pairs).plus(left)),
        ends=(after.plus(states), after_single.plus(states)),
        lowest={name: int(points[name].min()) for name in bounded},
        highest={name: int(points[name].max()) for name in bounded},
        even_rows=tuple(_even_rows(factors, points)),
        categories=tuple(category for category, _ in classes),
        model=fit_model(solver, examples, facts, factors) if facts else None,
        objects=_objects(examples),
        unknown_percent=examples[0].unknown_percent,
    )


class _Logs(NamedTuple):
    """The logs of one example, or those that all examples share. ``single`` is None if one sample is refused."""

    passes: Passes
    updates: Sequence[Passes]
    updates_of_more: Sequence[Passes]
    single: Passes | None

    @classmethod
    def of(cls, example: Example) -> _Logs:
        return cls(example.passes, example.updates, example.updates_of_more, example.single)

    def all_passes(self) -> list[Passes]:
        """All logs, in the order of the fields."""
        return [self.passes, *self.updates, *self.updates_of_more, *([self.single] if self.single else [])]


def _coded_logs(logs: Sequence[_Logs], classes: dict[_Class, int]) -> _Logs:
    """The logs that all examples share; see ``_coded``. Adds the classes of their sizes to ``classes``."""
    coded = iter([_coded(same, classes) for same in zip(*(log.all_passes() for log in logs), strict=True)])
    return _Logs(
        passes=next(coded),
        updates=[next(coded) for _ in logs[0].updates],
        updates_of_more=[next(coded) for _ in logs[0].updates_of_more],
        single=next(coded, None),
    )


def _size_formulas(
    solver: Solver, classes: Iterable[_Class], factors: Sequence[Factor], padded: Sequence[Factor]
) -> tuple[Formula, ...]:
    """The formula of the size of each class. Those of workspaces may have ``padded`` factors, too."""
    formulas: dict[tuple[bool, tuple[int, ...]], Formula] = {}
    for category, size in classes:
        is_workspace = category == "workspace"
        if (is_workspace, size) not in formulas:
            allowed = [*padded, *factors] if is_workspace else factors
            formulas[is_workspace, size] = _formula(solver, np.array(size), allowed)
    sizes = tuple(formulas[category == "workspace", size] for category, size in classes)
    if not any(map(_grows, sizes)):
        raise NoBlueprint("nothing grows with the micro-batch, so every batch would fit")
    return sizes


def _objects(examples: Sequence[Example]) -> tuple[int, int]:
    """The most bytes of autograd's objects with ``LEAST_DEPTH`` blocks, and those that each further block adds."""
    few = [stretched_objects(example.passes.objects, LEAST_DEPTH) for example in examples if not example.is_whole]
    more = [stretched_objects(example.passes.objects, LEAST_DEPTH + 1) for example in examples if not example.is_whole]
    if not few:
        return max(example.passes.object_bytes for example in examples), 0
    base = max(sum(counts.values()) for counts in few)
    return base, max(sum(counts.values()) for counts in more) - base


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


def _coded(passes: Sequence[Passes], classes: dict[_Class, int]) -> Passes:
    """The log that all examples share; the number of a size class (from 1) stands for each size, and 0 for no bytes."""
    first = passes[0]
    events = []
    for position, (buffer, _) in enumerate(first.events):
        sizes = tuple(pass_.events[position][1] for pass_ in passes)
        same = first.categories[buffer], sizes
        code = 0 if not any(sizes) else classes.setdefault(same, len(classes)) + 1
        events.append((buffer, code))
    marks = [(position, block, Work()) for position, block, _ in first.marks]
    return Passes(tuple(events), first.categories, Work(), first.num_before, first.owners, marks)


def _skeleton(passes: Passes) -> tuple[Any, ...]:
    """Everything in a log except the sizes and the work."""
    events = [(buffer, size > 0) for buffer, size in passes.events]
    marks = [(position, block) for position, block, _ in passes.marks]
    return events, list(passes.categories), passes.num_before, dict(passes.owners), marks


def _factors(solver: Solver, points: Points, examples: Sequence[Example]) -> tuple[list[Factor], list[Padded]]:
    """Factors that sizes may have besides the variables: dimensions with a constant, shards, and units of FSDP; and
    factors that only a workspace may have, the padded gradients of each unit."""

    def dimension_of(values: Iterable[int]) -> Monomial:
        dimension = solver.dimension(np.array(list(values)))
        if dimension is None:
            raise NoBlueprint("a dimension of the model does not follow from the parameters")
        return dimension

    num_dimensions = {len(example.dimensions) for example in examples}
    layers = {tuple((len(shape), block) for shape, block in example.shapes) for example in examples}
    if len(num_dimensions) > 1 or len(layers) > 1:
        raise NoBlueprint("architectures do not have the same parameters")
    factors_there = {
        dimension_of(values): None for values in zip(*(example.dimensions for example in examples), strict=True)
    }
    factors: dict[Factor, None] = {d: None for d in factors_there if d.constant}
    units: dict[int | None, list[tuple[Monomial, Monomial]]] = {}
    if RANKS in points:
        for number, (shape, block) in enumerate(examples[0].shapes):
            rows = dimension_of(example.shapes[number][0][0] if shape else 1 for example in examples)
            row = dimension_of(int(np.prod(example.shapes[number][0][1:], dtype=np.int64)) for example in examples)
            units.setdefault(block, []).append((rows, row))
            factors[Shards(((rows, Monomial(Fraction(1))),))] = None
        factors |= {Shards(tuple(tensors)): None for tensors in units.values()}
    return list(factors), [Padded(tuple(tensors)) for tensors in units.values()]


def _even_rows(factors: Sequence[Factor], points: Points) -> Iterator[Monomial]:
    """Yield the rows of parameters that the ranks of every example divide evenly."""
    rows = {rows: None for factor in factors if isinstance(factor, Shards) for rows, _ in factor.tensors}
    for term in rows:
        if np.all(term.at(points) % points[RANKS] == 0):
            yield term


def _formula(solver: Solver, sizes: Whole, factors: Sequence[Factor]) -> Formula:
    """The formula that gives the sizes. Raises ``NoBlueprint``."""
    formula = solver.formula(sizes, factors)
    if formula is None:
        raise NoBlueprint(f"no formula gives the sizes {sizes.tolist()}")
    samples = dict(formula.monomial.exponents).get(SAMPLES, 0)
    if samples not in (0, 1) or any(SAMPLES in factor.variables for factor in formula.factors):
        raise NoBlueprint(f"the sizes {sizes.tolist()} are not affine in the micro-batch")
    return formula


def _of_depth_alone(name: str, depth: Monomial, sizes: Sequence[Formula]) -> bool:
    """Whether a variable only sets the number of blocks and changes no size; then it may have any value."""
    return name in depth.variables and not any(name in formula.variables for formula in sizes)


def _grows(formula: Formula) -> bool:
    """Whether a formula grows with the micro-batch; if it does, it is proportional to it."""
    return SAMPLES in formula.variables
