"""Lists the ways in which one stage of a candidate could be computed, with their costs, for the exact search.

A way is one of ``planning.ways.list_spreads`` for the ranks of a stage, a micro-batch, and the kind of recompute that
its blocks may have. Slabs of space and co-shard are left out. The formulas are those of ``pricing.unit_costs``, so a
step of a whole model on one stage takes as long as ``pricing.pricer`` says. The parts of the model before and after the
blocks are units of their own, which are never recomputed.

Bytes are plain sums: all states, activations in flight, and what a pass needs besides. With several micro-batches
gradients are indeed held with all activations. With a single one they are not, so such plans need somewhat less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf, isqrt

import numpy as np

from estimators.axes import MESH, Spread
from estimators.devices.communication import collective_seconds, gang_time, group_of, message_seconds
from estimators.devices.kind import FLOP_COUNTER, DeviceKind, Links
from estimators.profile import ModelProfile
from estimators.work import Collectives
from placement.exact.micro_batches import MOST_PASSES, numbers
from placement.exact.ways import Costs, Way
from placement.pipelining.simulator import StageCost
from placement.planning.question import divisors
from placement.planning.ways import list_spreads
from placement.pricing.unit_costs import (
    ModelCosts,
    Traffic,
    UnitCosts,
    broadcasts,
    gathered_bytes,
    merged_communication,
)

MOST_SIZES = 4
"""Most micro-batches that are tried for one spread and number of stages on many ranks."""
FEW_RANKS = 8
"""Ranks up to which twice as many micro-batches are tried."""
MOST_ODD_STAGES = 6
"""Stages on different devices up to which numbers that are not powers of two are tried as well."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """A spread with its micro-batches. ``kept_spread`` is the same without recompute, ``placed`` with stages, by which
    ranks are numbered."""

    spread: Spread
    kept_spread: Spread
    placed: Spread
    micro_batch: int
    num_micro_batches: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class StageUnits:
    """Units [start, end) as a stage on devices of the kind with this number, and those that are recomputed."""

    start: int
    end: int
    kind: int
    recomputed: frozenset[int]


class CandidateWays:
    """The ways of one candidate on devices of one or more kinds."""

    def __init__(self, profile: ModelProfile, kinds: Sequence[DeviceKind], batch: int) -> None:
        """``profile`` must have units. Without links, collectives and messages take no time."""
        self._divisions, self._batch = profile.divisions, batch
        between = slowest_links(kinds)
        self._on = [_OnKind(ModelCosts(profile, kind), kind, index, between) for index, kind in enumerate(kinds)]
        self._by_flops = FLOP_COUNTER in kinds
        self.num_units = len(self._on[0].model.units)

    def of(self, fewest: int, most: int) -> list[Way]:
        """All ways on at least ``fewest`` and at most ``most`` ranks, over all stages."""
        return [
            Way(shape.spread, shape.micro_batch, tuple(on.costs(shape) for on in self._on), shape.num_stages)
            for shape in self._shapes(fewest, most)
        ]

    def stage_costs(self, way: Way, stages: Sequence[StageUnits]) -> list[StageCost]:
        """Costs of stages for a simulation.

        Gradients of inputs and of weights are assumed to take the same time. Bytes that a pass needs besides its
        activations count as states.
        """
        return [self._on[stage.kind].stage_cost(way, stage) for stage in stages]

    def compute_seconds(self, way: Way, stage: StageUnits) -> float:
        """Seconds in which a stage computes for one micro-batch, without collectives and messages."""
        units = self._on[stage.kind].model.units[stage.start : stage.end]
        kept_spread = replace(way.spread, recompute=False, selective=False)
        repeated_seconds = [
            unit.recompute_seconds(way.spread, way.micro_batch)
            for number, unit in enumerate(units, stage.start)
            if number in stage.recomputed
        ]
        return sum(unit.seconds(kept_spread, way.micro_batch) for unit in units) + sum(repeated_seconds)

    def update_seconds(self, way: Way, kind: int) -> float:
        """Seconds of the optimizer on one rank of a single stage, on devices of the kind with this number."""
        return self._on[kind].model.update_seconds / way.spread.optimizer_shards

    def parameter_bytes(self, way: Way, stage: StageUnits) -> float:
        """Bytes of the parameters that a rank of a stage holds."""
        units = self._on[stage.kind].model.units[stage.start : stage.end]
        return sum(unit.parameter_bytes(way.spread) for unit in units) / way.spread.dp_shard

    def _shapes(self, fewest: int, most: int) -> Iterator[_Shape]:
        for num_stages in self._numbers_of_stages(most):
            for num_ranks in self._numbers(most // num_stages, most):
                if fewest <= num_stages * num_ranks:
                    for spread in list_spreads(self._divisions, num_ranks, num_stages):
                        if spread.spatial == 1:  # units do not say what slabs exchange
                            yield from self._of_spread(replace(spread, pp=1), num_stages)

    def _of_spread(self, spread: Spread, num_stages: int) -> Iterator[_Shape]:
        share, rest = divmod(self._batch, spread.dp_replicate * spread.dp_shard)
        if rest:
            return
        most = MOST_SIZES if num_stages * spread.world_size > FEW_RANKS else 2 * MOST_SIZES
        sizes = self._sizes(share, num_stages, most)
        placed = replace(spread, pp=num_stages if len(self._on) == 1 else 1)
        # By FLOPs, selective recompute would cost nothing.
        for selective in (False,) if self._by_flops else (False, True):
            inside = replace(spread, recompute=True, selective=selective)
            yield from (_Shape(inside, spread, placed, size, share // size, num_stages) for size in sizes)

    def _numbers_of_stages(self, most: int) -> list[int]:
        largest = min(most, self._divisions.most_stages, self.num_units, isqrt(MOST_PASSES))
        odd = range(1, min(largest, MOST_ODD_STAGES) + 1) if len(self._on) > 1 else ()
        return sorted({*odd, *self._numbers(largest, most)})

    @staticmethod
    def _numbers(most: int, num_devices: int) -> list[int]:
        """1, 2, 4, … and what divides the number of devices, up to ``most``."""
        return sorted(
            {2**index for index in range(most.bit_length())} | {n for n in divisors(num_devices) if n <= most}
        )

    def _sizes(self, share: int, num_stages: int, most_sizes: int) -> list[int]:
        """Up to ``most_sizes`` micro-batches that divide the share of a rank, with the largest and the smallest."""
        if num_stages > 1:
            usable = numbers(share, num_stages, self._divisions.constraints, by_flops=self._by_flops)
            sizes = [share // num for num in reversed(usable) if num * num_stages <= MOST_PASSES]
        else:
            sizes = divisors(share)
        step = (len(sizes) - 1) / (most_sizes - 1)
        return [sizes[round(step * index)] for index in range(most_sizes)] if len(sizes) > most_sizes else sizes


@dataclass(frozen=True, slots=True)
class _Exposed:
    """Seconds of one micro-batch in which ranks wait for collectives that mostly overlap with computation.

    ``least`` and ``most`` are those of the whole model with and without recompute, which hides more of them. ``ends``
    pass on every stage: the first gather and the last reduction of a micro-batch hide behind nothing. ``hidden`` are
    the seconds of all these collectives by unit, and ``repeated_seconds`` those of recompute.
    """

    least: float
    most: float
    ends: float
    hidden: Mapping[UnitCosts, float]
    repeated_seconds: Mapping[UnitCosts, float]
    all_hidden: float
    total_repeated: float

    def share(self, unit: UnitCosts) -> float:
        """The unit's share of the waiting without recompute."""
        return self.most * self.hidden[unit] / self.all_hidden if self.all_hidden else 0.0

    def saved(self, unit: UnitCosts) -> float:
        """Seconds of waiting that recompute of the unit hides."""
        if not self.total_repeated:
            return 0.0
        return (self.most - self.least) * self.repeated_seconds[unit] / self.total_repeated


