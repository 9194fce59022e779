"""Prices ways to spread a candidate before any of them is traced, from the costs of its units.

The plain layout's trace gives the work, the activations and the output of each unit. From them follow the seconds of a
step, by which ways are ordered, and roughly the peak of a rank, which says where a trace is worth making. The peak that
a plan is chosen by always comes from a trace.

Seconds are those of a rank that has its device for itself. Recompute adds the forward pass of the blocks, selective
recompute what is neither a product of matrices nor attention in it. A 1F1B pipeline of p stages takes the time of
(m + p − 1) / m steps of its slowest stage. The collectives of a way are those that its trace would have;
``estimators.devices.communication`` turns them into seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from estimators.axes import MESH, Spread
from estimators.devices.assumed import ASSUMED_LINKS
from estimators.devices.communication import gang_time
from estimators.devices.kind import DeviceKind
from estimators.model import Layout, blocks_of_stage
from estimators.peaks.units import Unit
from estimators.profile import ModelProfile
from estimators.work import OP_KINDS, Collectives, Work

KEPT_SHARE = 0.6
"""Share of a block's activations that selective recompute keeps: outputs of products and of attention."""
WHOLE_SHARE = 0.4
"""Share of a block's activations that tensor parallelism does not divide: what lies between the divided layers."""

BYTES_PER_PARAMETER = 4
HALO_SHARE = 0.1
"""Share of a unit's output in the rows that slabs exchange for a convolution."""
TENSORS_PER_BLOCK = 12
"""Parameters of a block of a transformer; ZeRO-1 adds up the gradient of each by itself."""
SHARDED_PER_BLOCK = 68
"""Operations on DTensors of a tensor-parallel block of a transformer in both passes: 64, and 72 if sequences are
divided."""

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
        """``profile`` must have units."""
        self._profile, self._links = profile, kind.links or ASSUMED_LINKS
        self._kind = replace(kind, cores=None)  # all devices are busy, so all ranks share cores in the same way
        each = [unit for unit in profile.units for _ in range(unit.count)]
        last = len(each) - 1
        self._units = [_costs(unit, kind, 0 < number < last or not last) for number, unit in enumerate(each)]
        self._corrections: dict[int, float] = {}
        self._state_bytes_per_parameter = profile.state_bytes / max(1, profile.num_params)
        self._update_seconds = kind.seconds(profile.work[Layout()].update)
        self._sharded_seconds = kind.rates["sharded"].per_op if "sharded" in kind.rates else 0.0

    def price(self, way: Spread, micro_batch: int, num_micro_batches: int) -> Price:
        """Price of a step of so many micro-batches on each rank."""
        computing = self._compute_seconds(way, micro_batch, num_micro_batches)
        collectives = list(self._collectives(way, micro_batch, num_micro_batches))
        time = gang_time(self._kind, self._links, way, computing, collectives, num_micro_batches)
        peak_bytes = self._peak_bytes(way, micro_batch, num_micro_batches) * self._correction(micro_batch)
        return Price(time.seconds, time.exposed_seconds, round(peak_bytes))

    def _stages(self, way: Spread) -> list[Sequence[_Costs]]:
        """The units of each stage; the first stage has the part before the blocks, the last one that after them."""
        if way.pp == 1:
            return [self._units]
        first, *blocks, last = self._units
        cut = [blocks_of_stage(len(blocks), index, way.pp) for index in range(way.pp)]
        stages = [[blocks[number] for number in numbers] for numbers in cut]
        return [[first, *stages[0]], *stages[1:-1], [*stages[-1], last]]

    def _compute_seconds(self, way: Spread, micro_batch: int, num: int) -> float:
        stages = self._stages(way)
        slowest = max(sum(unit.seconds(way, micro_batch) for unit in stage) for stage in stages)
        if way.tp > 1:
            slowest += SHARDED_PER_BLOCK * self._sharded_seconds * sum(unit.is_block for unit in stages[0])
        return slowest * (num + way.pp - 1) + self._update_seconds / _state_shards(way)

    def _collectives(self, way: Spread, micro_batch: int, num: int) -> Iterator[Collectives]:
        """The collectives of a rank of the first stage."""
        units, samples = self._stages(way)[0], micro_batch / way.spatial
        if way.fsdp_mesh:
            yield from self._of_fsdp(way, units, num)
        if way.zero1:
            yield from self._of_zero1(way, units)
        if way.tp > 1:
            yield from _of_tensor_parallel(way, units, samples, num)
        if way.pp > 1:
            messages = 2 * (num + way.pp - 1)
            yield _waited("message", "pp", messages, max(unit.output(samples) for unit in units))
        if way.spatial > 1:
            row = samples * HALO_SHARE * sum(unit.output(1) for unit in units) / len(units)
            yield _waited("message", "spatial", 2 * num * sum(unit.num_convolutions for unit in units), row)
            yield _waited("all_reduce", "spatial", 4 * num * sum(unit.num_norms for unit in units), 64.0)

    def _of_fsdp(self, way: Spread, units: Sequence[_Costs], num: int) -> Iterator[Collectives]:
        """Each block is gathered for either pass, the rest of the model once; all gradients are reduced."""
        sizes = [self._parameter_bytes(unit, way) for unit in units]
        blocks = [size for size, unit in zip(sizes, units, strict=True) if unit.is_block]
        num_groups = num * (len(blocks) + 1)
        if way.dp_shard > 1:
            name = MESH["dp_shard"].name
            num_gathers, gathered = num * (2 * len(blocks) + 1), num * (sum(sizes) + sum(blocks))
            yield Collectives("all_gather", name, True, num_gathers, gathered)
            yield Collectives("reduce_scatter", name, True, num_groups, num * sum(sizes))
        for axis in ("dp_replicate", "spatial"):
            if getattr(way, axis) > 1:
                yield Collectives("all_reduce", MESH[axis].name, True, num_groups, num * sum(sizes) / way.dp_shard)

    def _of_zero1(self, way: Spread, units: Sequence[_Costs]) -> Iterator[Collectives]:
        """Replicas add up the gradient of each parameter, and send each other those that they have updated."""
        everything, num_tensors = (
            sum(self._parameter_bytes(unit, way) for unit in units),
            TENSORS_PER_BLOCK * len(units),
        )
        yield _waited("queued_all_reduce", "dp_replicate", num_tensors, everything / num_tensors)
        yield _waited("broadcast", "dp_replicate", way.dp_replicate, everything / way.dp_replicate)

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
class _Seconds:
    """Seconds of a micro-batch of b samples: ``fixed`` + b · ``per_sample``."""

    fixed: float
    per_sample: float

    def at(self, samples: float) -> float:
        return max(0.0, self.fixed + self.per_sample * samples)


