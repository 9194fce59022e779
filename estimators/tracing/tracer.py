"""Traces training steps of a model on fake CPU tensors: which buffers are allocated and freed, and when.

The traced tensors take no memory. ``trace`` turns the logs of a few micro-batches into the peak on one rank for any
micro-batch. The model comes as callables: this module knows no workload, and its caller decides how a layout is applied
to a model. It does not see memory outside of tensors: allocator slack, Python objects, buffers inside gloo (see
``estimators.memory``).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from estimators.model import Divisions, Layout, mib_in_words
from estimators.peaks.depth import Passes, segments_of, stretch
from estimators.peaks.envelope import Envelope, EventLog, Line, PeakTable, fit_envelope, follow_lines
from estimators.peaks.step_log import StepLog, log_of
from estimators.peaks.units import Outline, TracedPasses, Unit, run_in_order, units_of
from estimators.scaling.example import Example, ModelFacts
from estimators.trace import Trace
from estimators.tracing.session.opened import ENDS, UNEVEN
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.session.session import Evaluated, Session, num_passes
from estimators.traits import Traits
from estimators.work import StepWork, Work

log = logging.getLogger("scamp.tracing")
_Seen = TypeVar("_Seen")

NUM_DRAWS = 5
"""How many times a model is traced that decides by random numbers, for example to drop layers."""


def trace(recipe: Recipe, layout: Layout, batch: int, equal_blocks: bool | None = None) -> Trace:
    """Trace ``layout`` for micro-batches up to ``batch`` samples, and beyond if the peak is affine. If the layout has
    shares, the micro-batch is the first of them, and others are not asked for.

    One model runs passes of 2, ``batch``, 3 and 1 samples, each from the same state, and updates. If these do not lie
    on lines, so do passes of all micro-batches that plans have (see ``_sizes``). If the peaks of all do not lie on
    lines either, the curve is a table of them. A model whose states depend on the micro-batch takes two steps of each.

    If a model has more than ``TRACED_BLOCKS`` equal blocks, only that many are traced and their logs are stretched,
    unless this is known to fail: ``equal_blocks`` is the ``Trace.equal_blocks`` of another layout, None if there is
    none. If it is None, the stretched forward pass must equal one of the whole model. One assumption is not verified:
    blocks that do the same in a forward pass of 2 samples also do the same in backward passes, with other numbers of
    samples, and under other layouts.

    A model that decides by random numbers is traced with several draws, two of them of the smallest and of the largest
    numbers, by which layers are all dropped or all kept. The largest peak counts.
    """
    first, model = _traced(recipe, layout, batch, equal_blocks, 0)
    largest = first
    if model.has_drawn:
        draws = (*ENDS, *range(1, NUM_DRAWS - len(ENDS)))
        others = [_traced(recipe, layout, batch, equal_blocks, draw)[0] for draw in draws]
        if any(other.structure != first.structure for other in others):  # they decide about memory
            largest = max([first, *others], key=lambda trace_: trace_.curve.peak_bytes(batch))
            largest = replace(largest, assumptions=(*largest.assumptions, f"the largest of {NUM_DRAWS} random draws"))
    if not model.even_choices:
        return largest
    same, _ = _traced(recipe, layout, batch, equal_blocks, UNEVEN)
    return _take_larger(largest, same, model.even_choices, layout)


def _take_larger(even: Trace, same: Trace, assumed: str, layout: Layout) -> Trace:
    """The trace that needs more memory: with the model's own choices (of experts, say) ``even``, or all the ``same``.

    In the plain layout its assumptions name both peaks, in place of the one that is ``assumed`` if they are even."""
    larger = max(even, same, key=lambda trace_: trace_.curve.peak_bytes(trace_.batch))
    peaks = [mib_in_words(trace_.curve.peak_bytes(trace_.batch)) for trace_ in (even, same)]
    kept = tuple(assumption for assumption in even.assumptions if assumption != assumed)
    with_peaks = (f"{assumed}: {peaks[0]}, or {peaks[1]} if all are the same",) if layout == Layout() else ()
    return replace(larger, assumptions=kept + with_peaks)


def _traced(recipe: Recipe, layout: Layout, batch: int, equal_blocks: bool | None, draw: int) -> tuple[Trace, _Model]:
    """The trace with one draw, and the model as it was seen."""
    most = layout.shares[0] if layout.shares else batch
    largest = max(most, 4)
    short = equal_blocks is not False and layout.treats_blocks_equally
    from_few = _steps_of_few_blocks(recipe, layout, largest, draw, verify=equal_blocks is None) if short else None
    steps = from_few or _whole(recipe, layout, largest, draw)
    curve = _curve(steps) or _table(recipe, layout, most, draw, batch)
    log = _log(steps) if isinstance(curve, Envelope) else None
    second = steps.passes[2]
    passes_of_two, of_step = _split_work(second.work, layout)
    passes_of_all, _ = _split_work(steps.passes[largest].work, layout)
    per_sample = (passes_of_all - passes_of_two) * (1 / (largest - 2))
    work = StepWork(passes_of_two - per_sample * 2, per_sample, steps.updates.work + of_step)
    structure = _structure(second, curve)
    evaluation = _evaluation_curve(recipe, layout, most, draw, steps.evaluations)
    kept_bytes = steps.evaluations.kept_bytes if steps.evaluations is not None else 0
    return (
        Trace(
            batch=batch,
            structure=structure,
            num_params=steps.model.num_params,
            frozen_bytes=steps.model.frozen_bytes,
            state_bytes=second.held_after,
            curve=curve.plus("buffers", kept_bytes),
            work=work,
            equal_blocks=from_few is not None,
            log=log,
            units=steps.units,
            divisions=steps.model.divisions,
            assumptions=steps.model.assumptions,
            traits=steps.model.traits,
            evaluation=evaluation,
            in_order=layout != Layout() or steps.in_order,
            object_bytes=_passes_of(steps, most).object_bytes,
            unknown_percent=recipe.device.unknown_percent,
        ),
        steps.model,
    )


def _split_work(work: Work, layout: Layout) -> tuple[Work, Work]:
    """The work of one of the micro-batches of a step, and that which its last one does for all: to average gradients"""
    of_step = Work(collectives=work.collectives) if layout.averages_gradients else Work()
    return (replace(work, collectives=()) if of_step.collectives else work) * (1 / num_passes(layout)), of_step


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps traced under one layout."""

    passes: Mapping[int, Passes]
    """By their number of samples: 2, 3 and more."""
    single: Passes | None
    """Passes of one sample; None if the model refuses it."""
    updates: _Updates
    units: tuple[Unit, ...]
    evaluations: _Evaluations | None
    """Evaluations of the same model."""
    model: _Model

    @property
    def in_order(self) -> bool:
        """Whether the blocks run once each, one after another, or there are none."""
        num_blocks = self.model.num_blocks
        return not num_blocks or run_in_order(list(segments_of(self.passes[2])), num_blocks)


