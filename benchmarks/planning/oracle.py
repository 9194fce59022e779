"""Two slow and independent ways to find the fastest plan, and small random questions to compare answers for.

``by_trying`` prices every cut, every assignment of stages to kinds of devices and every set of recomputed units.
``by_programming`` states the same question as a mixed-integer linear program, which HiGHS solves. Neither shares code
with ``placement.exact.search``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, product
from math import inf

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array

from estimators.axes import Spread
from placement.exact.search import StagedPlan
from placement.exact.ways import Amounts, Costs, Devices, Way


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of one call of ``search``."""

    ways: list[Way]
    devices: list[Devices]
    batch: int


def draw(seed: int, *, num_kinds: int = 1, most_units: int = 6) -> Question:
    """A small question, with all numbers whole; some have equal units, units that stay, or hardly enough memory."""
    source = random.Random(seed)
    num_units, equal = source.randint(2, most_units), source.random() < 0.4
    devices = [
        Devices(f"kind {kind}", source.choice([1, 2, 3, 4]), source.randint(40, 160)) for kind in range(num_kinds)
    ]
    ways = []
    for num_ranks, micro_batch in product((1, 2), (1, 2)):
        kinds = tuple(_drawn_costs(source, num_units, equal) for _ in devices)
        spread = Spread(dp_shard=num_ranks) if source.random() < 0.5 else Spread(tp=num_ranks)
        ways.append(Way(spread, micro_batch, kinds, source.choice([None, None, None, 1, 2])))
    return Question(ways, devices, source.choice([2, 4, 8]))


def _drawn_costs(source: random.Random, num_units: int, equal: bool) -> Costs:
    def row(low: int, high: int) -> Amounts:
        if equal:
            return np.full(num_units, source.randint(low, high), np.float64)
        return np.array([source.randint(low, high) for _ in range(num_units)], np.float64)

    recompute = row(0, 9)
    for unit in range(num_units):
        if source.random() < 0.2:
            recompute[unit] = inf
    return Costs(
        forward_seconds=row(1, 9),
        backward_seconds=row(1, 9),
        state_bytes=row(1, 25),
        kept_bytes=row(3, 25),
        output_bytes=row(1, 6),
        recompute_seconds=recompute,
        recomputed_kept_bytes=row(1, 5),
        message_seconds=row(0, 3),
        update_seconds=row(0, 9),
        transient_bytes=source.randint(0, 9),
        restored_bytes=source.randint(0, 9),
        closing_seconds=source.randint(0, 5),
    )


