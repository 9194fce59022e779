"""The cost of each unit of a model. Units are the part before the blocks, each block, and the part after them.

It is computed from the logs of two micro-batches, cut where a block begins its forward or its backward pass (see
``peaks.depth``). Nothing is traced here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from estimators.peaks.depth import Passes, Segment, homes_of, segments_of
from estimators.peaks.envelope import Line
from estimators.work import Work


@dataclass(frozen=True, slots=True)
class Outline:
    """A unit before it is traced. Its layers can be divided over at most ``most_parts`` ranks (1: they cannot).

    ``num_divided_params`` of its parameters are in layers that data-parallel ranks may divide. FSDP gathers parameters
    in ``gathered_bytes`` each, and adds up gradients in ``reduced_bytes`` each.
    """

    name: str
    num_params: int
    most_parts: int = 1
    num_divided_params: int = 0
    gathered_bytes: int = 4
    reduced_bytes: int = 4


@dataclass(frozen=True, slots=True)
class PassWork:
    """The work of one pass: ``fixed``, and ``per_sample`` for each sample of the micro-batch."""

    fixed: Work
    per_sample: Work

    def at(self, micro_batch: int) -> Work:
        """The work for a micro-batch of this size."""
        return self.fixed + self.per_sample * micro_batch


@dataclass(frozen=True, slots=True)
class Unit:
    """The cost of one of ``count`` equal units in a row, on a single rank. ``name`` is that of the first.

    ``activations`` are the bytes that the forward pass keeps for the backward pass. ``output`` is the bytes passed to
    the next unit (0 for the last). ``num_divided_params`` of the parameters are in layers that data-parallel ranks may
    divide. FSDP gathers parameters in ``gathered_bytes`` each, and adds up gradients in ``reduced_bytes`` each; where
    these are copies in fewer bytes, a rank without FSDP keeps the copies as activations.
    """

    name: str
    num_params: int
    most_parts: int
    forward: PassWork
    backward: PassWork
    activations: Line
    output: Line
    count: int = 1
    num_divided_params: int = 0
    gathered_bytes: int = 4
    reduced_bytes: int = 4

    @property
    def fixed(self) -> Work:
        """Work of both passes that does not depend on the micro-batch."""
        return self.forward.fixed + self.backward.fixed

    @property
    def per_sample(self) -> Work:
        """Work of both passes for each sample."""
        return self.forward.per_sample + self.backward.per_sample


@dataclass(frozen=True, slots=True)
class TracedPasses:
    """The traced passes of a micro-batch of ``samples``.

    ``outputs`` are the bytes that go into the first block, and then those that come out of each block.
    """

    samples: int
    passes: Passes
    outputs: Sequence[int]


def units_of(
    outlines: Sequence[Outline], low: TracedPasses, high: TracedPasses, *, equal_blocks: bool
) -> tuple[Unit, ...]:
    """The units of a model, from passes of two micro-batches. Equal neighbours are one ``Unit``.

    ``outlines`` are those of the part before the blocks, of each block, and of the part after. ``equal_blocks`` says
    whether all blocks are equal. Blocks that do not run once each, one after another, have the costs of all their
    passes. If no block runs, the whole model is one unit.
    """
    num_blocks = len(outlines) - 2
    few, many = (_costs(seen, num_blocks, equal_blocks) or _costs_of_passes(seen, num_blocks) for seen in (low, high))
    if few is None or many is None:
        num_divided = sum(outline.num_divided_params for outline in outlines)
        num_params = sum(outline.num_params for outline in outlines)
        outlines = [
            replace(outlines[0], name="model", num_params=num_params, most_parts=1, num_divided_params=num_divided)
        ]
        few, many = ([_cost_of_all(seen)] for seen in (low, high))
    both = zip(outlines, few, many, strict=True)
    return merged_units(unit_of(outline, less, more, low.samples, high.samples) for outline, less, more in both)


def merged_units(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """The units, with equal neighbours as one ``Unit``, whose name is that of the first."""
    merged: list[Unit] = []
    for unit in units:
        if merged and replace(unit, name=merged[-1].name, count=merged[-1].count) == merged[-1]:
            merged[-1] = replace(merged[-1], count=merged[-1].count + unit.count)
        else:
            merged.append(unit)
    return tuple(merged)


Cost = tuple[Work, Work, int, int]
"""Cost of one micro-batch: work of the forward pass and of the backward pass, bytes of activations, bytes of output."""


def _costs(seen: TracedPasses, num_blocks: int, equal_blocks: bool) -> list[Cost] | None:
    """Costs of the part before the blocks, of each block, and of the part after; None if blocks do not run in order."""
    parts = list(segments_of(seen.passes))
    if not run_in_order(parts, num_blocks) or len(seen.outputs) != num_blocks + 1:
        return None
    kept_bytes = activations(seen.passes, parts)
    bytes_kept = [kept_bytes[part.visit, part.block] for part in parts[: num_blocks + 2]]
    passes = work_of_passes([(part.forward, part.work - part.forward) for part in parts], num_blocks, equal_blocks)
    every = zip(passes, bytes_kept, [*seen.outputs, 0], strict=True)
    return [(forward, backward, num_bytes, output) for (forward, backward), num_bytes, output in every]


def _costs_of_passes(seen: TracedPasses, num_blocks: int) -> list[Cost] | None:
    """Costs as of ``_costs``, for blocks that run in any order and any number of times; None if none of them runs.

    Parts that belong to no block count as the part before the blocks until a block has run, then as the part after.
    """
    parts = list(segments_of(seen.passes))
    places = places_of(parts, num_blocks)
    if not set(places) - {0, num_blocks + 1}:
        return None
    kept_bytes, passes = activations(seen.passes, parts), [(Work(), Work())] * (num_blocks + 2)
    bytes_kept = [0] * len(passes)
    for part, place in zip(parts, places, strict=True):
        forward, backward = passes[place]
        passes[place] = forward + part.forward, backward + (part.work - part.forward)
        bytes_kept[place] += kept_bytes[part.visit, part.block]
    outputs = dict(enumerate(seen.outputs))
    return [(*both, bytes_kept[place], outputs.get(place, 0)) for place, both in enumerate(passes)]


def places_of(parts: Sequence[Segment], num_blocks: int) -> list[int]:
    """The unit that each part belongs to: 0 before the blocks, then each block, then what comes after them."""
    has_run, places = False, []
    for part in parts:
        has_run |= part.block is not None
        places.append(1 + part.block if part.block is not None else (num_blocks + 1) * has_run)
    return places


def run_in_order(parts: Sequence[Segment], num_blocks: int) -> bool:
    """Whether the blocks run one after another, forward and then back."""
    up = list(range(num_blocks))
    return [part.block for part in parts] == [None, *up, None, *up[::-1]]


def work_of_passes(parts: Sequence[tuple[Work, Work]], num_blocks: int, equal_blocks: bool) -> list[tuple[Work, Work]]:
    """Work of the forward and of the backward pass of each unit.

    ``parts`` are the segments of blocks that run in order, with their work before the first backward pass and after.
    """
    ahead = [forward for forward, _ in parts[: num_blocks + 2]]
    back, rest = [backward for _, backward in parts[: num_blocks + 1 : -1]], Work()
    if equal_blocks and num_blocks > 1:
        # No mark begins the backward pass of the part before the blocks: it is logged with the first block's.
        rest, back[0] = back[0] - back[1], back[1]
    return list(zip(ahead, [rest, *back, parts[num_blocks + 1][1]], strict=True))


def activations(passes: Passes, parts: Sequence[Segment]) -> Counter[tuple[int, int | None]]:
    """Bytes of the activations made in each part, by the part's visit and block."""
    sizes = dict(reversed([event for event in passes.events if event[1]]))  # at their first event
    kept_bytes: Counter[tuple[int, int | None]] = Counter()
    for buffer, (visit, block, *_) in homes_of(passes, parts).items():
        if passes.categories[buffer] == "activations":
            kept_bytes[visit, block] += sizes[buffer]
    return kept_bytes


