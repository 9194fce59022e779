"""The best plan that people make by hand: all degrees, micro-batches and options that are alike for all units.

Plain ones are FSDP over all ranks, tensor × data parallelism, and 1F1B × tensor × data parallelism, each with and
without recompute of all blocks. Others also combine tensor parallelism with sequence parallelism and FSDP, share
optimizer states between replicas (ZeRO-1), and compute the scores of all attentions again (selective recompute). Stages
have equal numbers of units or, if that is faster, equal times. A model without tensor parallelism (Evoformer) divides
rows instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf

from benchmarks.planning.gpt import powers_of_two
from benchmarks.planning.unlike.drafts import Draft, Planned, are_possible, best_of, estimate, fits_in_1f1b, flat
from benchmarks.planning.unlike.emerging import Model
from benchmarks.planning.unlike.grid import NUM_RANKS, Grid, Inner, Kept, States, Style
from placement.pipelining.cuts import CutTarget, Piece, best_cut, even_cut

MICRO_BATCHES = (1, 2, 4, 8, 16)
KEPTS = (Kept(), Kept(1), Kept(scores=False))
NUM_SIMULATED = 3


def best_hand_plan(model: Model, is_plain: bool) -> Planned | None:
    """The fastest plan that fits, of plain or of all ones; None if none does.

    Of pipelines, those that a formula finds fastest are simulated.
    """
    plans = [plan for plan in _flat_plans(model, is_plain) if plan]
    best = min(plans, key=lambda plan: plan.seconds, default=None)
    below = best.seconds if best else inf
    pipelines = (draft for draft in _pipelines(model, is_plain, below) if fits_in_1f1b(draft))
    piped = best_of([(estimate(draft), words_of(draft), draft) for draft in pipelines], NUM_SIMULATED, below)
    return piped or best


def words_of(draft: Draft) -> str:
    """Degrees, micro-batches and options of a plan that is alike for all units."""
    grid = draft.grid
    pp = NUM_RANKS // grid.num_outer // grid.num_inner
    return said(draft.schedule if pp > 1 else "", pp, grid, draft.styles[1], draft.samples, draft.model.batch)


def said(schedule: str, pp: int, grid: Grid, style: Style, samples: int, batch: int) -> str:
    """Such as ``1f1b PP ×4 · TP ×8, recompute, 64 × 1``: the last are micro-batches × samples on each replica."""
    inner = {"layers": "TP", "layers and tokens": "TP+SP", "space": "rows", "data": "DP"}[style.inner]
    outer = {"copies": "DP", "ZeRO-1": "ZeRO-1", "FSDP": "FSDP"}[style.states]
    degrees = [(f"{schedule} PP", pp), (inner, grid.num_inner), (outer, grid.num_outer)]
    words = " · ".join(f"{name} ×{num}".strip() for name, num in degrees if num > 1)
    kept = f", {style.kept}" if str(style.kept) else ""
    return f"{words}{kept}, {batch // samples} × {samples // grid.num_outer}"


def inners_of(model: Model, degree: int, is_plain: bool = False) -> tuple[Inner, ...]:
    """How people divide the layers of a model over ranks."""
    if degree == 1:
        return ("data",)
    if model.units[1].most_parts == 1:
        return ("space",)
    return ("layers",) if is_plain else ("layers", "layers and tokens")


def alike(model: Model, style: Style) -> tuple[Style, ...]:
    """The style for all units; the ends have no tokens to divide, and are not recomputed."""
    end = Style("layers" if style.inner == "layers and tokens" else style.inner, Kept(), style.states)
    return tuple(style if unit.is_block else end for unit in model.units)


def _flat_plans(model: Model, is_plain: bool) -> Iterator[Planned | None]:
    kepts = (Kept(), Kept(1)) if is_plain else KEPTS
    for degree in powers_of_two(NUM_RANKS):
        grid = Grid(NUM_RANKS // degree, degree, degree)
        states: tuple[States, ...] = ("copies", "ZeRO-1", "FSDP")
        if is_plain:
            states = ("copies", "FSDP") if degree == 1 else ("copies",)
        for inner, micro_batch, kept, state in product(
            inners_of(model, degree, is_plain), MICRO_BATCHES, kepts, states
        ):
            samples, style = micro_batch * grid.num_outer, Style(inner, kept, state)
            styles = alike(model, style)
            if model.batch % samples == 0 and are_possible(model, styles, grid, samples):
                yield flat(model, said("", 1, grid, style, samples, model.batch), styles, grid, samples)


def _pipelines(model: Model, is_plain: bool, below_seconds: float) -> Iterator[Draft]:
    """Yield pipelines, but for those that take longer even if all stages took the same time."""
    kepts = (Kept(), Kept(1)) if is_plain else KEPTS
    for pp, degree in product(powers_of_two(NUM_RANKS)[1:], powers_of_two(NUM_RANKS)):
        if pp * degree > NUM_RANKS or pp > len(model.units):
            continue
        for grid, distance in grids(pp, degree):
            states: tuple[States, ...] = ("copies",) if is_plain else ("copies", "ZeRO-1")
            for inner, micro_batch, kept, state in product(
                inners_of(model, degree, is_plain), MICRO_BATCHES, kepts, states
            ):
                samples, styles = micro_batch * grid.num_outer, alike(model, Style(inner, kept, state))
                num = model.batch // samples
                if model.batch % samples or num < pp or not are_possible(model, styles, grid, samples):
                    continue
                even = Draft(model, "1f1b", grid, samples, num, styles, even_cut(len(styles), pp), distance)
                if num * (even.rows.forward + even.rows.backward).sum() / pp < below_seconds:
                    yield from (replace(even, cut=cut) for cut in {even.cut, _balanced(even)})


def grids(pp: int, degree: int) -> list[tuple[Grid, int]]:
    """Grids of a stage, and how far stages are apart: data parallelism inside of the pipeline, or outside."""
    num_outer = NUM_RANKS // pp // degree
    inside = Grid(num_outer, degree, degree), num_outer * degree
    return [inside, (Grid(num_outer, degree, degree * pp), degree)] if num_outer > 1 else [inside]


def _balanced(draft: Draft) -> tuple[int, ...]:
    """The cut with the fastest step, whatever the memory."""
    pairs = zip(draft.rows.forward.tolist(), draft.rows.backward.tolist(), strict=True)
    pieces = [Piece(forward, backward) for forward, backward in pairs]
    cut = best_cut(pieces, CutTarget("1f1b", len(draft.cut), draft.num_micro_batches))
    assert cut is not None
    return cut
