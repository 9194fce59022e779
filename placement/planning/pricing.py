"""Prices ways to spread a candidate before any of them is traced, from the costs of its units.

The plain layout's trace gives the work, the activations and the output of each unit. From them follow the seconds of a
step, by which ways are ordered, and roughly the peak of a rank, which says where a trace is worth making. The peak that
a plan is chosen by always comes from a trace.

Seconds are those of a rank that has its device for itself. With F the forward share of a unit's time, recompute adds F
of it, selective recompute F of what is neither a product of matrices nor attention. A 1F1B pipeline of p stages takes
the time of (m + p − 1) / m steps of its slowest stage. Collectives are rings (``estimators.devices.communication``):

- FSDP gathers every unit's parameters twice and reduces its gradients once per micro-batch; this overlaps with
  computation, but for the ends;
- tensor parallel ranks add up the outputs of each block twice in either pass, and wait for it;
- stages send the output of a micro-batch and get its gradient back;
- slabs exchange rows at every convolution and sums at every normalisation: hops, as the messages are small;
- replicas add up all gradients once per step, and with ZeRO-1 send each other the updated parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from estimators.axes import Spread
from estimators.devices.assumed import ASSUMED_LINKS
from estimators.devices.communication import message_seconds, ring_seconds
from estimators.devices.kind import DeviceKind
from estimators.model import Layout, blocks_of_stage
from estimators.peaks.units import Unit
from estimators.profile import ModelProfile
from estimators.work import OP_KINDS, Work

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in a unit's time: the backward pass has two products of matrices for each of its own."""

KEPT_SHARE = 0.6
"""Share of a block's activations that selective recompute keeps: outputs of products and of attention."""
WHOLE_SHARE = 0.4
"""Share of a block's activations that tensor parallelism does not divide: what lies between the divided layers."""

