"""Prices ways to spread a candidate before any of them is traced, from the costs of its units.

The plain layout's trace gives the work, the activations and the output of each unit (``unit_costs``). From them follow
the seconds of a step, by which ways are ordered, and roughly the peak of a rank, which says where a trace is worth
making. The peak that a plan is chosen by always comes from a trace.

Seconds are those of a rank that has its device for itself. A 1F1B pipeline of p stages takes the time of (m + p − 1) /
m steps of its slowest stage. ``estimators.devices.communication`` turns collectives into seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from estimators.axes import Spread
from estimators.devices.assumed import ASSUMED_LINKS
from estimators.devices.communication import gang_time
from estimators.devices.kind import DeviceKind
from estimators.profile import ModelProfile
from estimators.work import Collectives
from placement.pricing.unit_costs import (
    ModelCosts,
    UnitCosts,
    broadcasts,
    merged_communication,
    waited,
)

_DIVIDING_AXES = {"dp_replicate", "dp_shard", "reshard", "zero1", "adasum", "divided", "sequence_parallel", "schedule"}
"""Axes under which ranks compute the same: they divide samples, states, or activations between layers."""
_compute_axes = attrgetter(*(axis.name for axis in fields(Spread) if axis.name not in _DIVIDING_AXES))

HALO_SHARE = 0.1
"""Share of a unit's output in the rows that slabs exchange for a convolution."""


EXCHANGES = 8
"""All-to-alls of an attention over divided sequences: queries, keys, values and outputs, in each pass."""


@dataclass(frozen=True, slots=True)
class Price:
    """Predicted cost of a way: seconds of an optimizer step, how many of them ranks wait for communication, and roughly
    the peak bytes of the rank that needs most."""

    seconds: float
    communication_seconds: float
    peak_bytes: int


class Pricer:
    """Prices the ways of one candidate on devices of one kind."""

    def __init__(self, profile: ModelProfile, kind: DeviceKind) -> None:
        """``profile`` must have units."""
        self._links = kind.links or ASSUMED_LINKS
        self._kind = replace(kind, cores=None)  # all devices are busy, so all ranks share cores in the same way
        self._model = ModelCosts(profile, kind)
        self._cut: dict[int | tuple[int, ...], list[Mapping[UnitCosts, int]]] = {}
        self._slowest: dict[tuple[Any, ...], float] = {}
        self._least: dict[tuple[Any, ...], float] = {}

    def peak_bytes(self, way: Spread, micro_batch: int, num_micro_batches: int) -> float:
        """Rough peak of the rank that needs most, for this many micro-batches on each rank."""
        peak_bytes = self._peak_bytes(way, micro_batch, num_micro_batches)
        if num_micro_batches == 1:  # a sum of units: of several micro-batches, gradients are held as well
            peak_bytes *= self._model.correction(micro_batch)
        return peak_bytes

    def price(self, way: Spread, micro_batch: int, num_micro_batches: int, peak_bytes: float | None = None) -> Price:
        """Price of a step of this many micro-batches on each rank; ``peak_bytes`` are given if they are known."""
        if peak_bytes is None:
            peak_bytes = self.peak_bytes(way, micro_batch, num_micro_batches)
        computing = self._compute_seconds(way, micro_batch, num_micro_batches)
        collectives = merged_communication(self._collectives(way, micro_batch, num_micro_batches))
        time = gang_time(self._kind, self._links, way, computing, collectives, num_micro_batches)
        return Price(time.seconds, time.exposed_seconds, round(peak_bytes))

    def least_seconds(self, way: Spread, num_ranks: int, share: int, sizes: Sequence[int]) -> float:
        """A bound of the price's seconds at the best of these micro-batches of ``share`` samples for each rank: the
        seconds without communication. Kept for all ways with the same computation."""
        key = _compute_axes(way), share
        if key not in self._least:
            steps = way.pp - 1
            self._least[key] = min(self._slowest_stage(way, size) * (share // size + steps) for size in sizes)
        return self._kind.sharing(num_ranks) * (self._least[key] + self._model.update_seconds / way.optimizer_shards)

    def _stages(self, way: Spread) -> list[Mapping[UnitCosts, int]]:
        """The units of each stage with their numbers, made once for each cut."""
        key = way.cut or way.pp
        if key not in self._cut:
            self._cut[key] = [Counter(stage) for stage in self._model.stages(way)]
        return self._cut[key]

    def _compute_seconds(self, way: Spread, micro_batch: int, num: int) -> float:
        slowest = self._slowest_stage(way, micro_batch)
        return slowest * (num + way.pp - 1) + self._model.update_seconds / way.optimizer_shards

    def _slowest_stage(self, way: Spread, micro_batch: int) -> float:
        """Seconds of both passes of a micro-batch in the slowest stage, kept for all ways with the same computation."""
        key = _compute_axes(way), micro_batch
        if key not in self._slowest:
            self._slowest[key] = max(
                sum(count * unit.seconds(way, micro_batch) for unit, count in stage.items())
                for stage in self._stages(way)
            )
        return self._slowest[key]

    def _collectives(self, way: Spread, micro_batch: int, num: int) -> Iterator[tuple[Collectives, float]]:
        """The collectives of a rank of the first stage, each with how often they run."""
        units, samples = self._stages(way)[0], micro_batch / way.spatial
        first = self._model.units[0]
        for unit, count in units.items():
            if num_others := count - (unit is first):
                traffic = unit.traffic(way, samples, 0).of_step(num, way.recompute)
                yield from ((collectives, often * num_others) for collectives, often in traffic)
        yield from first.traffic(way, samples, 1).of_step(num, way.recompute)
        yield from ((broadcast, 1) for broadcast in broadcasts(way, units))
        if way.pp > 1:
            messages = 2 * (num + way.pp - 1)
            yield waited("message", "pp", messages, max(unit.output_bytes(samples) for unit in units)), 1
        if way.spatial > 1:
            total, counted = sum(units.values()), units.items()
            row = samples * HALO_SHARE * sum(count * unit.output_bytes(1) for unit, count in counted) / total
            num_attentions = sum(count * unit.num_attentions for unit, count in counted)
            num_convolutions = sum(count * unit.num_convolutions for unit, count in counted)
            num_norms = sum(count * unit.num_norms for unit, count in counted)
            yield waited("message", "spatial", 2 * num * num_convolutions, row), 1
            if num_attentions:  # sequences: their normalisations treat single positions
                num_bytes = samples * sum(
                    count * unit.output_bytes(1) for unit, count in counted if unit.num_attentions
                )
                num_blocks = sum(count for unit, count in counted if unit.num_attentions)
                yield waited("all_to_all", "spatial", EXCHANGES * num * num_attentions, num_bytes / num_blocks), 1
            else:
                yield waited("all_reduce", "spatial", 4 * num * num_norms, 64.0), 1

    def _peak_bytes(self, way: Spread, micro_batch: int, num: int) -> float:
        return max(
            self._model.stage_bytes(way, stage, micro_batch, min(num, way.pp - index))
            for index, stage in enumerate(self._stages(way))
        )