def _cost_of_all(seen: TracedPasses) -> Cost:
    passes = seen.passes
    kept_bytes = activations(passes, list(segments_of(passes))).total()
    return passes.forward, passes.work - passes.forward, kept_bytes, 0


def unit_of(outline: Outline, less: Cost, more: Cost, low: int, high: int) -> Unit:
    """The unit, from its costs at micro-batches of ``low`` and ``high`` samples."""
    forward, backward = (_pass_work(few, many, low, high) for few, many in zip(less[:2], more[:2], strict=True))
    activation_line, output = (_line(few, many, low, high) for few, many in zip(less[2:], more[2:], strict=True))
    sizes = outline.name, outline.num_params, outline.most_parts
    return Unit(
        *sizes,
        forward,
        backward,
        activation_line,
        output,
        num_divided_params=outline.num_divided_params,
        gathered_bytes=outline.gathered_bytes,
        reduced_bytes=outline.reduced_bytes,
    )


def _pass_work(few: Work, many: Work, low: int, high: int) -> PassWork:
    per_sample = (many - few) * (1 / (high - low))
    return PassWork(few - per_sample * low, per_sample)


def _line(few: int, many: int, low: int, high: int) -> Line:
    slope = (many - few) // (high - low)
    return Line(slope, few - slope * low)
