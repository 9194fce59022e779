"""Compares simulated seconds of a pipeline's step with what four real ranks of torch take for the same order.

Passes sleep for as long as the simulation says that they take. So what is compared is the schedule: who waits for whom
in ``torch.distributed.pipelining``, and for how long.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from benchmarks.planning.sleepers import Ranks
from benchmarks.running.results import Finding, listed
from estimators.pipelining.passes import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, PipelineSchedule
from estimators.pipelining.schedules import SCHEDULES, holders_of
from placement.pipelining.simulator import StageCost, simulate_step

NUM_RANKS, NUM_MICRO_BATCHES, NUM_STEPS = 4, 8, 3
PASS_SECONDS = 0.08  # of each pass of all stages of a rank: torch adds some tenths of a millisecond
MOST_PERCENT = 8
TITLE = "Simulated steps of pipelines"
HEADER = ("simulated s", "real s", "error", "bubble", "case")
ABOUT = f"""\
Seconds of a step, simulated by `placement.pipelining.simulator` and taken by {NUM_RANKS} ranks of
`torch.distributed.pipelining` on gloo, whose passes sleep. The real figure is the median of {NUM_STEPS} steps. The
simulation gets the seconds that passes sleep, and the latency of a message, which is measured before the first case.
Ranks run our own orders of the schedules, and others that have no name in ScaMP. Stages of a case are balanced, or
take 0.5, 1 or 1.5 times as long. The first stage has no gradient of its input, but takes the time for its weights."""


@dataclass(frozen=True, slots=True)
class Case:
    """An order of passes, on balanced or unbalanced stages."""

    name: str
    is_balanced: bool

    def schedule(self) -> PipelineSchedule:
        """The order that both the simulator and the ranks get."""
        return {**SCHEDULES, **ORDERS}[self.name](NUM_RANKS, NUM_MICRO_BATCHES)

    def stages(self, schedule: PipelineSchedule) -> list[StageCost]:
        """Seconds of the passes of each stage. Torch computes no gradient of the pipeline's input."""
        seconds = [PASS_SECONDS * NUM_RANKS / schedule.num_stages] * schedule.num_stages
        if not self.is_balanced:
            seconds = [second * (0.5, 1.0, 1.5)[stage % 3] for stage, second in enumerate(seconds)]
        first, *others = seconds
        return [StageCost(first, 0.0, 2 * first), *(StageCost(other, other, other) for other in others)]

    def __str__(self) -> str:
        return f"{self.name}, {'balanced' if self.is_balanced else 'unbalanced'}"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    if quick:
        return [Case("zbv", False)]
    names = ["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev", *ORDERS]
    return [Case(name, is_balanced) for name in names for is_balanced in (True, False)]


def looped_bfs(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """GPipe with two stages of each rank: all micro-batches go through one before the next."""
    stages = [[rank, rank + num_ranks] for rank in range(num_ranks)]
    orders = [
        [
            *(Action(stage, number) for stage in held for number in range(num_micro_batches)),
            *(Action(stage, number, BACKWARD) for stage in held[::-1] for number in range(num_micro_batches)),
        ]
        for held in stages
    ]
    return _schedule("looped bfs", orders, holders_of("interleaved", num_ranks))


def eager(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """1F1B whose ranks begin with nearly twice as many micro-batches, to hide messages."""
    orders = []
    for rank in range(num_ranks):
        ahead = min(num_micro_batches, 2 * (num_ranks - rank) - 1)
        order = [Action(rank, number) for number in range(ahead)]
        for number in range(num_micro_batches):
            order.append(Action(rank, number, BACKWARD))
            order += [Action(rank, number + ahead)] if number + ahead < num_micro_batches else []
        orders.append(order)
    return _schedule("eager 1f1b", orders)


def in_halves(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """GPipe for one half of the micro-batches, and then for the other, the last one first in backward passes."""
    halves = [range(num_micro_batches // 2), range(num_micro_batches // 2, num_micro_batches)]
    orders = [
        [
            Action(rank, number, kind)
            for half in halves
            for kind, numbers in ((FORWARD, half), (BACKWARD, half[::-1]))
            for number in numbers
        ]
        for rank in range(num_ranks)
    ]
    return _schedule("gpipe in halves", orders)


def weights_last(num_ranks: int, num_micro_batches: int) -> PipelineSchedule:
    """1F1B whose gradients of weights are all computed at the end."""
    orders = []
    for rank, order in enumerate(SCHEDULES["1f1b"](num_ranks, num_micro_batches).orders):
        parts = [action._replace(kind=BACKWARD_INPUT) if action.kind == BACKWARD else action for action in order]
        orders.append([*parts, *(Action(rank, number, BACKWARD_WEIGHT) for number in range(num_micro_batches))])
    return _schedule("weights last", orders)


ORDERS: Mapping[str, Callable[[int, int], PipelineSchedule]] = {
    "looped bfs": looped_bfs,
    "eager 1f1b": eager,
    "gpipe in halves": in_halves,
    "weights last": weights_last,
}
"""Makers of orders that ``placement`` has no name for."""


def _schedule(
    name: str, orders: Sequence[Sequence[Action]], holders: tuple[tuple[int, ...], ...] | None = None
) -> PipelineSchedule:
    row = tuple((rank,) for rank in range(len(orders)))
    num = 1 + max(action.micro_batch for action in orders[0])
    return PipelineSchedule(name, tuple(map(tuple, orders)), holders or row, num)


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of a step, and the simulated share of the time in which ranks wait for others to compute."""

    simulated_seconds: float
    real_seconds: float
    bubble_share: float
    latency_seconds: float

    @property
    def error_pct(self) -> float:
        """Error of the simulation in percent of the real seconds; negative: too fast."""
        return 100 * (self.simulated_seconds / self.real_seconds - 1)

    def row(self) -> list[str]:
        seconds = (f"{value:.3f}" for value in (self.simulated_seconds, self.real_seconds))
        return [*seconds, f"{self.error_pct:+.1f} %", f"{self.bubble_share:.0%}"]


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = [abs(result.error_pct) for result in results]
    return {
        "simulator_cases": len(results),
        "simulator_mean_pct": sum(errors) / len(errors),
        "simulator_max_pct": max(errors),
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every case that is off by more than ``MOST_PERCENT``."""
    off = [finding for finding in findings if abs(Result(**finding.values).error_pct) > MOST_PERCENT]
    return listed(off, lambda finding: ", ".join(finding.row))


def measure(case: Case, seconds: float) -> Result:
    schedule = case.schedule()
    stages = case.stages(schedule)
    try:
        ranks, latency_seconds = _ranks(seconds)
        real = median(ranks.step_seconds(schedule, stages, NUM_STEPS, seconds))
    except (RuntimeError, TimeoutError):
        _ranks.cache_clear()  # they have ended: others run the next case
        raise
    simulation = simulate_step(schedule, stages, lambda *_: latency_seconds)
    return Result(simulation.makespan_seconds, real, simulation.bubble_share, latency_seconds)


@cache
def _ranks(seconds: float) -> tuple[Ranks, float]:
    """Ranks for all cases, and the seconds of a message between them."""
    ranks = Ranks(NUM_RANKS)
    atexit.register(ranks.end)
    return ranks, ranks.latency_seconds(seconds)