class _OnKind:
    """Costs on devices of one kind."""

    def __init__(self, model: ModelCosts, kind: DeviceKind, index: int, between: Links | None) -> None:
        self._place = index
        self.model, self._kind = model, replace(kind, cores=None)
        self._links, self._between = kind.links, between
        self._runs = [(unit, len(list(same))) for unit, same in groupby(model.units)]
        self._counts = [count for _, count in self._runs]
        self._num_params = max(1, sum(unit.num_params for unit in model.units))

    def costs(self, shape: _Shape) -> Costs:
        """Costs of each unit on one rank."""
        spread, units = shape.kept_spread, [unit for unit, _ in self._runs]
        traffic = [unit.traffic(spread, shape.micro_batch, self._num_rest(unit, shape)) for unit in units]
        exposed = self._exposed(shape, traffic)
        rows = [
            self._row(unit, unit_traffic, shape, exposed) for unit, unit_traffic in zip(units, traffic, strict=True)
        ]
        arrays = {name: np.repeat(np.array([row[name] for row in rows], float), self._counts) for name in rows[0]}
        finals = sum(self._seconds(broadcast, shape) for broadcast in broadcasts(spread, self.model.counted))
        transient_bytes = gathered_bytes(spread, self.model.counted) + self.model.transient_bytes(shape.micro_batch)
        return Costs(
            **arrays,
            transient_bytes=transient_bytes,
            restored_bytes=max(unit.working_bytes(shape.spread, shape.micro_batch) for unit in units),
            closing_seconds=finals + exposed.ends * (shape.num_micro_batches + shape.num_stages - 1),
        )

    def stage_cost(self, way: Way, stage: StageUnits) -> StageCost:
        """Cost of these units for a simulation."""
        costs, here = way.costs[self._place], slice(stage.start, stage.end)
        recomputed_units = [unit for unit in range(stage.start, stage.end) if unit in stage.recomputed]
        dropped_bytes = (costs.kept_bytes - costs.recomputed_kept_bytes)[recomputed_units].sum()
        backward = float(costs.backward_seconds[here].sum() + costs.recompute_seconds[recomputed_units].sum())
        transient_bytes = costs.transient_bytes + (costs.restored_bytes if recomputed_units else 0.0)
        return StageCost(
            float(costs.forward_seconds[here].sum()),
            backward / 2,
            backward / 2,
            int(costs.kept_bytes[here].sum() - dropped_bytes),
            int(self.model.units[stage.end - 1].output_bytes(way.micro_batch)),
            int(costs.state_bytes[here].sum() + transient_bytes),
            float(costs.update_seconds[here].sum()) + costs.closing_seconds,
        )

    def _row(self, unit: UnitCosts, traffic: Traffic, shape: _Shape, exposed: _Exposed) -> dict[str, float]:
        """Costs of one unit, by the name of the array of ``Costs`` that has them."""
        spread, size = shape.kept_spread, shape.micro_batch
        forward = unit.forward_seconds(spread, size)
        backward = unit.seconds(spread, size) - forward + exposed.share(unit)
        repeated_seconds = inf
        if unit.is_block:
            waits = self._waits(traffic.recompute, shape)
            repeated_seconds = exposed.repeated_seconds[unit] - exposed.saved(unit) + waits
        share = unit.num_params / self._num_params / spread.optimizer_shards
        sent = unit.output_bytes(size)
        return {
            "forward_seconds": forward + self._waits(traffic.forward, shape),
            "backward_seconds": backward + self._waits(traffic.backward, shape),
            "state_bytes": unit.held_bytes(spread, self.model.bytes_per_parameter),
            "kept_bytes": unit.kept_bytes(spread, size),
            "output_bytes": sent,
            "recompute_seconds": max(0.0, repeated_seconds),
            "recomputed_kept_bytes": unit.kept_bytes(shape.spread, size),
            "message_seconds": 2 * self._message_seconds(sent, shape) if shape.num_stages > 1 else 0.0,
            "update_seconds": share * self.model.update_seconds + self._waits(traffic.update, shape),
        }

    def _num_rest(self, unit: UnitCosts, shape: _Shape) -> int:
        """Stages have the first end or the last one; a single stage has both, which are gathered together."""
        is_first = unit is self.model.units[0]
        return int(is_first or (shape.num_stages > 1 and not unit.is_block))

    def _exposed(self, shape: _Shape, traffic: Sequence[Traffic]) -> _Exposed:
        units, num = [unit for unit, _ in self._runs], shape.num_micro_batches
        repeated_seconds = {unit: unit.recompute_seconds(shape.spread, shape.micro_batch) for unit in units}
        # Each with how often it runs in a step.
        both = [
            [(collectives, often) for collectives, often in flow.of_step(num, False) if self._hides(collectives)]
            for flow in traffic
        ]
        hidden = {
            unit: sum(self._seconds(collectives, shape) * often for collectives, often in messages) / num
            for unit, messages in zip(units, both, strict=True)
        }
        total_repeated = self._sum(repeated_seconds)
        if self._links is None or not any(hidden.values()):
            return _Exposed(0.0, 0.0, 0.0, hidden, repeated_seconds, 0.0, total_repeated)
        everything = merged_communication(
            (collectives, count * often)
            for messages, count in zip(both, self._counts, strict=True)
            for collectives, often in messages
        )
        computing = self._sum({unit: unit.seconds(shape.kept_spread, shape.micro_batch) for unit in units})
        update = self.model.update_seconds / shape.kept_spread.optimizer_shards
        waits = [
            gang_time(self._kind, self._links, shape.placed, seconds, everything, num).exposed_seconds / num
            for seconds in (inf, num * (computing + total_repeated) + update, num * computing + update)
        ]
        least, most = waits[1] - waits[0], waits[2] - waits[0]
        return _Exposed(least, most, waits[0], hidden, repeated_seconds, self._sum(hidden), total_repeated)

    def _sum(self, amounts: Mapping[UnitCosts, float]) -> float:
        """Sum over all units of the model."""
        return sum(amounts[unit] * count for unit, count in self._runs)

    def _hides(self, collectives: Collectives) -> bool:
        return collectives.overlaps and self._links is not None and self._links.overlap

    def _waits(self, collectives: Sequence[Collectives], shape: _Shape) -> float:
        """Seconds of the collectives that ranks wait for."""
        return sum(self._seconds(collective, shape) for collective in collectives if not self._hides(collective))

    def _seconds(self, collectives: Collectives, shape: _Shape) -> float:
        """Seconds of these collectives; those that are counted at another unit add only their bytes."""
        if self._links is None:
            return 0.0
        group = group_of(shape.placed, collectives.dimension)
        if not collectives.num:
            nothing, bytes_alone = (
                collective_seconds(collectives.kind, size, group, self._links) for size in (0, collectives.num_bytes)
            )
            return bytes_alone - nothing
        return collectives.num * collective_seconds(
            collectives.kind, collectives.num_bytes / collectives.num, group, self._links
        )

    def _message_seconds(self, num_bytes: float, shape: _Shape) -> float:
        """Seconds of a message to the next stage, which may be on devices of another kind."""
        if self._between is not None:
            return message_seconds(num_bytes, 0, int(self._between.domain_size.value), self._between)
        if self._links is None:
            return 0.0
        return collective_seconds("message", num_bytes, group_of(shape.placed, MESH["pp"].name), self._links)


def slowest_links(kinds: Sequence[DeviceKind]) -> Links | None:
    """Links between devices of several kinds, which are on several nodes; None for one kind, or if none are known."""
    all_links = [kind.links for kind in kinds if kind.links is not None]
    if len(kinds) < 2 or not all_links:
        return None
    return min(all_links, key=lambda links: links.across.bytes_per_second.value)
