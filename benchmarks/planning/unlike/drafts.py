"""Plans for a model on all ranks, with a pipeline or without, and the seconds of a step by one simulator for all.

A draft says how each unit is computed on each stage. Without a pipeline a step is the sum of its passes; a pipeline is
simulated by ``placement.pipelining.simulator``. Each rank of a simulation stands for all ranks of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import inf

import numpy as np

from benchmarks.planning.gpt import capacity_bytes
from benchmarks.planning.unlike.emerging import Model, Unit
from benchmarks.planning.unlike.grid import (
    COPIES,
    FLOWS,
    KIND,
    NUM_RANKS,
    ROWS,
    SUM,
    Grid,
    Inner,
    Kept,
    Style,
    conversions_on,
    cost,
    possible,
    tensor_of,
)
from estimators.devices.communication import Group, collective_seconds
from estimators.pipelining.passes import BACKWARD, FORWARD, Action, PipelineSchedule
from estimators.pipelining.schedules import SCHEDULES, holders_of, one_f_one_b
from placement.exact.ways import Amounts
from placement.pipelining.simulator import Simulation, StageCost, simulate_step

CAPACITY_BYTES = capacity_bytes(KIND)


@dataclass(frozen=True)
class Planned:
    """A plan that fits, and the seconds of a step. ``styles`` has that of each unit; a pipeline has a simulation."""

    words: str
    seconds: float
    peak_bytes: float
    grid: Grid
    samples: int
    num_micro_batches: int
    styles: tuple[Style, ...]
    simulation: Simulation | None = None

    @property
    def idle_seconds(self) -> float:
        """Seconds in which a rank has nothing to do, because what it needs is not computed yet; the mean of ranks."""
        return self.simulation.bubble_share * self.seconds if self.simulation else 0.0


@dataclass(frozen=True)
class Rows:
    """Amounts of each unit of a model on one rank for a micro-batch. Conversions count with the unit before them."""

    forward: Amounts
    backward: Amounts
    state: Amounts
    kept: Amounts
    working: Amounts
    once: Amounts


@dataclass(frozen=True)
class Draft:
    """A plan before it is simulated. ``cut`` has the number of units of each stage.

    Neighbouring stages are ``distance`` ranks apart.
    """

    model: Model
    schedule: str
    grid: Grid
    samples: int
    num_micro_batches: int
    styles: tuple[Style, ...]
    cut: tuple[int, ...]
    distance: int

    @cached_property
    def rows(self) -> Rows:
        """The cost of each unit."""
        return rows_of(self.model, self.styles, self.grid, self.samples)

    @property
    def num_ranks(self) -> int:
        """Stages of 1F1B; ranks may have several in other schedules."""
        return NUM_RANKS // (self.grid.num_outer * self.grid.num_inner)

    @property
    def bound_seconds(self) -> float:
        """No step is faster: the rank with most to do never waits."""
        ranks = range(self.num_ranks)
        holders = holders_of(self.schedule, self.num_ranks)
        passes, once = self.sums(self.rows.forward + self.rows.backward), self.sums(self.rows.once)
        busy = self.num_micro_batches * passes + once
        return float(max(sum(busy[stage] for stage, held in enumerate(holders) if rank in held) for rank in ranks))

    def sums(self, amounts: Amounts) -> Amounts:
        """Sums of amounts of units over each stage."""
        ends = np.cumsum(self.cut)
        total = np.concatenate([[0.0], np.cumsum(amounts)])
        return np.asarray(total[ends] - total[ends - np.array(self.cut)])

    def planned(self, words: str) -> Planned | None:
        """The plan, simulated; None if a rank has too little memory, or if the schedule does not exist."""
        schedule = schedule_of(self.schedule, self.num_ranks, self.num_micro_batches, self.model.num_forwards)
        if schedule is None:
            return None
        simulation = simulate_step(schedule, list(self._stages()), self._message_seconds)
        ends = np.cumsum(self.cut)
        working = [max(self.rows.working[end - num : end]) for num, end in zip(self.cut, ends, strict=True)]
        peaks = [
            peak + max(working[stage] for stage, held in enumerate(schedule.holders) if rank in held)
            for rank, peak in enumerate(simulation.peak_bytes)
        ]
        if max(peaks) > CAPACITY_BYTES:
            return None
        seconds, num = simulation.makespan_seconds, self.num_micro_batches
        return Planned(words, seconds, float(max(peaks)), self.grid, self.samples, num, self.styles, simulation)

    def _stages(self) -> Iterator[StageCost]:
        names = ("forward", "backward", "kept", "state", "once")
        sums = {name: self.sums(getattr(self.rows, name)) for name in names}
        for stage, end in enumerate(np.cumsum(self.cut)):
            forward, backward, kept, state, once = (float(sums[name][stage]) for name in names)
            sent = self.model.units[end - 1].output_bytes * self.samples / self.grid.num_outer / self.grid.num_inner
            yield StageCost(
                forward / self.model.num_forwards, backward / 2, backward / 2, int(kept), int(sent), int(state), once
            )

    def _message_seconds(self, sender: int, receiver: int, num_bytes: int) -> float:
        return message_seconds(num_bytes, abs(sender - receiver) * self.distance)


@dataclass(frozen=True)
class SharedEnds(Draft):
    """An interlaced pipeline, whose ends all ranks of a pipeline divide; these are numbered in a row.

    The first end adds up its output and leaves rows of it, the last one the same of its gradient. The stages beside
    them send whole tensors to each rank.
    """

    @cached_property
    def rows(self) -> Rows:
        """The cost of each unit."""
        costs, grid = rows_of(self.model, self.styles, self.grid, self.samples), self.ends_grid
        names = ("forward", "backward", "state", "kept", "working", "once")
        for place in (0, len(self.styles) - 1):
            style = self.styles[place]._replace(inner="layers")
            way = cost(self.model.units[place], style, grid, self.samples, 1)
            tensor = tensor_of(self.model.units[place], self.samples)
            reduced = conversions_on(grid).between(tensor, SUM, ROWS).seconds
            gathered = conversions_on(self.grid).between(tensor, ROWS, COPIES).seconds if self.grid.num_inner > 1 else 0
            added = (reduced + gathered, gathered) if place == 0 else (gathered, reduced + gathered)
            passes = way.forward_seconds + added[0], way.backward_seconds + added[1]
            amounts = (*passes, way.state_bytes, way.kept_bytes, way.working_bytes, way.once_seconds)
            for name, amount in zip(names, amounts, strict=True):
                getattr(costs, name)[place] = amount
        return costs

    @property
    def ends_grid(self) -> Grid:
        """All ranks of a pipeline in one row."""
        num_inner = self.num_ranks * self.grid.num_inner
        return Grid(self.grid.num_outer, num_inner, num_inner)


@lru_cache(maxsize=10_000)
def message_seconds(num_bytes: int, distance: int) -> float:
    """Seconds of a message to a rank so far away; all ranks of a stage send at once."""
    assert KIND.links is not None
    return collective_seconds("message", num_bytes, Group(2, distance), KIND.links)


def rows_of(model: Model, styles: Sequence[Style], grid: Grid, samples: int) -> Rows:
    """The cost of each unit in its style, and of the conversions between them."""
    keys = [(id(unit), style) for unit, style in zip(model.units, styles, strict=True)]
    units = dict(zip(keys, model.units, strict=True))
    ways = {key: cost(unit, key[1], grid, samples, model.num_forwards) for key, unit in units.items()}
    amounts = {
        key: (
            way.forward_seconds,
            way.backward_seconds,
            way.state_bytes,
            way.kept_bytes,
            way.working_bytes,
            way.once_seconds,
        )
        for key, way in ways.items()
    }
    forward, backward, state, kept, working, once = np.array([amounts[key] for key in keys]).T
    added: dict[tuple[tuple[int, Style], tuple[int, Style]], tuple[float, float]] = {}
    for place, (key, following) in enumerate(pairwise(keys)):
        if (key, following) not in added:
            added[key, following] = _conversions(units[key], key[1].inner, following[1].inner, grid, samples)
        ahead, back = added[key, following]
        forward[place] += model.num_forwards * ahead
        backward[place] += back
    return Rows(forward, backward, state, kept, working, once)


def ideal_seconds(model: Model) -> float:
    """Seconds of a step in which all ranks only compute what must be computed, at the rates of the cost model."""
    grid = Grid(NUM_RANKS, 1, 1)
    ways = (cost(unit, Style(), grid, model.batch, model.num_forwards) for unit in model.units)
    return sum(way.forward_seconds + way.backward_seconds for way in ways)


def again_seconds(model: Model, plan: Planned) -> float:
    """Seconds in which a rank computes again what it has not kept; the mean of ranks."""
    grid, samples = plan.grid, plan.samples
    kept = [style._replace(kept=Kept()) for style in plan.styles]
    backward = (rows_of(model, styles, grid, samples).backward.sum() for styles in (plan.styles, kept))
    return plan.num_micro_batches * float(-np.diff(list(backward))[0]) * grid.num_outer * grid.num_inner / NUM_RANKS


@lru_cache(maxsize=100_000)
def _conversions(unit: Unit, inner: Inner, following: Inner, grid: Grid, samples: int) -> tuple[float, float]:
    """Seconds to convert the output of a unit, and the gradient of it."""
    conversions, tensor, flow, other = conversions_on(grid), tensor_of(unit, samples), FLOWS[inner], FLOWS[following]
    ahead = conversions.between(tensor, flow.leaves, other.needs).seconds
    return ahead, conversions.between(tensor, other.gradient_leaves, flow.gradient_needs).seconds


def are_possible(model: Model, styles: Sequence[Style], grid: Grid, samples: int) -> bool:
    """Whether each unit can be computed so."""
    pairs = {(id(unit), style): unit for unit, style in zip(model.units, styles, strict=True)}
    return all(possible(unit, style, grid, samples) for (_, style), unit in pairs.items())


def flat(model: Model, words: str, styles: Sequence[Style], grid: Grid, samples: int) -> Planned | None:
    """The plan without a pipeline; None if it does not fit."""
    rows, num = rows_of(model, styles, grid, samples), model.batch // samples
    peak = float(rows.state.sum() + rows.kept.sum() + rows.working.max())
    if peak > CAPACITY_BYTES:
        return None
    seconds = num * float((rows.forward + rows.backward).sum()) + float(rows.once.sum())
    return Planned(words, seconds, peak, grid, samples, num, tuple(styles))


def fits_in_1f1b(draft: Draft) -> bool:
    """Whether each stage of 1F1B has enough memory."""
    return bool((peaks_in_1f1b(draft) <= CAPACITY_BYTES).all())


def peaks_in_1f1b(draft: Draft) -> Amounts:
    """Bytes of a rank of each stage of 1F1B."""
    rows, ends = draft.rows, np.cumsum(draft.cut)
    ahead = np.minimum(draft.num_micro_batches, len(draft.cut) - np.arange(len(draft.cut)))
    working = [rows.working[end - num : end].max() for num, end in zip(draft.cut, ends, strict=True)]
    return np.asarray(draft.sums(rows.state) + ahead * draft.sums(rows.kept) + np.array(working))


def estimate(draft: Draft) -> float:
    """Seconds of 1F1B by a formula: one micro-batch through all stages, and the others through the slowest."""
    passes = draft.sums(draft.rows.forward + draft.rows.backward)
    return float(passes.sum() + (draft.num_micro_batches - 1) * passes.max() + draft.sums(draft.rows.once).max())


def best_of(drafts: Sequence[tuple[float, str, Draft]], most: int, below_seconds: float = inf) -> Planned | None:
    """The fastest plan below a time among the drafts with the smallest first values; simulates a limited number."""
    best: Planned | None = None
    for seconds, words, draft in sorted(drafts, key=lambda entry: entry[0])[:most]:
        below = best.seconds if best else below_seconds
        if seconds >= below:
            break
        plan = draft.planned(words)
        if plan is not None and plan.seconds < below:
            best = plan
    return best


@lru_cache(maxsize=256)
def schedule_of(name: str, num_ranks: int, num_micro_batches: int, num_forwards: int) -> PipelineSchedule | None:
    """The schedule of this name; None if it does not exist for these numbers."""
    if num_forwards > 1:
        make = SCHEDULES["3f1b"] if name == "3f1b" else turns_in_order
        return make(num_ranks, num_micro_batches) if name in ("1f1b", "3f1b") else None
    try:
        return SCHEDULES[name](num_ranks, num_micro_batches)
    except ValueError:
        return None


def turns_in_order(num_ranks: int, num_micro_batches: int, num_forwards: int = 3) -> PipelineSchedule:
    """1F1B by hand for a model that feeds its output back: all micro-batches take each turn but the last, then 1F1B."""
    last = num_forwards - 1
    orders = []
    for rank, order in enumerate(one_f_one_b(num_ranks, num_micro_batches).orders):
        ahead = [Action(rank, number, FORWARD, turn) for turn in range(last) for number in range(num_micro_batches)]
        inside = [action if action.kind == BACKWARD else action._replace(turn=last) for action in order]
        orders.append((*ahead, *inside))
    return PipelineSchedule(
        "turns, then 1f1b", tuple(orders), holders_of("1f1b", num_ranks), num_micro_batches, num_forwards
    )