@dataclass(frozen=True, slots=True)
class _Updates:
    """The first two updates of a model.

    ``first_peak`` is the peak of the very first step where later passes may not show it. ``peak`` is the larger peak of
    both updates. ``work`` is that of the second one, and ``state_events`` are those of the buffers that it makes.
    """

    first_peak: Line
    peak: Line
    work: Work
    state_events: EventLog


@dataclass(frozen=True, slots=True)
class _Model:
    """The model as a session has seen it: read at its end, when all choices have been made.

    ``even_choices`` is the one of its ``assumptions`` that choices by the model are even; empty if it makes none.
    """

    num_params: int
    frozen_bytes: int
    num_blocks: int
    divisions: Divisions
    assumptions: tuple[str, ...]
    traits: Traits
    even_choices: str
    has_drawn: bool


def _model_of(session: Session) -> _Model:
    return _Model(
        num_params=session.num_params,
        frozen_bytes=session.frozen_bytes,
        num_blocks=session.num_blocks,
        divisions=session.divisions,
        assumptions=tuple(session.assumptions),
        traits=session.traits,
        even_choices=session.even_choices,
        has_drawn=session.has_drawn,
    )


def _passes_of(steps: _Steps, batch: int) -> Passes:
    """The passes of ``batch`` samples, or of as few more as were traced."""
    if batch == 1:
        return steps.single or steps.passes[2]
    return steps.passes[min(size for size in steps.passes if size >= batch)]


@dataclass(frozen=True, slots=True)
class _Evaluations:
    """The evaluations traced under one layout, by their number of samples: 1 (unless the model refuses it), 2, 3 and
    more. ``first`` is the very first one, and ``kept_bytes`` is what it leaves behind."""

    passes: Mapping[int, Passes]
    first: Passes
    kept_bytes: int = 0


