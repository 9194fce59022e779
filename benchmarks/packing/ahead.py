"""Schedules that are found by looking ahead: many orders and shapes of all trials are simulated, and the best is kept.

First a portfolio: several target times, and for each the order by seconds, by ranks and by device-seconds. Then local
search: shapes and places in the order are exchanged at random (with a seed), by simulated annealing.
Devices count as equal here. No study is packed so: the benchmark shows what there is to gain. A simulation of 200
trials takes a fifth of a millisecond.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from random import Random

from placement.model import Shape
from placement.packing.allotment import least_target, narrowest_by

SLACKS = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)
"""Multiples of the least target time that are tried: at 1.0 no time is left for devices that wait for each other."""

HOT, COLD = 0.1, 0.001
"""Share of the makespan by which a schedule may be worse in local search, in the beginning and at the end."""

Tasks = Sequence[Sequence[Shape]]
"""The shapes of each trial, all with known seconds."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Positions of the trials in the order in which they start, the shape of each trial, and when the last one ends."""

    order: Sequence[int]
    choices: Sequence[int]
    makespan: float


def best_schedule(tasks: Tasks, free_at: Sequence[float], evaluations: int, seed: int = 0) -> Schedule:
    """The best schedule found on devices that become free at these times."""
    busy = sum(free_at)
    bound = max(least_target(tasks, len(free_at), busy), max(free_at, default=0.0))
    best = min(_portfolio(tasks, free_at, bound), key=lambda schedule: schedule.makespan)
    return _improved(tasks, free_at, best, bound, evaluations, Random(seed))


def simulate(tasks: Tasks, free_at: Sequence[float], order: Sequence[int], choices: Sequence[int]) -> list[float]:
    """When each device is free at last, ascending, if trials start in this order, each as soon as it can.

    Each takes the devices that are free first. Every schedule has an order that gives one no longer than it: trials by
    their starts. What a device waits is lost to all later trials, because they start later.
    """
    free = sorted(free_at)
    for task in order:
        shape = tasks[task][choices[task]]
        num_ranks = shape.num_ranks
        end = free[num_ranks - 1] + (shape.seconds or 0.0)
        del free[:num_ranks]
        for _ in range(num_ranks):
            insort(free, end)
    return free


def _portfolio(tasks: Tasks, free_at: Sequence[float], bound: float) -> Iterator[Schedule]:
    for slack in SLACKS:
        choices = [narrowest_by(slack * bound, shapes, range(len(shapes))) for shapes in tasks]
        chosen = [shapes[choice] for shapes, choice in zip(tasks, choices, strict=True)]
        seconds, ranks = [task.seconds or 0.0 for task in chosen], [task.num_ranks for task in chosen]
        for key in (
            [(-s, -r) for s, r in zip(seconds, ranks, strict=True)],
            [(-r, -s) for s, r in zip(seconds, ranks, strict=True)],
            [(-s * r, -r) for s, r in zip(seconds, ranks, strict=True)],
        ):
            order = sorted(range(len(tasks)), key=key.__getitem__)
            yield Schedule(order, choices, max(simulate(tasks, free_at, order, choices), default=0.0))


def _improved(
    tasks: Tasks, free_at: Sequence[float], first: Schedule, bound: float, evaluations: int, random: Random
) -> Schedule:
    """Simulated annealing from the best of the portfolio; it stops early at the bound."""
    order, choices = first.order, first.choices
    best, cost = first, _cost(simulate(tasks, free_at, order, choices))
    for n in range(evaluations if len(order) > 1 else 0):
        if best.makespan <= bound * (1 + 1e-9):
            break
        new_order, new_choices = _changed(tasks, order, choices, random)
        free = simulate(tasks, free_at, new_order, new_choices)
        new_cost, heat = _cost(free), cost * HOT * (COLD / HOT) ** (n / evaluations)
        if new_cost <= cost or random.random() < exp((cost - new_cost) / heat):
            order, choices, cost = new_order, new_choices, new_cost
            if free[-1] < best.makespan:
                best = Schedule(order, choices, free[-1])
    return best


def _cost(free: Sequence[float]) -> float:
    """The makespan, and a tenth of the mean time (root mean square) at which devices become free."""
    return free[-1] + 0.1 * sqrt(sum(end * end for end in free) / len(free))


def _changed(tasks: Tasks, order: Sequence[int], choices: Sequence[int], random: Random) -> tuple[list[int], list[int]]:
    """A neighbour: one trial with another shape, or at another place, or two that change places."""
    new_order, new_choices = list(order), list(choices)
    place, other = random.randrange(len(order)), random.randrange(len(order))
    task, kind = order[place], random.random()
    if kind < 0.4 and len(tasks[task]) > 1:
        step = random.choice((-1, 1))
        new_choices[task] = min(max(0, choices[task] + step), len(tasks[task]) - 1)
        if kind < 0.2:
            return new_order, new_choices
    if kind < 0.7:
        new_order.insert(other, new_order.pop(place))
    else:
        new_order[place], new_order[other] = new_order[other], new_order[place]
    return new_order, new_choices
