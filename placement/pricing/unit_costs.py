"""Costs of one unit of a model on one rank: seconds, bytes and collectives, under any way to spread the model.

Every formula is here once: ``pricer`` adds them up for a whole way, ``exact.candidate_ways`` passes them to the search.
Recompute adds the forward pass of a block, selective recompute what is neither a product of matrices nor attention in
it. The collectives of a way are those that its trace would have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from estimators.axes import MESH, Spread
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
TENSORS_PER_BLOCK = 12
"""Parameters of a block of a transformer; ZeRO-1 adds up the gradient of each by itself."""
SHARDED_PER_BLOCK = 68
"""Operations on DTensors of a tensor-parallel block of a transformer in both passes: 64, and 72 if sequences are
divided."""

_SLOW = ("matmul", "convolution", "attention")
_TRANSIENT = ("scratch", "workspace", "batch", "slack", "objects")


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of a micro-batch of b samples: ``fixed`` + b · ``per_sample``."""

    fixed: float
    per_sample: float

    def at(self, samples: float) -> float:
        """Seconds for ``samples`` samples, at least 0."""
        return max(0.0, self.fixed + self.per_sample * samples)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one unit: in the forward and the backward pass of each micro-batch, in each recompute, and once in
    a step."""

    forward: tuple[Collectives, ...] = ()
    backward: tuple[Collectives, ...] = ()
    recompute: tuple[Collectives, ...] = ()
    update: tuple[Collectives, ...] = ()

    def of_step(self, num_micro_batches: int, recomputed: bool) -> Iterator[tuple[Collectives, float]]:
        """Yield the collectives of a whole step, each with how often they run."""
        again = self.recompute if recomputed else ()
        yield from ((collectives, num_micro_batches) for collectives in (*self.forward, *self.backward, *again))
        yield from ((collectives, 1) for collectives in self.update)


@dataclass(frozen=True, slots=True, eq=False)
class UnitCosts:
    """The costs of one unit: seconds of both passes, of the forward pass, and of what selective recompute repeats.

    Only blocks are divided by tensor parallelism and recomputed. ``sharded_seconds`` are those of one operation on a
    DTensor.
    """

    unit: Unit
    is_block: bool
    passes: Seconds
    forward: Seconds
    cheap: Seconds
    sharded_seconds: float
    num_convolutions: float
    num_norms: float
    num_attentions: float = 0.0

    @property
    def num_params(self) -> int:
        return self.unit.num_params

    def is_divided(self, way: Spread) -> bool:
        """Whether tensor-parallel ranks have a part of it."""
        return way.tp > 1 and self.is_block

    def output_bytes(self, samples: float) -> float:
        """Bytes that the next unit gets."""
        return max(0.0, self.unit.output.bytes_per_sample * samples + self.unit.output.fixed_bytes)

    def seconds(self, way: Spread, micro_batch: float) -> float:
        """Seconds of both passes of a micro-batch on one rank, recompute included."""
        parts = (way.co_shard - 1) * self.passes.at(0) if self.is_block else 0.0  # each part runs every operation
        sharded = SHARDED_PER_BLOCK * self.sharded_seconds if self.is_divided(way) else 0.0
        return (
            self.passes.at(self._share(way, micro_batch)) + self.recompute_seconds(way, micro_batch) + parts + sharded
        )

    def forward_seconds(self, way: Spread, micro_batch: float) -> float:
        """Seconds of the forward pass of a micro-batch on one rank, without those of co-shard."""
        share = self._share(way, micro_batch)
        sharded = SHARDED_PER_BLOCK * self.sharded_seconds / 2 if self.is_divided(way) else 0.0
        return min(self.forward.at(share), self.passes.at(share)) + sharded

    def recompute_seconds(self, way: Spread, micro_batch: float) -> float:
        """Seconds of what the backward pass of a micro-batch computes again."""
        if self.is_block and way.selective:
            return self.cheap.at(self._share(way, micro_batch))
        is_whole = self.is_block and (way.recompute or way.co_shard > 1)
        return self.forward.at(self._share(way, micro_batch)) if is_whole else 0.0

    def kept_bytes(self, way: Spread, samples: float) -> float:
        """Bytes kept of one micro-batch for its backward pass."""
        total = self._activations(way, samples)
        if not self.is_block:
            return total
        entering = self.output_bytes(samples) / (way.tp if way.sequence_parallel else 1)
        if way.co_shard > 1:
            return min(total, 2 * entering)
        if way.selective:
            return max(entering, KEPT_SHARE * total)
        return min(total, entering) if way.recompute else total

    def working_bytes(self, way: Spread, samples: float) -> float:
        """Bytes that exist only while the unit is computed again."""
        if not self.is_block or not (way.recompute or way.co_shard > 1):
            return 0.0
        return self._activations(way, samples) / way.co_shard * ((1 - KEPT_SHARE) if way.selective else 1)

    def parameter_bytes(self, way: Spread) -> float:
        """Bytes of the parameters before FSDP divides them, without those of divided layers."""
        num_params = self.num_params - (self.unit.num_divided_params if way.divided else 0)
        return num_params * BYTES_PER_PARAMETER / (way.tp if self.is_divided(way) else 1)

    def held_bytes(self, way: Spread, bytes_per_parameter: float) -> float:
        """Bytes of parameters, gradients and optimizer states on one rank; all take ``bytes_per_parameter``."""
        parameter_bytes = self.num_params * bytes_per_parameter / (way.tp if self.is_divided(way) else 1)
        if way.zero1:
            fixed = 2 * self.num_params * BYTES_PER_PARAMETER
            return fixed + max(0.0, parameter_bytes - fixed) / way.dp_replicate
        if way.adasum:
            return parameter_bytes + self.num_params * BYTES_PER_PARAMETER  # the weights before the update
        if way.divided:
            parameter_bytes -= self.unit.num_divided_params * bytes_per_parameter * (1 - 1 / way.dp_replicate)
        return parameter_bytes / way.dp_shard

    def traffic(self, way: Spread, samples: float, num_rest: int) -> Traffic:
        """Collectives on one rank, without messages between stages and slabs.

        FSDP gathers a block for either pass, or once if it stays gathered, and all the rest of a stage once, in one
        collective. ``num_rest`` is 1 for the unit at which that one is counted, whatever its bytes belong to. All
        gradients are reduced.
        """
        tensor = (*self._of_tensor_parallel(way, samples), *self._of_divided(way, samples))
        gathers = (*self._gathers(way, self.is_block + num_rest),)
        again = (*self._gathers(way, 1),) if self.is_block and way.reshard else ()
        reductions = (*self._reductions(way, self.is_block + num_rest),)
        of_step = (*self._of_whole_replicas(way, self.is_block + num_rest),)
        return Traffic((*gathers, *tensor), (*again, *reductions, *tensor), tensor, of_step)

    def _share(self, way: Spread, micro_batch: float) -> float:
        return micro_batch / way.spatial / (way.tp if self.is_divided(way) else 1)

    def _activations(self, way: Spread, samples: float) -> float:
        line = self.unit.activations
        total = max(0.0, line.bytes_per_sample * samples + line.fixed_bytes - self._copies(way))
        if not self.is_divided(way):
            return total
        return total / way.tp if way.sequence_parallel else total * (WHOLE_SHARE + (1 - WHOLE_SHARE) / way.tp)

    def _copies(self, way: Spread) -> float:
        """Bytes of copies of parameters in fewer bytes, which a rank with whole parameters keeps and FSDP frees."""
        size = self.unit.gathered_bytes
        return self.num_params * size if size < BYTES_PER_PARAMETER and way.fsdp_mesh and way.reshard else 0.0

    def _gathers(self, way: Spread, num: int) -> Iterator[Collectives]:
        if way.dp_shard > 1:
            size = self.parameter_bytes(way) * self.unit.gathered_bytes / BYTES_PER_PARAMETER
            yield Collectives("all_gather", MESH["dp_shard"].name, True, num, size)

    def _reductions(self, way: Spread, num: int) -> Iterator[Collectives]:
        size = self.parameter_bytes(way) * self.unit.reduced_bytes / BYTES_PER_PARAMETER
        if way.dp_shard > 1:
            yield Collectives("reduce_scatter", MESH["dp_shard"].name, True, num, size)
        for axis in ("dp_replicate", "spatial"):
            if way.fsdp_mesh and getattr(way, axis) > 1:
                yield Collectives("all_reduce", MESH[axis].name, True, num, size / way.dp_shard)

    def _of_whole_replicas(self, way: Spread, num: int) -> Iterator[Collectives]:
        """Replicas average their gradients in ``num`` buckets, those of ZeRO-1 each gradient; see also ``broadcasts``.

        They wait for the bucket that is not that of a block, which is the last one.
        Adasum's replicas combine updates by recursive halving and doubling, which moves as many bytes as an all-reduce.
        """
        size = self.parameter_bytes(way)
        if way.averages_gradients:
            yield Collectives("queued_all_reduce", MESH["dp_replicate"].name, self.is_block, num, size)
        if way.zero1:
            yield waited("queued_all_reduce", "dp_replicate", TENSORS_PER_BLOCK, size / TENSORS_PER_BLOCK)
        if way.adasum:
            yield waited("all_reduce", "dp_replicate", 1, size)

    def _of_tensor_parallel(self, way: Spread, samples: float) -> Iterator[Collectives]:
        """Collectives with which ranks add up the outputs of attention and feed-forward in each pass of a block."""
        if self.is_divided(way):
            for kind in ("new_all_gather", "new_reduce_scatter") if way.sequence_parallel else ("new_all_reduce",):
                yield waited(kind, "tp", 2, self.output_bytes(samples))

    def _of_divided(self, way: Spread, samples: float) -> Iterator[Collectives]:
        """The all-to-alls with which a rank gets the vectors of its samples, or gives back their gradients.

        A block has experts, to which it sends its tokens as well. The output of the unit stands for these vectors.
        Indices are not counted.
        """
        if way.divided and self.unit.num_divided_params:
            axis = "dp_replicate" if way.dp_replicate > 1 else "dp_shard"
            yield waited("all_to_all", axis, 2 if self.is_block else 1, self.output_bytes(samples))


class ModelCosts:
    """The costs of all units of a model on one kind of devices, and what does not belong to a single unit."""

    def __init__(self, profile: ModelProfile, kind: DeviceKind) -> None:
        """``profile`` must have units. Equal units share one ``UnitCosts``, but never with an end of the model."""
        self._profile = profile
        self._corrections: dict[int, float] = {}
        self._transient: dict[int, int] = {}
        self._fixed: dict[tuple[Spread, int], tuple[float, Mapping[UnitCosts, int]]] = {}  # stages are kept alive
        every_unit = [unit for unit in profile.units for _ in range(unit.count)]
        last = len(every_unit) - 1
        costs_by_unit: dict[tuple[int, bool], UnitCosts] = {}
        for number, unit in enumerate(every_unit):
            key = id(unit), 0 < number < last or not last
            if key not in costs_by_unit:
                costs_by_unit[key] = costs_of(unit, kind, key[1])
        self.units = [costs_by_unit[id(unit), 0 < number < last or not last] for number, unit in enumerate(every_unit)]
        self.counted = Counter(self.units)
        self.bytes_per_parameter = profile.state_bytes / max(1, profile.num_params)
        self.update_seconds = kind.seconds(profile.work[Layout()].update)

    def stages(self, way: Spread) -> list[Sequence[UnitCosts]]:
        """The units of each stage; the first stage has the part before the blocks, the last one that after them."""
        if way.pp == 1:
            return [self.units]
        first, *blocks, last = self.units
        num = way.num_stages
        cut = [blocks_of_stage(len(blocks), index, num, way.cut) for index in range(num)]
        stages = [[blocks[number] for number in numbers] for numbers in cut]
        return [[first, *stages[0]], *stages[1:-1], [*stages[-1], last]]

    def kept_bytes(self, way: Spread, samples: float) -> list[float]:
        """Bytes that each stage keeps of one micro-batch; only some blocks may be recomputed."""
        without = replace(way, recompute=False, selective=False, recomputed=())
        recomputed_blocks = set(way.recomputed) if way.recomputed else range(len(self.units))
        numbers, sizes = count(-1 if len(self.units) > 1 else 0), list[float]()
        for stage in self.stages(way):
            ways = (way if next(numbers) in recomputed_blocks else without for _ in stage)
            sizes.append(sum(unit.kept_bytes(of_unit, samples) for unit, of_unit in zip(stage, ways, strict=True)))
        return sizes

    def stage_bytes(self, way: Spread, stage: Mapping[UnitCosts, int], micro_batch: int, in_flight: int) -> float:
        """Bytes of a rank that has these numbers of units, added up; see ``correction``."""
        samples = micro_batch / way.spatial
        kept_bytes = in_flight * sum(num * unit.kept_bytes(way, samples) for unit, num in stage.items())
        working_bytes = max(unit.working_bytes(way, samples) for unit in stage)
        transient_bytes = self.transient_bytes(micro_batch) / way.spatial
        return self._fixed_bytes(way, stage) + kept_bytes + working_bytes + transient_bytes

    def _fixed_bytes(self, way: Spread, stage: Mapping[UnitCosts, int]) -> float:
        """Bytes that do not depend on the micro-batch, computed once for each way and its stages."""
        key = way, id(stage)
        if key not in self._fixed:
            states = sum(num * unit.held_bytes(way, self.bytes_per_parameter) for unit, num in stage.items())
            self._fixed[key] = states + gathered_bytes(way, stage), stage
        return self._fixed[key][0]

    def transient_bytes(self, micro_batch: int) -> int:
        """Bytes that passes need besides states and activations, as in the plain layout; 0 if that is not known."""
        if micro_batch not in self._transient:
            self._transient[micro_batch] = transient_bytes(self._profile, micro_batch) or 0
        return self._transient[micro_batch]

    def correction(self, micro_batch: int) -> float:
        """Traced peak of the plain layout over its sum of units, where not everything is held at once."""
        if micro_batch not in self._corrections:
            curve = self._profile.curves[Layout()]
            try:
                correction = curve.peak_bytes(micro_batch) / self.stage_bytes(Spread(), self.counted, micro_batch, 1)
            except ValueError:  # as above
                correction = 1.0
            self._corrections[micro_batch] = correction
        return self._corrections[micro_batch]


def transient_bytes(profile: ModelProfile, micro_batch: int) -> int | None:
    """Bytes that passes need besides states and activations in the plain layout.

    None beyond the largest traced micro-batch of a model whose sizes are not affine.
    """
    try:
        parts = profile.curves[Layout()].parts(micro_batch)
    except ValueError:
        return None
    return sum(parts.get(name, 0) for name in _TRANSIENT)


def costs_of(unit: Unit, kind: DeviceKind, is_block: bool) -> UnitCosts:
    """Costs of a unit on devices of one kind."""
    passes = Seconds(kind.seconds(unit.fixed), kind.seconds(unit.per_sample))
    forward = Seconds(kind.seconds(unit.forward.fixed), kind.seconds(unit.forward.per_sample))
    cheap = Seconds(kind.seconds(_cheap(unit.forward.fixed)), kind.seconds(_cheap(unit.forward.per_sample)))
    sharded_seconds = kind.rates["sharded"].per_op if "sharded" in kind.rates else 0.0
    counts = unit.fixed.of("convolution")[0], unit.fixed.of("normalisation")[0], unit.forward.fixed.of("attention")[0]
    return UnitCosts(unit, is_block, passes, forward, cheap, sharded_seconds, *counts)


def gathered_bytes(way: Spread, units: Mapping[UnitCosts, int]) -> float:
    """Bytes that FSDP holds of units while they are whole.

    These are parameters of two passes and gradients of the largest unit; without ``reshard`` all parameters, and
    gradients of the largest unit.
    """
    if not way.fsdp_mesh:
        return 0.0
    largest = max(unit.parameter_bytes(way) for unit in units)
    if way.reshard:
        return 3 * largest
    return sum(num * unit.parameter_bytes(way) for unit, num in units.items()) + largest


def broadcasts(way: Spread, units: Mapping[UnitCosts, int]) -> Iterator[Collectives]:
    """Yield how ZeRO-1 ends a step: replicas send each other the parameters that they have updated."""
    if way.zero1:
        everything = sum(num * unit.parameter_bytes(way) for unit, num in units.items())
        yield waited("broadcast", "dp_replicate", way.dp_replicate, everything / way.dp_replicate)


def merged_communication(collectives: Iterable[tuple[Collectives, float]]) -> list[Collectives]:
    """One entry for each kind, dimension and whether they overlap, as in a trace; each comes with how often it runs."""
    sums: dict[tuple[str, str, bool], tuple[float, float]] = {}
    for collective, factor in collectives:
        num, num_bytes = sums.get(key := (collective.kind, collective.dimension, collective.overlaps), (0.0, 0.0))
        sums[key] = num + collective.num * factor, num_bytes + collective.num_bytes * factor
    return [Collectives(*key, *amounts) for key, amounts in sums.items()]


def waited(kind: str, axis: str, num: float, each_bytes: float) -> Collectives:
    """``num`` collectives of ``each_bytes`` along the dimension of ``axis``, for which the rank waits."""
    return Collectives(kind, MESH[axis].name, False, num, num * each_bytes)


def _cheap(work: Work) -> Work:
    """The part of ``work`` that is neither a product of matrices nor attention."""
    kept = (work.of(name) if name not in _SLOW else (0.0,) * len(work.of(name)) for name in OP_KINDS)
    return Work(tuple(amount for amounts in kept for amount in amounts))