def _evaluated(session: Session, largest: int) -> _Evaluations | None:
    """Evaluations of up to ``largest`` samples, None if there are none; call it after all steps of the session."""
    if not session.has_evaluation:
        return None
    first, held_after = session.evaluation(2), session.held_bytes()
    kept_bytes = 0 if first.is_cut else max(0, held_after - first.passes.held_before)
    of_two = session.evaluation(2) if kept_bytes else first
    single = session.evaluation(1)
    seen = _of_sizes(lambda size: session.evaluation(size).passes, largest, {2: of_two.passes})
    if first.is_cut or not single.is_cut:
        seen[1] = single.passes
    return _Evaluations(seen, first.passes, kept_bytes)


def _of_sizes(passes_of: Callable[[int], Passes], largest: int, seen: Mapping[int, Passes]) -> dict[int, Passes]:
    """Passes of 2, 3 and ``largest`` samples; also of other sizes if these do not lie on lines. Some are ``seen``."""
    passes = {size: seen[size] if size in seen else passes_of(size) for size in (2, largest, 3)}
    if not follow_lines(*_logs(passes)):
        passes |= {size: passes_of(size) for size in _sizes(largest) if size not in passes}
    return passes


def _logs(passes: Mapping[int, Passes]) -> tuple[dict[int, EventLog], dict[int, Sequence[str]]]:
    """The events of each of these passes, and the categories of its buffers."""
    return (
        {size: seen.events for size, seen in passes.items()},
        {size: seen.categories for size, seen in passes.items()},
    )


def _sizes(batch: int) -> list[int]:
    """Micro-batches of 2 and more to trace where peaks lie on no lines: those that plans divide the batch into, and
    powers of two, as pages show the largest one that fits."""
    powers = {1 << power for power in range(1, batch.bit_length())}
    return sorted(powers | {size for size in range(2, batch + 1) if batch % size == 0} | {max(batch, 2)})


def _evaluated_alone(recipe: Recipe, layout: Layout, largest: int, draw: int) -> _Evaluations | None:
    """Traces the evaluation of the whole model, after two steps that are not looked at."""
    with Session(recipe, layout, draw) as session:
        session.spread()
        for _ in range(2):
            session.step(2)
        return _evaluated(session, largest)


def _whole(recipe: Recipe, layout: Layout, largest: int, draw: int) -> _Steps:
    with Session(recipe, layout, draw) as session:
        session.spread()
        first, second = session.step(2), session.step(2)
        passes = _of_sizes(session.passes, largest, {2: second.passes})
        single = _allowed(session, lambda: session.passes(1))
        outputs = {size: session.outputs(size) for size in passes}
        evaluations = _evaluated(session, largest)
        equal_blocks = layout == Layout() and session.has_equal_blocks
        model = _model_of(session)
    units = _units(session.outlines, passes, outputs, equal_blocks=equal_blocks) if layout == Layout() else ()
    first_peak = max(first.passes.peak, first.update.peak)
    peak = max(first.update.peak, second.update.peak)
    updates = _Updates(first_peak, peak, second.update.work, second.state_events)
    return _Steps(passes, single, updates, units, evaluations, model)


def _steps_of_few_blocks(recipe: Recipe, layout: Layout, largest: int, draw: int, *, verify: bool) -> _Steps | None:
    """The steps of a few blocks, stretched to all blocks; None if that is not possible."""
    with Session(recipe, layout, draw) as session:
        if not session.can_be_shortened:
            return None
        try:
            few, verified = _passes_of_few_blocks(session, layout, largest, verify=verify)
        except Exception:  # if nothing works, tracing the whole model raises the error
            log.debug("a few blocks cannot be traced alone, so the whole model is", exc_info=True)
            return None
        if not few or session.has_sparse_gradients:  # those of updates without passes are dense
            return None
        few_single = _allowed(session, lambda: session.passes(1))
        evaluated = _evaluated(session, largest) if verified else None
        session.grow()
        first, second = session.update(), session.update()
        outputs = {size: session.outputs(size) for size in few}
        model = _model_of(session)

    def to_all_blocks(passes: Passes) -> Passes | None:
        longer = stretch(passes, model.num_blocks)
        return longer.after(second.passes.held("optimizer")) if longer is not None else None

    passes = {size: longer for size, step in few.items() if (longer := to_all_blocks(step)) is not None}
    single = to_all_blocks(few_single) if few_single is not None else None
    if len(passes) < len(few) or (single is None) != (few_single is None):
        return None
    # The gradients differ if they do not have the sizes of their parameters.
    if any(getattr(passes[2], name) != getattr(second.passes, name) for name in ("held_before", "gradient_bytes")):
        return None
    # These updates followed no passes, which leave their loss behind.
    left = max(0, passes[2].held_after - passes[2].held_before - passes[2].gradient_bytes)
    peaks = (step.update.peak for step in (first, second))
    first_peak, second_peak = (peak.plus("activations", left) if left else peak for peak in peaks)
    updates = _Updates(first_peak, max(first_peak, second_peak), second.update.work, second.state_events)
    units = _units(session.outlines, passes, outputs, equal_blocks=True) if layout == Layout() else ()
    evaluations = _evaluations_of_all_blocks(evaluated, to_all_blocks)
    return _Steps(passes, single, updates, units, evaluations, model)


