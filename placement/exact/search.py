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
from math import ceil

from estimators.axes import Spread
from placement.exact.dynamic_programs import SAME
from placement.exact.stages import CutStage, Optimum, Recomputes, best_stages, fastest
from placement.exact.ways import Devices, StagedWay, Way, list_staged_ways

_FIRST_LIMIT = 1.25  # times the smallest bound
_NEXT_LIMIT = 2.0  # times the last one
_NUM_LIMITS = 6  # then there is none


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A plan and its cost. ``cut`` and the other tuples have a value for each stage, the first stage first.

    ``spread`` includes the number of stages. ``devices`` are the names of the kinds that the stages are on,
    ``recomputed`` the units of the model that are recomputed, and ``peak_bytes`` those of one rank.
    """

    spread: Spread
    micro_batch: int
    num_micro_batches: int
    cut: tuple[int, ...]
    devices: tuple[str, ...]
    recomputed: tuple[int, ...]
    seconds: float
    peak_bytes: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        return self.spread.world_size


def search(ways: Sequence[Way], devices: Sequence[Devices], *, batch: int) -> StagedPlan | None:
    """The fastest plan for ``batch`` samples per optimizer step; None if none fits.

    Of plans that are equally fast, the one with the fewest ranks is taken, then the fewest stages, then the way that
    was given first. Raises ``ValueError`` for ways without costs on each kind of devices.
    """
    recomputes = Recomputes()
    best = _best(list_staged_ways(ways, devices, batch), devices, recomputes)
    if best is None:
        return None
    staged, optimum = best
    stages = best_stages(staged, devices, recomputes, optimum)
    return StagedPlan(
        spread=replace(staged.way.spread, pp=staged.num_stages),
        micro_batch=staged.way.micro_batch,
        num_micro_batches=staged.num_micro_batches,
        cut=tuple(stage.end - stage.start for stage in stages),
        devices=tuple(devices[stage.kind].name for stage in stages),
        recomputed=tuple(unit for stage in stages for unit in stage.recomputed),
        seconds=_seconds(stages, staged),
        peak_bytes=tuple(ceil(stage.peak_bytes) for stage in stages),
    )


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


def _seconds(stages: Sequence[CutStage], staged: StagedWay) -> float:
    """Seconds of a step of these stages."""
    more = staged.num_micro_batches - 1
    return sum(stage.seconds for stage in stages) + max(more * stage.seconds + stage.once_seconds for stage in stages)