BYTES_PER_PARAMETER = 4
_SLOW = ("matmul", "convolution", "attention")
_TRANSIENT = ("scratch", "workspace", "batch", "slack")


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
        self._profile, self._kind = profile, kind
        self._links = kind.links or ASSUMED_LINKS
        each = [unit for unit in profile.units for _ in range(unit.count)]
        last = len(each) - 1
        self._units = [_costs(unit, kind, 0 < number < last or not last) for number, unit in enumerate(each)]
        self._corrections: dict[int, float] = {}
        self._state_bytes_per_parameter = profile.state_bytes / max(1, profile.num_params)

    def price(self, way: Spread, micro_batch: int, num_micro_batches: int) -> Price:
        """Price of a step of so many micro-batches on each rank. The profile must have units."""
        computing = self._compute_seconds(way, micro_batch, num_micro_batches)
        waiting = self._communication_seconds(way, micro_batch, num_micro_batches, computing)
        update = self._kind.seconds(self._profile.work[Layout()].update) / _state_shards(way)
        peak_bytes = self._peak_bytes(way, micro_batch, num_micro_batches) * self._correction(micro_batch)
        return Price(computing + waiting + update, waiting, round(peak_bytes))

    def _stages(self, way: Spread) -> list[Sequence[_Costs]]:
        """The units of each stage; the first stage has the part before the blocks, the last one that after them."""
        if way.pp == 1:
            return [self._units]
        first, *blocks, last = self._units
        cut = [blocks_of_stage(len(blocks), index, way.pp) for index in range(way.pp)]
        stages = [[blocks[number] for number in numbers] for numbers in cut]
        return [[first, *stages[0]], *stages[1:-1], [*stages[-1], last]]

    def _compute_seconds(self, way: Spread, micro_batch: int, num: int) -> float:
        slowest = max(sum(unit.seconds(way, micro_batch) for unit in stage) for stage in self._stages(way))
        return slowest * (num + way.pp - 1)

    def _communication_seconds(self, way: Spread, micro_batch: int, num: int, computing: float) -> float:
        samples = micro_batch / way.spatial
        waiting = 0.0
        if way.tp > 1:
            sums = [ring_seconds(unit.output(samples), way.tp, self._links) for unit in self._units if unit.is_block]
            waiting += num * 4 * 2 * sum(sums)
        if way.pp > 1:
            sent = max(unit.output(samples) for unit in self._units)
            waiting += 2 * (num + way.pp - 1) * message_seconds(sent, 0, 1, self._links)
        if way.spatial > 1:
            hops = sum(unit.num_exchanges for unit in self._units)
            waiting += num * 2 * hops * message_seconds(0, 0, 1, self._links)
        return waiting + self._shard_seconds(way, num, computing) + self._replica_seconds(way, num)

    def _shard_seconds(self, way: Spread, num: int, computing: float) -> float:
        """Seconds that ranks wait for FSDP's gathers and reductions."""
        if way.dp_shard == 1:
            return 0.0
        sizes = [self._parameter_bytes(unit, way) for stage in self._stages(way)[:1] for unit in stage]
        each = [3 * ring_seconds(size, way.dp_shard, self._links) for size in sizes if size]
        at_the_ends = num * (sum(each) / max(1, len(each))) * 2 / 3
        return at_the_ends + max(0.0, num * sum(each) - at_the_ends - computing)

    def _replica_seconds(self, way: Spread, num: int) -> float:
        """Seconds in which copies of parameters add up their gradients, and ZeRO-1 sends the parameters."""
        copies = way.dp_replicate * way.spatial
        if copies == 1:
            return 0.0
        whole = self._profile.num_params * BYTES_PER_PARAMETER / (way.dp_shard * way.tp * way.pp)
        times = 3 if way.zero1 else 2 * num
        return times * ring_seconds(whole, copies, self._links)

    def _parameter_bytes(self, unit: _Costs, way: Spread) -> float:
        return unit.num_params * BYTES_PER_PARAMETER / (way.tp if unit.is_divided(way) else 1)

    def _correction(self, micro_batch: int) -> float:
        """Traced peak of the plain layout over its sum of units, where not everything is held at once."""
        if micro_batch not in self._corrections:
            curve = self._profile.curves[Layout()]
            try:
                known = curve.peak_bytes(micro_batch) / self._peak_bytes(Spread(), micro_batch, 1)
            except ValueError:  # beyond the largest micro-batch of a model whose sizes are not affine
                known = 1.0
            self._corrections[micro_batch] = known
        return self._corrections[micro_batch]

    def _peak_bytes(self, way: Spread, micro_batch: int, num: int) -> float:
        return max(
            self._stage_bytes(way, stage, micro_batch, min(num, way.pp - index))
            for index, stage in enumerate(self._stages(way))
        )

    def _stage_bytes(self, way: Spread, stage: Sequence[_Costs], micro_batch: int, in_flight: int) -> float:
        samples = micro_batch / way.spatial
        states = sum(self._held_bytes(unit, way) for unit in stage)
        kept = in_flight * sum(unit.kept(way, samples) for unit in stage)
        working = max(unit.working(way, samples) for unit in stage)
        gathered = 0.0
        if way.fsdp_mesh:
            gathered = 3 * max(self._parameter_bytes(unit, way) for unit in stage)
        return states + kept + working + gathered + self._transient_bytes(micro_batch) / way.spatial

    def _held_bytes(self, unit: _Costs, way: Spread) -> float:
        """Bytes of parameters, gradients and optimizer states of a unit on one rank."""
        whole = unit.num_params * self._state_bytes_per_parameter / (way.tp if unit.is_divided(way) else 1)
        if way.zero1:
            fixed = 2 * unit.num_params * BYTES_PER_PARAMETER
            return fixed + max(0.0, whole - fixed) / way.dp_replicate
        return whole / way.dp_shard

    def _transient_bytes(self, micro_batch: int) -> int:
        """Bytes that passes need beside states and activations, as in the plain layout."""
        curve = self._profile.curves[Layout()]
        try:
            parts = curve.parts(micro_batch)
        except ValueError:  # beyond the largest micro-batch of a model whose sizes are not affine
            return 0
        return sum(parts.get(name, 0) for name in _TRANSIENT)


