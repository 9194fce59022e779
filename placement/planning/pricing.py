"""Prices ways to spread a candidate before any of them is traced, from the costs of its units.

The plain layout's trace gives the work, the activations and the output of each unit (``unit_costs``). From them follow
the seconds of a step, by which ways are ordered, and roughly the peak of a rank, which says where a trace is worth
making. The peak that a plan is chosen by always comes from a trace.

Seconds are those of a rank that has its device for itself. A 1F1B pipeline of p stages takes the time of
(m + p − 1) / m steps of its slowest stage. ``estimators.devices.communication`` turns collectives into seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from estimators.axes import Spread
from estimators.devices.assumed import ASSUMED_LINKS
from estimators.devices.communication import gang_time
from estimators.devices.kind import DeviceKind
from estimators.profile import ModelProfile
from estimators.work import Collectives
from placement.planning.unit_costs import (
    ModelCosts,
    broadcasts,
    merged,
    state_shards,
    times,
    waited,
)

HALO_SHARE = 0.1
"""Share of a unit's output in the rows that slabs exchange for a convolution."""


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

    def price(self, way: Spread, micro_batch: int, num_micro_batches: int) -> Price:
        """Price of a step of so many micro-batches on each rank."""
        computing = self._compute_seconds(way, micro_batch, num_micro_batches)
        collectives = merged(self._collectives(way, micro_batch, num_micro_batches))
        time = gang_time(self._kind, self._links, way, computing, collectives, num_micro_batches)
        peak_bytes = self._peak_bytes(way, micro_batch, num_micro_batches)
        if num_micro_batches == 1:  # a sum of units: of several micro-batches, gradients are held as well
            peak_bytes *= self._model.correction(micro_batch)
        return Price(time.seconds, time.exposed_seconds, round(peak_bytes))

    def _compute_seconds(self, way: Spread, micro_batch: int, num: int) -> float:
        slowest = max(sum(unit.seconds(way, micro_batch) for unit in stage) for stage in self._model.stages(way))
        return slowest * (num + way.pp - 1) + self._model.update_seconds / state_shards(way)

    def _collectives(self, way: Spread, micro_batch: int, num: int) -> Iterator[Collectives]:
        """The collectives of a rank of the first stage."""
        units, samples = self._model.stages(way)[0], micro_batch / way.spatial
        for unit, count in Counter(units[1:]).items():
            yield from (times(one, count) for one in unit.traffic(way, samples, 0).of_step(num, way.recompute))
        yield from units[0].traffic(way, samples, 1).of_step(num, way.recompute)
        yield from broadcasts(way, units)
        if way.pp > 1:
            messages = 2 * (num + way.pp - 1)
            yield waited("message", "pp", messages, max(unit.output(samples) for unit in units))
        if way.spatial > 1:
            row = samples * HALO_SHARE * sum(unit.output(1) for unit in units) / len(units)
            yield waited("message", "spatial", 2 * num * sum(unit.num_convolutions for unit in units), row)
            yield waited("all_reduce", "spatial", 4 * num * sum(unit.num_norms for unit in units), 64.0)

    def _peak_bytes(self, way: Spread, micro_batch: int, num: int) -> float:
        return max(
            self._model.stage_bytes(way, stage, micro_batch, min(num, way.pp - index))
            for index, stage in enumerate(self._model.stages(way))
        )
