"""Finds the fastest plan exactly: number of stages, ranks of each, micro-batch, cut, and which units are recomputed.

Every way is tried with every number of stages. A bound says how fast each such staged way could be without limits of
memory. They are examined in the order of their bounds, until no bound is below the best plan found. At first only those
within a limit of time are examined, because few long stages need be considered then; without a plan it is raised.

A plan is exact in the sense of ``stages`` and of the costs given. All ranks of a stage are on one kind of devices, and
all stages have equally many ranks; ``shares`` divides a batch over different devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil

from estimators.axes import Spread, runs_of
from estimators.model import GIB
from placement.exact.dynamic_programs import SAME
from placement.exact.stages import CutStage, Optimum, Recomputes, best_stages, fastest
from placement.exact.ways import Devices, PipelineOrder, StagedWay, Way, list_staged_ways
from placement.option import NoPlan
from placement.pricing.categories import size_in_words

_FIRST_LIMIT = 1.25  # times the smallest bound
_NEXT_LIMIT = 2.0  # times the last one
_NUM_LIMITS = 6  # then there is none
_MORE_MEMORY = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 64.0)  # tried to say what would be enough


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A plan and its cost. ``cut`` and the other tuples have a value for each stage, the first stage first.

    ``spread`` includes the number of stages. ``devices`` are the names of the kinds that the stages are on,
    ``recomputed`` the units of the model that are recomputed, ``peak_bytes`` those of one rank, and ``stage_seconds``
    the time of one micro-batch. ``is_exact`` is False if too many different units could be recomputed to try all
    choices; the plan is valid, but may not be the fastest.
    """

    spread: Spread
    order: PipelineOrder
    micro_batch: int
    num_micro_batches: int
    cut: tuple[int, ...]
    devices: tuple[str, ...]
    recomputed: tuple[int, ...]
    seconds: float
    stage_seconds: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    reason: str
    is_exact: bool = True

    @property
    def num_ranks(self) -> int:
        return self.spread.world_size

    @property
    def largest_bytes(self) -> int:
        """Peak bytes of the rank that holds most."""
        return max(self.peak_bytes)


def search(
    ways: Sequence[Way], devices: Sequence[Devices], *, batch: int, order: PipelineOrder = "1f1b"
) -> StagedPlan | NoPlan:
    """The fastest plan for ``batch`` samples per optimizer step, or why none fits.

    Of plans that are equally fast, the one with the fewest ranks is taken, then the fewest stages, then the way that
    was given first. Raises ``ValueError`` for ways without costs on each kind of devices.
    """
    staged_ways = list_staged_ways(ways, devices, batch, order)
    recomputes = Recomputes()
    if not staged_ways:
        return NoPlan(f"no way divides a batch of {batch} on {_offer(devices)}: use another batch, or more devices")
    plan = _plan(_best(staged_ways, devices, recomputes), devices, recomputes)
    return plan or NoPlan(_refusal(staged_ways, devices, recomputes))


def search_or_none(
    ways: Sequence[Way], devices: Sequence[Devices], *, batch: int, order: PipelineOrder = "1f1b"
) -> StagedPlan | None:
    """Finds the plan of ``search``; None, without a reason, if none fits."""
    recomputes = Recomputes()
    return _plan(_best(list_staged_ways(ways, devices, batch, order), devices, recomputes), devices, recomputes)


def front(
    ways: Sequence[Way], devices: Sequence[Devices], *, batch: int, order: PipelineOrder = "1f1b", step_bytes: int = GIB
) -> list[StagedPlan]:
    """The plans that no other one beats in ranks, peak bytes and seconds at once: by ranks, then the fastest first.

    For each number of ranks the fastest plan is found, then the fastest one that needs at least ``step_bytes`` less on
    its largest rank, and so on. With a step of one byte these are all.
    """
    by_ranks = sorted(list_staged_ways(ways, devices, batch, order), key=lambda staged: staged.num_ranks)
    recomputes, plans = Recomputes(), list[StagedPlan]()
    for _, staged_ways in groupby(by_ranks, key=lambda staged: staged.num_ranks):
        plans += _descending(list(staged_ways), devices, recomputes, step_bytes, plans)
    return [plan for plan in plans if not any(_is_better(other, plan) for other in plans)]


def _descending(
    staged_ways: Sequence[StagedWay],
    devices: Sequence[Devices],
    recomputes: Recomputes,
    step_bytes: int,
    faster: Sequence[StagedPlan],
) -> list[StagedPlan]:
    """Plans with ever less memory, all with as many ranks, except where a known one is at least as good."""
    plans: list[StagedPlan] = []
    limited = list(devices)
    while (plan := _plan(_best(staged_ways, limited, recomputes), limited, recomputes, devices)) is not None:
        better = [rival.largest_bytes for rival in faster if _is_as_good(rival, plan)]
        if not better:
            plans.append(plan)
        capacity_bytes = min([plan.largest_bytes, *better]) - step_bytes  # more memory makes no plan faster
        limited = [replace(device, capacity_bytes=min(device.capacity_bytes, capacity_bytes)) for device in devices]
    return plans


def _is_as_good(plan: StagedPlan, other: StagedPlan) -> bool:
    """Whether it needs no more ranks, memory and time."""
    has_less = plan.num_ranks <= other.num_ranks and plan.largest_bytes <= other.largest_bytes
    return has_less and plan.seconds <= other.seconds * SAME


def _is_better(plan: StagedPlan, other: StagedPlan) -> bool:
    return _is_as_good(plan, other) and not _is_as_good(other, plan)