def _passes_of_few_blocks(
    session: Session, layout: Layout, largest: int, *, verify: bool
) -> tuple[dict[int, Passes], bool]:
    """Shortens the model and spreads it; returns its passes by their number of samples, and whether it evaluates alike.

    With ``verify`` the passes of few blocks are compared with the forward pass of the whole model. No passes if they
    differ.
    """
    forward = session.forward_log(2) if verify else None
    evaluation = session.evaluation(2) if verify and session.has_evaluation else None
    session.shorten()
    few: dict[int, Passes] = {}
    if forward is not None:
        plain = session.passes(2)
        longer = stretch(plain, session.num_blocks)
        if longer is None or not longer.begins_with(forward):
            return {}, False
        few = {2: plain} if layout == Layout() else {}
    verified = evaluation is None or _stretches_to(session.evaluation(2), evaluation, session.num_blocks)
    session.spread()
    return _of_sizes(session.passes, largest, few), verified


def _stretches_to(few: Evaluated, evaluated: Evaluated, num_blocks: int) -> bool:
    """Whether the evaluation of a few blocks, stretched, is that of the whole model."""
    longer = stretch(few.passes, num_blocks)
    return longer is not None and longer.equals(evaluated.passes)


def _evaluations_of_all_blocks(
    few: _Evaluations | None, to_all_blocks: Callable[[Passes], Passes | None]
) -> _Evaluations | None:
    """The evaluations of a few blocks, each stretched ``to_all_blocks``; None if one cannot be."""
    if few is None or (first := to_all_blocks(few.first)) is None:
        return None
    passes = {size: longer for size, pass_ in few.passes.items() if (longer := to_all_blocks(pass_)) is not None}
    return _Evaluations(passes, first, few.kept_bytes) if len(passes) == len(few.passes) else None


def _units(
    outlines: Sequence[Outline],
    passes: Mapping[int, Passes],
    outputs: Mapping[int, Sequence[int]],
    *,
    equal_blocks: bool,
) -> tuple[Unit, ...]:
    low, high = (TracedPasses(size, passes[size], outputs[size]) for size in (2, max(passes)))
    return units_of(outlines, low, high, equal_blocks=equal_blocks)


def _curve(steps: _Steps) -> Envelope | PeakTable | None:
    """The envelope, or a table of the peaks if they lie on no lines.

    None if states depend on the micro-batch, or the first step needs more than later ones.
    """
    of_two, single, floor = steps.passes[2], steps.single, steps.updates.peak
    # The optimizer does the same after every micro-batch if it begins with the same gradients alone.
    if len({(step.held_before, step.held_after) for step in steps.passes.values()}) > 1:
        return None
    if single is not None:
        # A sum over a dimension of size 1 is a view: gradients of a single sample may keep larger buffers alive.
        kept_bytes = max(0, single.held_after - of_two.held_after)
        one_sample = max(single.peak, floor.plus("gradients", kept_bytes))
    else:
        one_sample = max(of_two.peak, floor)
    curve = _fitted(steps.passes, floor, one_sample)
    return curve if steps.updates.first_peak.fixed_bytes <= curve.peak_bytes(2) else None


def _fitted(passes: Mapping[int, Passes], floor: Line, one_sample: Line) -> Envelope | PeakTable:
    """The envelope of passes of 2 and more samples; a table of their peaks if these lie on no lines."""
    logs, categories = _logs(passes)
    points = (1, one_sample), *((size, max(passes[size].peak, floor)) for size in sorted(passes))
    is_convex = follow_lines(logs, categories, tensors=True)
    return fit_envelope(logs, floor, one_sample, categories) or PeakTable(points, is_convex)


