"""Traces training steps of a model on fake CPU tensors: which buffers are allocated and freed, and when. No memory.

``trace`` turns the logs of a few micro-batches into the peak on one rank for any of them. The model comes as
callables; this module knows no workload, and how a layout is applied to a model is its caller's as well. It does not
see what is not a tensor: allocator slack, Python objects, buffers inside gloo (see ``estimators.memory``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from estimators.model import Layout
from estimators.peaks.depth import Passes, stretch
from estimators.peaks.envelope import Envelope, EventLog, Line, PeakTable, fit
from estimators.peaks.step_log import StepLog, log_of
from estimators.peaks.units import Outline, Seen, Unit, units_of
from estimators.scaling.example import Example
from estimators.trace import Trace
from estimators.tracing.session import Recipe, Session, num_passes
from estimators.work import StepWork, Work

_Seen = TypeVar("_Seen")


def trace(recipe: Recipe, layout: Layout, batch: int, equal_blocks: bool | None = None) -> Trace:
    """Trace ``layout`` for micro-batches up to ``batch`` samples, and beyond where the peak is affine.

    One model takes passes of 2, ``batch``, 3 and 1 samples, each from the same state, and updates. When the passes do
    not lie on lines, powers of two up to ``batch`` are traced one by one instead, two steps each, and the curve is a
    table of them.

    Of a model of more equal blocks than ``TRACED_BLOCKS`` only so many are traced, and their logs are stretched, unless
    that is known to fail: ``equal_blocks`` is what a trace of another layout has found, None where there was none. Then
    a forward pass of the whole model must come out of that of the few blocks; what is left to believe is that blocks
    which do the same forward with 2 samples do the same backward, with others, and under other layouts.
    """
    largest = max(batch, 4)
    short = equal_blocks is not False and layout.divides_blocks_alike
    steps = _stretched(recipe, layout, largest, verify=equal_blocks is None) if short else None
    stretched = steps is not None
    steps = steps or _whole(recipe, layout, largest)
    envelope = _curve(steps)
    log = _log(steps) if envelope is not None else None
    curve = envelope if envelope is not None else _table(recipe, layout, batch)
    second = steps.passes[2]
    passes_of_two = second.work * (1 / num_passes(layout))
    passes_of_all = steps.passes[largest].work * (1 / num_passes(layout))
    per_sample = (passes_of_all - passes_of_two) * (1 / (largest - 2))
    work = StepWork(passes_of_two - per_sample * 2, per_sample, steps.update_work)
    structure = _structure(second, curve)
    return Trace(batch, structure, steps.num_params, second.held_after, curve, work, stretched, log, steps.units)


@dataclass(frozen=True, slots=True)
class _Steps:
    """What one layout was seen to do. ``passes`` are by their samples: 2, 3 and more; ``single`` is of one sample.

    ``first_peak`` is all that the very first step needs beyond what later passes show, ``update_peak`` the larger of
    those of the first two updates, and ``update`` the events of what the second makes for itself.
    """

    passes: Mapping[int, Passes]
    single: Passes | None
    first_peak: Line
    update_peak: Line
    update_work: Work
    update: EventLog
    num_params: int
    units: tuple[Unit, ...]


def _whole(recipe: Recipe, layout: Layout, largest: int) -> _Steps:
    with Session(recipe, layout) as session:
        session.spread()
        first, second = session.step(2), session.step(2)
        passes = {2: second.passes} | {size: session.passes(size) for size in (largest, 3)}
        first_peak = max(first.passes.peak, first.update.peak)
        update_peak = max(first.update.peak, second.update.peak)
        single, num_params = _allowed(session, lambda: session.passes(1)), session.num_params
        outputs = {size: session.outputs(size) for size in passes}
        alike = layout == Layout() and session.alike
    units = _units(session.outlines, passes, outputs, alike=alike) if layout == Layout() else ()
    return _Steps(passes, single, first_peak, update_peak, second.update.work, second.made, num_params, units)


def _stretched(recipe: Recipe, layout: Layout, largest: int, *, verify: bool) -> _Steps | None:
    """Of a few blocks, as if there were all; None where that cannot be done."""
    with Session(recipe, layout) as session:
        if not session.can_be_shortened:
            return None
        try:
            forward = session.forward(2) if verify else None
            session.shorten()
            few: dict[int, Passes] = {}
            if forward is not None:
                plain = session.passes(2)
                if (whole := stretch(plain, session.num_blocks)) is None or not whole.begins_with(forward):
                    return None
                few = {2: plain} if layout == Layout() else {}
            session.spread()
            few |= {size: session.passes(size) for size in (2, largest, 3) if size not in few}
        except Exception:  # it does not work with fewer blocks; or not at all, and then the whole one will tell why
            return None
        few_single = _allowed(session, lambda: session.passes(1))
        session.grow()
        first, second = session.update(), session.update()
        num_blocks, num_params = session.num_blocks, session.num_params
        outputs = {size: session.outputs(size) for size in few}

    def stretched(passes: Passes) -> Passes | None:
        longer = stretch(passes, num_blocks)
        return longer.after(second.passes.held("optimizer")) if longer is not None else None

    passes = {size: longer for size, one in few.items() if (longer := stretched(one)) is not None}
    single = stretched(few_single) if few_single is not None else None
    if len(passes) < len(few) or (single is None) != (few_single is None):
        return None
    # Gradients differ where they are not of the size of their parameters.
    if any(getattr(passes[2], name) != getattr(second.passes, name) for name in ("held_before", "gradient_bytes")):
        return None
    update_peak = max(first.update.peak, second.update.peak)
    units = _units(session.outlines, passes, outputs, alike=True) if layout == Layout() else ()
    return _Steps(passes, single, first.update.peak, update_peak, second.update.work, second.made, num_params, units)


def _units(
    outlines: Sequence[Outline], passes: Mapping[int, Passes], outputs: Mapping[int, Sequence[int]], *, alike: bool
) -> tuple[Unit, ...]:
    low, high = (Seen(size, passes[size], outputs[size]) for size in (2, max(passes)))
    return units_of(outlines, low, high, alike=alike)


def _curve(steps: _Steps) -> Envelope | None:
    """None where the passes are not affine in the micro-batch, or the first step needs more than they say."""
    of_two, single, floor = steps.passes[2], steps.single, steps.update_peak
    # The optimizer does the same after every micro-batch if it begins with the same gradients, and nothing else.
    if len({(one.held_before, one.held_after) for one in steps.passes.values()}) > 1:
        return None
    if single is not None:
        # A sum over a dimension of size 1 is a view: gradients of a single sample may keep larger buffers alive.
        kept = max(0, single.held_after - of_two.held_after)
        one_sample = max(single.peak, floor.plus("gradients", kept))
    else:
        one_sample = max(of_two.peak, floor)
    curve = fit({size: one.events for size, one in steps.passes.items()}, floor, one_sample, of_two.categories)
    return curve if curve is not None and steps.first_peak.fixed_bytes <= curve.peak_bytes(2) else None


def _log(steps: _Steps) -> StepLog:
    """Of steps on lines. A single sample counts as two where the model refuses it."""
    return log_of(steps.passes, steps.single or steps.passes[2], steps.update)


def _allowed(session: Session, of_one_sample: Callable[[], _Seen]) -> _Seen | None:
    """None where the model refuses a single sample, as batch normalisation does."""
    try:
        return of_one_sample()
    except Exception:
        session.forget()
        return None


def _table(recipe: Recipe, layout: Layout, batch: int) -> PeakTable:
    """A single sample counts as two when the model refuses it, so that it fits wherever two do and is not preferred."""
    sizes = sorted({1 << power for power in range(1, batch.bit_length())} | {max(batch, 2)})
    points = [(size, trace_peak(recipe, layout, size)) for size in sizes]
    try:
        single_peak = trace_peak(recipe, layout, 1)
    except Exception:
        single_peak = points[0][1]
    return PeakTable(((1, single_peak), *points))


def trace_peak(recipe: Recipe, layout: Layout, micro_batch: int) -> Line:
    """The peak of this micro-batch alone, from two steps of the whole model: no shortcut."""
    with Session(recipe, layout) as session:
        session.spread()
        steps = [session.step(micro_batch), session.step(micro_batch)]
    return max(max(step.passes.peak, step.update.peak) for step in steps)


def _structure(passes: Passes, curve: Envelope | PeakTable) -> str:
    # Not what is freed: autocast gives back what it has cast in an order that changes from run to run.
    made = [size for _, size in passes.events[passes.num_before :] if size]
    text = json.dumps([torch.__version__, passes.held_before, made, curve.to_json()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def examples(recipe: Recipe, layout: Layout, micro_batch: int) -> tuple[Example, Example]:
    """Two for blueprints (see ``scaling.blueprint``): of steps of one micro-batch, and of those that accumulate.

    Raises ValueError where a few blocks do not tell of all.
    """
    with Session(recipe, layout) as session:
        if not session.can_be_shortened:
            raise ValueError("there are too few blocks, or they are not alike")
        session.shorten()
        shapes = session.shapes
        dimensions = [size for shape, _ in shapes for size in shape] + session.sample_dimensions
        session.spread()
        logs = session.one_and_two(micro_batch)
        singles = _allowed(session, lambda: session.one_and_two(1)) or (None, None)
        updates = session.update().update, session.update().update
        session.grow(1)
        more = session.update().update, session.update().update
        num_blocks = session.num_blocks
    whole, parts = (
        Example(num_blocks, shapes, tuple(dimensions), *log, updates, more) for log in zip(logs, singles, strict=True)
    )
    return whole, parts