def _best(
    staged_ways: Sequence[StagedWay], devices: Sequence[Devices], recomputes: Recomputes
) -> tuple[StagedWay, Optimum] | None:
    """The fastest staged way; None if none fits."""
    remaining = sorted(staged_ways, key=lambda staged: staged.bound_seconds)
    limit_seconds = remaining[0].bound_seconds * _FIRST_LIMIT if remaining else 0.0
    for attempt in range(_NUM_LIMITS + 1):
        limit_seconds = float("inf") if attempt == _NUM_LIMITS else limit_seconds
        best, remaining = _best_within(limit_seconds, remaining, devices, recomputes)
        if best or not remaining:
            return best
        limit_seconds = max(limit_seconds, remaining[0].bound_seconds) * _NEXT_LIMIT
    return None


def _best_within(
    limit_seconds: float, staged_ways: Sequence[StagedWay], devices: Sequence[Devices], recomputes: Recomputes
) -> tuple[tuple[StagedWay, Optimum] | None, list[StagedWay]]:
    """The fastest staged way within the limit, if any, and those that may have slower plans.

    ``staged_ways`` are in the order of their bounds.
    """
    fits: list[tuple[StagedWay, Optimum]] = []
    slower: list[StagedWay] = []
    for staged in staged_ways:
        if staged.bound_seconds > limit_seconds * SAME:
            slower.append(staged)
            continue
        optimum, may_be_slower = fastest(staged, devices, recomputes, limit_seconds)
        if optimum is not None:
            fits.append((staged, optimum))
            limit_seconds = min(limit_seconds, optimum.seconds)
        elif may_be_slower:
            slower.append(staged)
    equal = [pair for pair in fits if pair[1].seconds <= limit_seconds * SAME]
    return min(equal, key=_rank, default=None), slower


def _rank(pair: tuple[StagedWay, Optimum]) -> tuple[int, int, int]:
    staged, _ = pair
    return staged.num_ranks, staged.num_stages, staged.index


def _plan(
    best: tuple[StagedWay, Optimum] | None,
    devices: Sequence[Devices],
    recomputes: Recomputes,
    offered: Sequence[Devices] | None = None,
) -> StagedPlan | None:
    """The plan within the memory of ``devices``; its reason compares it with that of ``offered``."""
    if best is None:
        return None
    staged, optimum = best
    stages = best_stages(staged, devices, recomputes, optimum)
    way = staged.way
    return StagedPlan(
        spread=replace(way.spread, pp=staged.num_stages, schedule=staged.order if staged.num_stages > 1 else "1f1b"),
        order=staged.order,
        micro_batch=way.micro_batch,
        num_micro_batches=staged.num_micro_batches,
        cut=tuple(stage.end - stage.start for stage in stages),
        devices=tuple(devices[stage.kind].name for stage in stages),
        recomputed=tuple(unit for stage in stages for unit in stage.recomputed),
        seconds=_seconds(stages, staged),
        stage_seconds=tuple(stage.seconds for stage in stages),
        peak_bytes=tuple(ceil(stage.peak_bytes) for stage in stages),
        reason=_reason(stages, staged, offered or devices),
        is_exact=all(recompute.is_exact for recompute in recomputes.values()),
    )


def _seconds(stages: Sequence[CutStage], staged: StagedWay, *, with_recompute: bool = True) -> float:
    """Seconds of a step of these stages."""
    passes = [stage.seconds - (0.0 if with_recompute else stage.recompute_seconds) for stage in stages]
    more = staged.num_micro_batches - 1
    return sum(passes) + max(more * seconds + stage.once_seconds for seconds, stage in zip(passes, stages, strict=True))


def _reason(stages: Sequence[CutStage], staged: StagedWay, devices: Sequence[Devices]) -> str:
    """Why the plan fits, in one line."""
    largest = max(stages, key=lambda stage: stage.peak_bytes / devices[stage.kind].capacity_bytes)
    capacity = size_in_words(devices[largest.kind].capacity_bytes)
    holds = f"the fullest rank holds {size_in_words(largest.peak_bytes)} of {capacity}"
    units = [unit for stage in stages for unit in stage.recomputed]
    if not units:
        return f"no recompute is needed: {holds}"
    saved = max(stage.saved_bytes for stage in stages)
    percent = 100 * (_seconds(stages, staged) / _seconds(stages, staged, with_recompute=False) - 1)
    up_to = "" if len(stages) == 1 else "up to "
    return f"recompute of {_ranges(units)} saves {up_to}{size_in_words(saved)} for {percent:.2g} % time: {holds}"


def _refusal(staged_ways: Sequence[StagedWay], devices: Sequence[Devices], recomputes: Recomputes) -> str:
    """How much memory would be enough, in words."""
    offer = _offer(devices)
    for factor in _MORE_MEMORY:
        larger = [replace(device, capacity_bytes=int(device.capacity_bytes * factor)) for device in devices]
        plan = _plan(_best(staged_ways, larger, recomputes), larger, recomputes)
        if plan is not None:
            needed = size_in_words(plan.largest_bytes)
            return f"no plan fits on {offer}: {plan.spread.ways} with recompute would need {needed}; use larger devices"
    return f"no plan fits on {offer}, nor with {_MORE_MEMORY[-1]:g} times their memory: use more devices"


def _offer(devices: Sequence[Devices]) -> str:
    return " and ".join(
        f"{device.count} × {device.name} ({size_in_words(device.capacity_bytes)})" for device in devices
    )


def _ranges(units: Sequence[int]) -> str:
    """Numbers of units as ranges, such as ``units 3-8, 10``."""
    words = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs_of(units))
    return f"unit{'s' if len(units) > 1 else ''} {words}"