@dataclass(frozen=True, slots=True)
class _Costs:
    """The costs of one unit: seconds of both passes, of the forward pass, and of what selective recompute repeats."""

    unit: Unit
    is_block: bool
    passes: _Seconds
    forward: _Seconds
    light: _Seconds
    num_convolutions: float
    num_norms: float

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
        again = 0.0
        if self.is_block and way.selective:
            again = self.light.at(share)
        elif self.is_block and (way.recompute or way.co_shard > 1):
            again = self.forward.at(share)
        parts = (way.co_shard - 1) * self.passes.at(0) if self.is_block else 0.0  # each part runs every operation
        return self.passes.at(share) + again + parts

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
    forward = unit.forward
    passes = _Seconds(kind.seconds(unit.fixed), kind.seconds(unit.per_sample))
    once = _Seconds(kind.seconds(forward.fixed), kind.seconds(forward.per_sample))
    light = _Seconds(kind.seconds(_light(forward.fixed)), kind.seconds(_light(forward.per_sample)))
    counts = unit.fixed.of("convolution")[0], unit.fixed.of("normalisation")[0]
    return _Costs(unit, is_block, passes, once, light, *counts)


def _of_tensor_parallel(way: Spread, units: Sequence[_Costs], samples: float, num: int) -> Iterator[Collectives]:
    """Ranks add up the outputs of attention and feed-forward of each block in every pass, or divide them again."""
    sizes = [unit.output(samples) for unit in units if unit.is_block]
    times = 2 * num * (3 if way.recompute else 2) * len(sizes)
    for kind in ("new_all_gather", "new_reduce_scatter") if way.sequence_parallel else ("new_all_reduce",):
        yield _waited(kind, "tp", times, sum(sizes) / max(1, len(sizes)))


def _waited(kind: str, axis: str, num: float, each_bytes: float) -> Collectives:
    """``num`` collectives of ``each_bytes`` along the dimension of ``axis``, for which the rank waits."""
    return Collectives(kind, MESH[axis].name, False, num, num * each_bytes)


def _light(work: Work) -> Work:
    """The part of ``work`` that is neither a product of matrices nor attention."""
    kept = (work.of(name) if name not in _SLOW else (0.0,) * len(work.of(name)) for name in OP_KINDS)
    return Work(tuple(amount for amounts in kept for amount in amounts))


def _state_shards(way: Spread) -> int:
    """Number of ranks that share one copy of the optimizer states."""
    return way.dp_shard * way.tp * way.pp * (way.dp_replicate if way.zero1 else 1)