def settings(question: Question) -> Iterator[tuple[Way, int, int]]:
    """Ways with every number of stages and of micro-batches that the batch and the devices allow."""
    for way in question.ways:
        spread = way.spread
        shares, ranks = spread.dp_replicate * spread.dp_shard, spread.dp_replicate * spread.dp_shard * spread.tp
        for stages in range(1, way.num_units + 1):
            for num in range(1, question.batch + 1):
                is_whole = num * way.micro_batch * shares == question.batch
                allowed = way.num_stages in (None, stages) and num >= stages
                if is_whole and allowed and stages <= sum(kind.count // ranks for kind in question.devices):
                    yield way, stages, num


def in_flight(num_micro_batches: int, stages: int, stage: int) -> int:
    """Micro-batches that a stage holds at once."""
    return min(num_micro_batches, stages - stage)


def by_trying(question: Question) -> float:
    """Seconds of the fastest plan, by trying all; infinite if none fits."""
    return min((_tried(question, *setting) for setting in settings(question)), default=inf)


def _tried(question: Question, way: Way, stages: int, num: int) -> float:
    best = inf
    for ends in combinations(range(1, way.num_units), stages - 1):
        bounds = [0, *ends, way.num_units]
        for kinds in product(range(len(question.devices)), repeat=stages):
            ranks = way.spread.world_size
            if any(kinds.count(kind) * ranks > device.count for kind, device in enumerate(question.devices)):
                continue
            pairs = []
            for index, kind in enumerate(kinds):
                held = in_flight(num, stages, index)
                capacity = question.devices[kind].capacity_bytes
                pairs.append(stage_by_trying(way.costs[kind], bounds[index], bounds[index + 1], held, capacity))
            slowest = max((num - 1) * seconds + once for seconds, once in pairs)
            best = min(best, sum(seconds for seconds, _ in pairs) + slowest)
    return best


def stage_by_trying(costs: Costs, start: int, end: int, held: int, capacity_bytes: float) -> tuple[float, float]:
    """Seconds of a micro-batch on a stage with the best set of recomputed units, and those that pass once."""
    units = range(start, end)
    fastest = inf
    for chosen in (set(combination) for size in range(len(units) + 1) for combination in combinations(units, size)):
        num_bytes, seconds = stage_of(costs, start, end, held, chosen)
        if num_bytes <= capacity_bytes:
            fastest = min(fastest, seconds)
    return fastest, sum(costs.update_seconds[unit] for unit in units) + costs.closing_seconds


def stage_of(costs: Costs, start: int, end: int, held: int, recomputed: set[int]) -> tuple[float, float]:
    """Bytes of one rank of a stage, and seconds of a micro-batch."""
    units = range(start, end)
    num_bytes = sum(costs.state_bytes[unit] for unit in units) + costs.transient_bytes
    num_bytes += held * sum((costs.recomputed_kept_bytes if u in recomputed else costs.kept_bytes)[u] for u in units)
    num_bytes += held * costs.output_bytes[start - 1] if start else 0
    num_bytes += costs.restored_bytes if recomputed else 0
    seconds = sum(costs.forward_seconds[unit] + costs.backward_seconds[unit] for unit in units)
    seconds += sum(costs.recompute_seconds[unit] for unit in recomputed)
    seconds += costs.message_seconds[start - 1] if start else 0
    return float(num_bytes), float(seconds)


def price(question: Question, plan: StagedPlan) -> tuple[float, list[float]]:
    """Seconds of a plan, and bytes of a rank of each stage. Raises ``AssertionError`` for a plan that is none."""
    stages, num = len(plan.cut), plan.num_micro_batches
    spread = replace(plan.spread, pp=1, schedule="1f1b")
    way = next(
        candidate
        for candidate in question.ways
        if (candidate.spread, candidate.micro_batch) == (spread, plan.micro_batch)
    )
    assert (way, stages, num) in settings(question) and sum(plan.cut) == way.num_units and min(plan.cut) > 0
    names = [device.name for device in question.devices]
    sizes, times, added = [], [], []
    for index, (name, ends) in enumerate(zip(plan.devices, accumulate(plan.cut), strict=True)):
        costs, start = way.costs[names.index(name)], ends - plan.cut[index]
        recomputed = {unit for unit in plan.recomputed if start <= unit < ends}
        held = in_flight(num, stages, index)
        num_bytes, seconds = stage_of(costs, start, ends, held, recomputed)
        sizes.append(num_bytes)
        times.append(seconds)
        added.append((num - 1) * seconds + float(costs.update_seconds[start:ends].sum()) + costs.closing_seconds)
    for device in question.devices:
        assert plan.devices.count(device.name) * way.num_ranks <= device.count
    return sum(times) + max(added), sizes


def by_programming(question: Question) -> float:
    """Seconds of the fastest plan on one kind of devices, by HiGHS; infinite if none fits."""
    return min((_programmed(question, *setting) for setting in settings(question)), default=inf)


def _programmed(question: Question, way: Way, stages: int, num: int) -> float:
    """Variables: x[u, s] unit u is on stage s; y[u, s] it is recomputed there; z[u, s] stage s begins with u; w[s]
    stage s recomputes something; t the largest addition to the step."""
    costs, num_units, program = way.costs[0], way.num_units, _Rows(way.num_units, stages)
    x, y, z, w, t = program.names()
    objective = np.zeros(program.size)
    objective[t] = 1
    upper = np.ones(program.size)
    upper[t] = inf
    passes = costs.forward_seconds + costs.backward_seconds
    for u, s in product(range(num_units), range(stages)):
        objective[x[u, s]] = passes[u]
        extra = costs.recompute_seconds[u]
        objective[y[u, s]], upper[y[u, s]] = (extra, 1) if extra < inf else (0, 0)
        objective[z[u, s]] = costs.message_seconds[u - 1] if u else 0
        program.add({y[u, s]: 1, x[u, s]: -1}, -inf, 0)
        program.add({y[u, s]: 1, w[s]: -1}, -inf, 0)
        before = {x[u - 1, s]: 1.0} if u else {}
        program.add({z[u, s]: 1, x[u, s]: -1, **before}, 0, inf)  # it begins where the unit before is elsewhere
        if u and s + 1 < stages:  # a unit is on the stage of the one before, or on the next
            program.add({x[u - 1, s]: 1, x[u, s]: -1, x[u, s + 1]: -1}, -inf, 0)
    for u in range(num_units):
        program.add({x[u, s]: 1 for s in range(stages)}, 1, 1)
        if u:
            program.add({x[u - 1, stages - 1]: 1, x[u, stages - 1]: -1}, -inf, 0)
    for s in range(stages):
        held = in_flight(num, stages, s)
        room, slowest = {w[s]: costs.restored_bytes}, {t: -1.0}
        for u in range(num_units):
            room[x[u, s]] = costs.state_bytes[u] + held * costs.kept_bytes[u]
            room[y[u, s]] = held * (costs.recomputed_kept_bytes[u] - costs.kept_bytes[u])
            room[z[u, s]] = held * (costs.output_bytes[u - 1] if u else 0)
            slowest[x[u, s]] = (num - 1) * passes[u] + costs.update_seconds[u]
            slowest[y[u, s]] = (num - 1) * objective[y[u, s]]
            slowest[z[u, s]] = (num - 1) * objective[z[u, s]]
        program.add({x[u, s]: 1 for u in range(num_units)}, 1, inf)
        program.add(room, -inf, question.devices[0].capacity_bytes - costs.transient_bytes)
        program.add(slowest, -inf, -costs.closing_seconds)
    return program.solved(objective, upper, t)


class _Rows:
    """The rows of a program over x, y, z of units × stages, w of stages, and t."""

    def __init__(self, num_units: int, stages: int) -> None:
        self._shape = num_units, stages
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[tuple[float, float]] = []
        self.size = 3 * num_units * stages + stages + 1

    def names(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        units, stages = self._shape
        three = np.arange(3 * units * stages).reshape(3, units, stages)
        return three[0], three[1], three[2], np.arange(self.size - 1 - stages, self.size - 1), self.size - 1

    def add(self, row: dict[int, float], low: float, high: float) -> None:
        self._entries += [(len(self._limits), int(column), float(value)) for column, value in row.items()]
        self._limits.append((low, high))

    def solved(self, objective: np.ndarray, upper: np.ndarray, t: int) -> float:
        rows, columns, values = zip(*self._entries, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self._limits), self.size))
        low, high = np.array(self._limits).T
        integrality = np.ones(self.size)
        integrality[t] = 0
        answer = milp(
            objective,
            constraints=LinearConstraint(matrix, low, high),
            integrality=integrality,
            bounds=(np.zeros(self.size), upper),
            options={"mip_rel_gap": 0.0},
        )
        return float(answer.fun) if answer.success else inf