def _evaluation_curve(
    recipe: Recipe, layout: Layout, batch: int, draw: int, seen: _Evaluations | None
) -> Envelope | PeakTable | None:
    """The peak of an evaluation, with the optimizer's states alive and no gradients; None if there is none.

    ``seen`` are evaluations of up to ``batch`` samples. If it is None, they are traced with the whole model.
    """
    if recipe.make_evaluation is None:
        return None
    seen = seen or _evaluated_alone(recipe, layout, max(batch, 4), draw)
    assert seen is not None
    floor = max(seen.first.peak, seen.passes[2].peak)  # the first may also compute what it keeps
    one_sample = max(seen.passes.get(1, seen.passes[2]).peak, floor if seen.kept_bytes else Line(0, 0))
    return _fitted({size: pass_ for size, pass_ in seen.passes.items() if size > 1}, floor, one_sample)


def _log(steps: _Steps) -> StepLog:
    """The step log of affine steps. A single sample counts as two if the model refuses it."""
    return log_of(steps.passes, steps.single or steps.passes[2], steps.updates.state_events)


def _allowed(session: Session, of_one_sample: Callable[[], _Seen]) -> _Seen | None:
    """The result for one sample; None if the model refuses a single sample, as batch normalisation does."""
    try:
        return of_one_sample()
    except Exception:
        log.debug("the model refuses a single sample", exc_info=True)
        session.forget()
        return None


def _table(recipe: Recipe, layout: Layout, most: int, draw: int, batch: int) -> PeakTable:
    """The table of traced peaks. If the model refuses a single sample, it counts as two, so that it fits whenever two
    do and is not preferred."""
    points = [(size, trace_peak(recipe, layout, size, draw, batch)) for size in _sizes(most)]
    try:
        single_peak = trace_peak(recipe, layout, 1, draw, batch)
    except Exception:
        log.debug("the model refuses a single sample", exc_info=True)
        single_peak = points[0][1]
    return PeakTable(((1, single_peak), *points))


def trace_peak(recipe: Recipe, layout: Layout, micro_batch: int, draw: int = 0, batch: int | None = None) -> Line:
    """The peak of this micro-batch alone, from two steps of the whole model, without any shortcut.

    ``batch`` is that of a step (see ``Session``).
    """
    with Session(recipe, layout, draw, batch=batch) as session:
        session.spread()
        steps = [session.step(micro_batch), session.step(micro_batch)]
    return max(max(step.passes.peak, step.update.peak) for step in steps)


def _structure(passes: Passes, curve: Envelope | PeakTable) -> str:
    # Frees are left out: autocast frees what it has cast in an order that changes from run to run.
    sizes = [size for _, size in passes.events[passes.num_before :] if size]
    text = repr([torch.__version__, passes.held_before, sizes, curve])
    return hashlib.sha256(text.encode()).hexdigest()


def examples(recipe: Recipe, layout: Layout, micro_batch: int) -> tuple[Example, Example]:
    """Two examples for blueprints (see ``scaling.blueprint``): steps of one micro-batch, and steps that accumulate.

    Raises ValueError for a model that formulas cannot follow: one that makes choices of its own, or trains in phases,
    and, on the plain layout, one with hints, which constrain the plans of each candidate.
    """
    with Session(recipe, layout, itemised=layout == Layout()) as session:
        if session.traits.has_phases:
            raise ValueError("the model trains in phases")
        if session.divisions.constraints.limits:
            raise ValueError("the model has hints, which formulas do not know")
        is_whole = not session.can_be_shortened
        equal_blocks = session.has_equal_blocks
        if not is_whole:
            session.shorten()
        dimensions = [size for shape, _ in session.shapes for size in shape] + session.sample_dimensions
        session.spread()
        shapes = session.shapes
        dimensions += [size for shape, _ in shapes for size in shape] if layout.tp > 1 else []
        logs = session.one_and_two(micro_batch)
        outputs = session.traced_outputs(micro_batch)
        singles = _allowed(session, lambda: session.one_and_two(1)) or (None, None)
        updates = session.update().update, session.update().update
        if not is_whole:
            session.grow(1)
        more = (session.update().update, session.update().update) if not is_whole else updates
        num_blocks = session.num_blocks
        if session.makes_choices or session.has_drawn:
            raise ValueError("the model makes choices of its own")
        if session.has_sparse_gradients:
            raise ValueError("the model has sparse gradients, and updates without passes have dense ones")
    facts = ModelFacts(tuple(session.outlines), session.divisions, tuple(outputs), equal_blocks)
    all_examples, parts = (
        Example(
            num_blocks,
            shapes,
            tuple(dimensions),
            *log,
            updates,
            more,
            is_whole,
            unknown_percent=recipe.device.unknown_percent,
        )
        for log in zip(logs, singles, strict=True)
    )
    return replace(all_examples, facts=facts) if layout == Layout() else all_examples, parts
