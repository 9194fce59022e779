"""The best plan of the planner, which may treat units and stages unlike each other.

Tried are unlike ways of units on the same ranks, chosen exactly with their conversions (``unlike_ways``); pipelines
whose cut and recomputed units are found by the exact search, in the schedules that their memory allows; pipelines whose
ends are shared by all ranks (interlaced); and 3F1B for models that feed their output back. All have the cost model and
the simulator of hand-made plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

import numpy as np

from benchmarks.planning.gpt import powers_of_two
from benchmarks.planning.unlike.drafts import (
    CAPACITY_BYTES,
    Draft,
    Planned,
    Rows,
    SharedEnds,
    are_possible,
    best_of,
    flat,
    message_seconds,
    rows_of,
)
from benchmarks.planning.unlike.emerging import Model, Unit
from benchmarks.planning.unlike.grid import (
    KIND,
    NUM_RANKS,
    Grid,
    Inner,
    Kept,
    States,
    Style,
    conversions_on,
    cost,
    possible,
    styles,
    tensor_of,
)
from benchmarks.planning.unlike.hand_plans import KEPTS, MICRO_BATCHES, alike, grids, inners_of, said
from benchmarks.planning.unlike.unlike_ways import Room, UnitWays, choose
from estimators.axes import Spread
from placement.exact.search import StagedPlan, search_or_none
from placement.exact.ways import Costs, Devices, Way, list_staged_ways
from placement.pipelining.cuts import CutTarget, Piece, best_cut

NUM_SIMULATED = 3
_NUM_SEARCHED = 200
_STEP_BYTES = 2**24
_PARTS = (1, 2, 4, 8)
_INNERS: tuple[Inner, ...] = ("data", "layers", "layers and tokens", "space")
_DEVICES = (Devices(KIND.name, NUM_RANKS, CAPACITY_BYTES),)
_CHUNKED = ("interleaved", "zbv", "dualpipev")


def best_new_plan(model: Model, hand_seconds: float = inf) -> Planned | None:
    """The fastest plan found, if it is faster than ``hand_seconds``."""
    best: Planned | None = None
    for search in (_unlike, _cut, _piped):
        new_plan = search(model, best.seconds if best else hand_seconds)
        best = new_plan or best
    return best


def _unlike(model: Model, below_seconds: float) -> Planned | None:
    """The fastest plan without a pipeline, in which each unit has a way of its own."""
    best: Planned | None = None
    for num_inner, samples in product(powers_of_two(NUM_RANKS), powers_of_two(model.batch)):
        grid, num = Grid(NUM_RANKS // num_inner, num_inner, num_inner), model.batch // samples
        distinct = list(dict.fromkeys(model.units))
        usable = {unit: [style for style in _styles(unit) if possible(unit, style, grid, samples)] for unit in distinct}
        inners = {style.inner for every in usable.values() for style in every}
        if not all(usable.values()) or (num_inner > 1 and inners == {"data"}):
            continue
        ways = {unit: _ways(model, unit, usable[unit], grid, samples) for unit in distinct}
        below = best.seconds if best else below_seconds
        units, room = [ways[unit] for unit in model.units], Room(CAPACITY_BYTES, step_bytes=_STEP_BYTES)
        choice = choose(units, conversions_on(grid), room, num_micro_batches=num, below_seconds=below)
        if choice is not None:
            chosen = [usable[unit][place] for unit, place in zip(model.units, choice.places, strict=True)]
            words = f"{num} × {samples} on {grid.num_outer} × {num_inner} ranks; {_most_common(model, chosen)}"
            best = flat(model, words, chosen, grid, samples) or best
    return best


def _most_common(model: Model, chosen: Sequence[Style]) -> str:
    """The style that most units of each name have, in words."""
    styles_by_unit: dict[str, Counter[Style]] = {}
    for unit, style in zip(model.units, chosen, strict=True):
        styles_by_unit.setdefault(unit.name, Counter())[style] += 1
    return "; ".join(f"{name}: {counts.most_common(1)[0][0]}" for name, counts in styles_by_unit.items())


def _styles(unit: Unit) -> Iterator[Style]:
    return styles(unit, _INNERS, (Kept(), Kept(scores=False), *map(Kept, _PARTS)), ("copies", "ZeRO-1", "FSDP"))


def _ways(model: Model, unit: Unit, usable: Sequence[Style], grid: Grid, samples: int) -> UnitWays:
    ways = tuple(cost(unit, style, grid, samples, model.num_forwards) for style in usable)
    return UnitWays(tensor_of(unit, samples), ways)


@dataclass(frozen=True)
class _Stage:
    """How all units of a pipeline are computed, but for those that keep less."""

    pp: int
    grid: Grid
    distance: int
    samples: int
    style: Style

    def said(self, model: Model, schedule: str) -> str:
        return said(schedule, self.pp, self.grid, self.style, self.samples, model.batch)


def _stages(model: Model, states: tuple[States, ...] = ("copies", "ZeRO-1", "FSDP")) -> Iterator[_Stage]:
    """Yield all degrees, micro-batches and states of pipelines."""
    for pp, degree in product(powers_of_two(NUM_RANKS)[1:], powers_of_two(NUM_RANKS)):
        if pp * degree > NUM_RANKS or pp > len(model.units):
            continue
        for grid, distance in grids(pp, degree):
            for inner, micro_batch, state in product(inners_of(model, degree), MICRO_BATCHES, states):
                stage = _Stage(pp, grid, distance, micro_batch * grid.num_outer, Style(inner, Kept(), state))
                is_whole = model.batch % stage.samples == 0 and model.batch // stage.samples >= pp
                if is_whole and are_possible(model, alike(model, stage.style), grid, stage.samples):
                    yield stage


def _cut(model: Model, below_seconds: float) -> Planned | None:
    """The fastest pipelines of the exact search of cuts and units to recompute, in 1F1B, 3F1B or ZB-H1."""
    candidates = []
    for stage, kept in product(_stages(model), (Kept(1), Kept(4), Kept(scores=False))):
        less = stage.style._replace(kept=kept)
        if are_possible(model, alike(model, less), stage.grid, stage.samples):
            plain = _plain(model, stage)
            if not _may_be_faster(plain, below_seconds):
                continue
            way = _way(model, stage, less, plain.rows)
            candidates += [
                (staged_way.bound_seconds, stage, less, way)
                for staged_way in list_staged_ways([way], _DEVICES, model.batch, "1f1b")
            ]
    below, drafts = below_seconds, []
    for bound, stage, less, way in sorted(candidates, key=lambda candidate: candidate[0])[:_NUM_SEARCHED]:
        if bound >= below:
            break
        plan = search_or_none([way], _DEVICES, batch=model.batch)
        if plan is not None and plan.seconds < 1.05 * below:
            below = min(below, plan.seconds)
            drafts += [(plan.seconds, *draft) for draft in _drafts(model, stage, less, plan)]
    return best_of(drafts, NUM_SIMULATED, below_seconds)


def _drafts(model: Model, stage: _Stage, less: Style, plan: StagedPlan) -> Iterator[tuple[str, Draft]]:
    """Yield what the search found, in each schedule that holds no more.

    A backward pass runs in parts only if nothing is recomputed: both parts need all activations.
    """
    every, lesser = alike(model, stage.style), alike(model, less)
    chosen = tuple(lesser[place] if place in plan.recomputed else style for place, style in enumerate(every))
    names = ["3f1b"] if model.num_forwards > 1 else ["1f1b"] if plan.recomputed else ["1f1b", "zb-h1"]
    kept = f", {less.kept} of {len(plan.recomputed)}" if plan.recomputed else ""
    for name in names:
        num = model.batch // stage.samples
        draft = Draft(model, name, stage.grid, stage.samples, num, chosen, plan.cut, stage.distance)
        yield f"{stage.said(model, name)}{kept}, stages of {_range(plan.cut)} units", draft


def _plain(model: Model, stage: _Stage) -> Draft:
    """All units in one stage, which keep everything."""
    chosen, num = alike(model, stage.style), model.batch // stage.samples
    return Draft(model, "1f1b", stage.grid, stage.samples, num, chosen, (len(chosen),), stage.distance)


def _way(model: Model, stage: _Stage, less: Style, plain: Rows) -> Way:
    """The pipeline as the search asks for it: each unit may compute again what ``less`` does not keep."""
    grid, samples = stage.grid, stage.samples
    recompute_rows = rows_of(model, alike(model, less), grid, samples)
    is_block = np.array([unit.is_block for unit in model.units])
    extra = recompute_rows.forward + recompute_rows.backward - plain.forward - plain.backward
    sent = np.array([unit.output_bytes * samples / grid.num_outer / grid.num_inner for unit in model.units])
    sent[-1] = 0.0
    costs = Costs(
        forward_seconds=plain.forward,
        backward_seconds=plain.backward,
        state_bytes=plain.state,
        kept_bytes=plain.kept,
        output_bytes=sent,
        recompute_seconds=np.where(is_block, np.maximum(0.0, extra), inf),
        recomputed_kept_bytes=recompute_rows.kept,
        message_seconds=np.array(
            [2 * message_seconds(int(num_bytes), stage.distance) if num_bytes else 0.0 for num_bytes in sent]
        ),
        update_seconds=plain.once,
        transient_bytes=float(plain.working.max()),
        restored_bytes=max(0.0, float(recompute_rows.working.max() - plain.working.max())),
    )
    spread = Spread(tp=grid.num_inner, dp_replicate=grid.num_outer)
    return Way(spread, samples // grid.num_outer, (costs,), stage.pp)


def _piped(model: Model, below_seconds: float) -> Planned | None:
    """The fastest pipelines with several stages on a rank, or with ends that all ranks share."""
    drafts = []
    if model.num_forwards == 1:
        for stage, kept in product(_stages(model, ("copies", "ZeRO-1")), KEPTS):
            variant = replace(stage, style=stage.style._replace(kept=kept))
            chosen = alike(model, variant.style)
            if are_possible(model, chosen, stage.grid, stage.samples):
                every = [
                    *_chunked(model, variant, chosen, below_seconds),
                    *_interlaced(model, variant, chosen, below_seconds),
                ]
                drafts += [(draft.bound_seconds, words, draft) for words, draft in every]
    return best_of([draft for draft in drafts if draft[0] < below_seconds], NUM_SIMULATED, below_seconds)


def _chunked(
    model: Model, stage: _Stage, chosen: tuple[Style, ...], below_seconds: float
) -> Iterator[tuple[str, Draft]]:
    """Yield pipelines with two stages on each rank that could be faster."""
    num_stages = 2 * stage.pp
    plain = _plain(model, stage)
    if num_stages > len(chosen) or not _may_be_faster(plain, below_seconds):
        return
    cut = _time_cut(plain, num_stages)
    for name in _CHUNKED:
        if name == "interleaved" or stage.style.kept == Kept():
            yield stage.said(model, name), replace(plain, schedule=name, cut=cut)


def _may_be_faster(draft: Draft, below_seconds: float) -> bool:
    """Whether a step is faster if all ranks always have the same to do."""
    passes = float((draft.rows.forward + draft.rows.backward).sum())
    return draft.num_micro_batches * passes / draft.num_ranks < below_seconds


def _interlaced(
    model: Model, stage: _Stage, chosen: tuple[Style, ...], below_seconds: float
) -> Iterator[tuple[str, Draft]]:
    """Yield the pipeline whose ends all ranks divide, if it could be faster."""
    first, *blocks, last = model.units
    if first.is_block or last.is_block or len(blocks) < stage.pp or stage.distance != stage.grid.num_inner:
        return
    num, every = model.batch // stage.samples, (1, len(blocks), 1)
    draft = SharedEnds(model, "interlaced", stage.grid, stage.samples, num, chosen, every, stage.distance)
    ends = Style("layers", Kept(), stage.style.states)
    if not all(possible(unit, ends, draft.ends_grid, stage.samples) for unit in (first, last)):
        return
    if _may_be_faster(draft, below_seconds):
        cut = _time_cut(replace(draft, model=replace(model, units=tuple(blocks)), styles=chosen[1:-1]), stage.pp)
        yield stage.said(model, "interlaced"), replace(draft, cut=(1, *cut, 1))


def _time_cut(draft: Draft, num_stages: int) -> tuple[int, ...]:
    """The cut into stages with the fastest step, whatever the memory."""
    rows = rows_of(draft.model, draft.styles, draft.grid, draft.samples)
    pairs = zip(rows.forward.tolist(), rows.backward.tolist(), strict=True)
    cut = best_cut(
        [Piece(forward, backward) for forward, backward in pairs], CutTarget("1f1b", num_stages, 4 * num_stages)
    )
    assert cut is not None
    return cut


def _range(cut: Sequence[int]) -> str:
    return f"{min(cut)}-{max(cut)}" if min(cut) < max(cut) else f"{cut[0]}"