@dataclass(frozen=True, slots=True)
class _Costs:
    """The costs of one unit. Seconds of a micro-batch of b samples are ``fixed`` + b · ``per_sample``; ``light`` is the
    part of them that is neither a product of matrices nor attention."""

    unit: Unit
    is_block: bool
    fixed: float
    per_sample: float
    light_fixed: float
    light_per_sample: float
    num_exchanges: float

    @property
    def num_params(self) -> int:
        return self.unit.num_params

    def is_divided(self, way: Spread) -> bool:
        """Whether tensor-parallel ranks have a part of it."""
        return way.tp > 1 and self.is_block

    def output(self, samples: float) -> float:
        return max(0.0, self.unit.output.bytes_per_sample * samples + self.unit.output.fixed_bytes)

    def seconds(self, way: Spread, micro_batch: int) -> float:
        """Seconds of both passes of a micro-batch on one rank."""
        share = micro_batch / way.spatial / (way.tp if self.is_divided(way) else 1)
        passes = max(0.0, self.fixed + self.per_sample * share)
        if not self.is_block:
            return passes
        if way.selective:
            return passes + FORWARD_SHARE * max(0.0, self.light_fixed + self.light_per_sample * share)
        if way.recompute or way.co_shard > 1:
            passes += FORWARD_SHARE * passes
        return passes + (way.co_shard - 1) * max(0.0, self.fixed)

    def kept(self, way: Spread, samples: float) -> float:
        """Bytes kept of one micro-batch for its backward pass."""
        whole = self._activations(way, samples)
        if not self.is_block:
            return whole
        entering = self.output(samples) / (way.tp if way.sequence_parallel else 1)
        if way.co_shard > 1:
            return min(whole, 2 * entering)
        if way.selective:
            return max(entering, KEPT_SHARE * whole)
        return min(whole, entering) if way.recompute else whole

    def working(self, way: Spread, samples: float) -> float:
        """Bytes that exist only while the unit is computed again."""
        if not self.is_block or not (way.recompute or way.co_shard > 1):
            return 0.0
        return self._activations(way, samples) / way.co_shard * ((1 - KEPT_SHARE) if way.selective else 1)

    def _activations(self, way: Spread, samples: float) -> float:
        line = self.unit.activations
        whole = max(0.0, line.bytes_per_sample * samples + line.fixed_bytes)
        if not self.is_divided(way):
            return whole
        return whole / way.tp if way.sequence_parallel else whole * (WHOLE_SHARE + (1 - WHOLE_SHARE) / way.tp)


def _costs(unit: Unit, kind: DeviceKind, is_block: bool) -> _Costs:
    fixed, per_sample = unit.fixed, unit.per_sample
    whole, light = (kind.seconds(fixed), kind.seconds(per_sample)), (_light(fixed), _light(per_sample))
    num_exchanges = fixed.of("convolution")[0] + fixed.of("normalisation")[0]
    return _Costs(unit, is_block, *whole, kind.seconds(light[0]), kind.seconds(light[1]), num_exchanges)


def _light(work: Work) -> Work:
    """The part of ``work`` that is neither a product of matrices nor attention."""
    kept = (work.of(name) if name not in _SLOW else (0.0,) * len(work.of(name)) for name in OP_KINDS)
    return Work(tuple(amount for amounts in kept for amount in amounts))


def _state_shards(way: Spread) -> int:
    """Number of ranks that share one copy of the optimizer states."""
    return way.dp_shard * way.tp * way.pp * (way.dp_replicate if way.zero1 else 1)
