"""Ways to compute a unit on ranks in a grid, and their costs: the same formulas for hand-made and for new plans.

The outer dimension of the grid divides samples. The inner one divides samples as well, or layers (tensor parallelism),
or layers and between them tokens (with sequence parallelism), or space. Rates and links are those of
``estimators.devices.catalogue``, which are assumed, not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from benchmarks.planning.gpt import STATE_BYTES
from benchmarks.planning.unlike.emerging import Unit
from benchmarks.planning.unlike.layouts import Conversions, Mesh, Tensor, TensorLayout
from benchmarks.planning.unlike.unlike_ways import Flow, UnitWay
from estimators.devices.catalogue import gpu
from estimators.devices.communication import Group, collective_seconds
from estimators.devices.kind import DeviceKind, Links

KIND = gpu("V100-32")
NUM_RANKS = 32

Inner = Literal["data", "layers", "layers and tokens", "space"]
States = Literal["copies", "ZeRO-1", "FSDP"]

SAMPLES, COPIES = TensorLayout(((0, 1), (), ())), TensorLayout(((0,), (), ()))
ROWS, SUM = TensorLayout(((0,), (1,), ())), TensorLayout(((0,), (), ()), frozenset({1}))
FLOWS: dict[Inner, Flow] = {
    "data": Flow(SAMPLES, SAMPLES, SAMPLES, SAMPLES),
    "layers": Flow(COPIES, SUM, COPIES, SUM),
    "layers and tokens": Flow(ROWS, ROWS, ROWS, ROWS),
    "space": Flow(ROWS, ROWS, ROWS, ROWS),
}


class Kept(NamedTuple):
    """The activations that a unit keeps for its backward pass. By default it keeps all of them.

    Without ``scores`` it recomputes the scores of attention (selective recompute). With ``parts`` > 0 it keeps only its
    input and recomputes all else: at once with one part, or else part by part (co-shard).
    """

    parts: int = 0
    scores: bool = True

    def __str__(self) -> str:
        if not self.parts:
            return "" if self.scores else "scores again"
        return "recompute" if self.parts == 1 else f"co-shard {self.parts}"


class Style(NamedTuple):
    """One way to compute a unit on a grid. A tuple, because many of them are looked up."""

    inner: Inner = "data"
    kept: Kept = Kept()
    states: States = "copies"

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.inner, str(self.kept), self.states]))


@dataclass(frozen=True)
class Grid:
    """Ranks of one stage; neighbours along the outer dimension are ``stride`` apart. The kind is not compared."""

    num_outer: int
    num_inner: int
    stride: int
    kind: DeviceKind = field(default_factory=lambda: KIND, compare=False)

    @property
    def links(self) -> Links:
        """Links of the GPUs."""
        assert self.kind.links is not None
        return self.kind.links

    @property
    def inner(self) -> Group:
        """Ranks along the inner dimension."""
        return Group(self.num_inner)

    @property
    def mesh(self) -> Mesh:
        """The grid as a mesh, for conversions."""
        return Mesh((Group(self.num_outer, self.stride), self.inner), self.links)

    def shares_of(self, inner: Inner) -> Group:
        """The ranks that hold the same part of a unit's layers, and add up its gradients."""
        if inner in ("data", "space") and self.num_inner > 1:
            return Group(self.num_outer * self.num_inner)
        return Group(self.num_outer, self.stride)


def possible(unit: Unit, style: Style, grid: Grid, samples: int) -> bool:
    """Whether the grid can compute a unit so, on ``samples`` in all."""
    num = grid.num_inner
    shares = grid.num_outer * (num if style.inner == "data" else 1)
    if samples % shares or (style.inner != "data" and num == 1):
        return False
    if style.inner in ("data", "space") and num > 1 and grid.stride != num:
        return False  # the grid must be one row of ranks, which all hold the same parameters
    if style.states != "copies" and grid.shares_of(style.inner).num_ranks == 1:
        return False
    if (style.kept.parts and not unit.is_block) or (not style.kept.scores and not unit.score_bytes):
        return False
    if style.inner == "space":
        return unit.most_slabs % num == 0 and unit.rows % num == 0 and style.kept.parts <= 1
    if style.inner == "layers and tokens" and (not unit.is_block or unit.rows % num):
        return False
    divided = num if style.inner != "data" else 1
    return unit.most_parts % divided == 0 and max(unit.most_turns // divided, 1) % max(1, style.kept.parts) == 0


def tensor_of(unit: Unit, samples: int) -> Tensor:
    """The output of a unit for ``samples`` in all."""
    return Tensor((samples, unit.rows, unit.width))


@lru_cache(maxsize=200_000)
def cost(unit: Unit, style: Style, grid: Grid, samples: int, num_forwards: int) -> UnitWay:
    """The cost of a micro-batch of ``samples`` in all on one rank.

    FSDP gathers and reduces while a unit computes. Gradients of replicas are reduced during the last backward pass. All
    but the last of ``num_forwards`` keep nothing.
    """
    mine = _Mine(unit, style, grid, samples)
    compute, waits, parts = mine.compute_seconds, mine.waits_seconds, style.kept.parts
    recompute_seconds = compute + waits if parts else mine.score_seconds if not style.kept.scores else 0.0
    recompute_seconds += max(0, parts - 1) * mine.launch_seconds
    ring = mine.ring_seconds
    forward, backward, update = compute, 2 * compute + recompute_seconds, max(0.0, 2 * ring - 2 * compute)
    if style.states == "FSDP":
        forward, backward, update = max(compute, ring), max(backward, 2 * ring), 0.0
    shards = mine.shares.num_ranks if style.states != "copies" else 1
    updating = mine.num_params / shards * 2 * STATE_BYTES * grid.kind.rates["copy"].per_byte
    gathered = 4.0 * mine.num_params if style.states == "FSDP" else 0.0
    return UnitWay(
        str(style),
        FLOWS[style.inner],
        num_forwards * (forward + waits),
        backward + waits,
        mine.state_bytes,
        mine.kept_bytes,
        mine.working_bytes + gathered,
        update + updating,
    )


class _Mine:
    """The share of one rank."""

    def __init__(self, unit: Unit, style: Style, grid: Grid, samples: int) -> None:
        self._unit, self._style, self._grid = unit, style, grid
        self._num = 1 if style.inner == "data" else grid.num_inner
        self._samples = samples / grid.num_outer / (grid.num_inner if style.inner == "data" else 1)
        self._divided = self._num if style.inner in ("layers", "layers and tokens") else 1
        self._between = self._num if style.inner in ("layers and tokens", "space") else 1
        self.num_params = unit.num_params / self._divided
        self.shares = grid.shares_of(style.inner)

    @property
    def launch_seconds(self) -> float:
        return self._unit.launches * self._grid.kind.rates["copy"].per_op

    @property
    def compute_seconds(self) -> float:
        unit, rates = self._unit, self._grid.kind.rates
        moved = 2 * (unit.shared_bytes / self._between + unit.divided_bytes / self._num) * self._samples
        products = unit.flops * self._samples / self._num * rates["matmul"].per_half_flop
        return products + moved * rates["copy"].per_byte + self.launch_seconds

    @property
    def score_seconds(self) -> float:
        """Seconds to compute the scores of attention again."""
        unit, rates = self._unit, self._grid.kind.rates
        products = unit.score_flops * rates["matmul"].per_half_flop
        return (products + 2 * unit.score_bytes * rates["copy"].per_byte) * self._samples / self._num

    @property
    def waits_seconds(self) -> float:
        """Seconds of the unit's own collectives in a pass. What its neighbours need is converted elsewhere."""
        unit, grid = self._unit, self._grid
        if self._style.inner == "space":
            pairs = ((kind, num_bytes * self._samples) for kind, num_bytes in unit.exchanged)
            return sum(self._exchange(kind, num_bytes) for kind, num_bytes in pairs)
        num_bytes = unit.entering_bytes * self._samples
        if self._style.inner == "layers" and unit.is_block:
            reduced = collective_seconds("all_reduce", num_bytes, grid.inner, grid.links)
            return (unit.reductions - 1) * reduced
        if self._style.inner == "layers and tokens":
            pair = ("all_gather", "reduce_scatter")
            return unit.reductions * sum(
                collective_seconds(collective, num_bytes, grid.inner, grid.links) for collective in pair
            )
        return 0.0

    def _exchange(self, kind: str, whole_bytes: float) -> float:
        """Seconds of a collective between slabs; an all-to-all gets what each rank has."""
        num_bytes = whole_bytes / self._num if kind == "all_to_all" else whole_bytes
        group = replace(self._grid.inner, num_ranks=min(2, self._num)) if kind == "message" else self._grid.inner
        return collective_seconds(kind, num_bytes, group, self._grid.links)

    @property
    def ring_seconds(self) -> float:
        """Seconds to gather the parameters, or to reduce and divide their gradients."""
        return collective_seconds("all_gather", 2 * self.num_params, self.shares, self._grid.links)

    @property
    def state_bytes(self) -> float:
        num_params, shards = self.num_params, self.shares.num_ranks
        if self._style.states == "ZeRO-1":
            return num_params * (4 + (STATE_BYTES - 4) / shards)
        return num_params * STATE_BYTES / (shards if self._style.states == "FSDP" else 1)

    @property
    def kept_bytes(self) -> float:
        if not self._style.kept.parts:
            return self._activation_bytes(1) - (0.0 if self._style.kept.scores else self._score_bytes)
        entering = self._unit.entering_bytes * self._samples / self._between
        return min(self._activation_bytes(1), entering * (1 if self._style.kept.parts == 1 else 2))

    @property
    def working_bytes(self) -> float:
        parts = self._style.kept.parts
        passing = 2 * self._unit.output_bytes * self._samples / self._between
        if parts:
            return passing + self._activation_bytes(parts)
        return passing + (0.0 if self._style.kept.scores else self._score_bytes)

    @property
    def _score_bytes(self) -> float:
        return self._unit.score_bytes * self._samples / self._num

    def _activation_bytes(self, parts: int) -> float:
        unit = self._unit
        return (unit.shared_bytes / self._between + unit.divided_bytes / self._num / parts) * self._samples


def styles(
    unit: Unit, inners: tuple[Inner, ...], kepts: tuple[Kept, ...], states: tuple[States, ...]
) -> Iterator[Style]:
    """Yield all products; the ends of a model keep everything."""
    for inner in inners:
        of_unit: Inner = "layers" if inner == "layers and tokens" and not unit.is_block else inner
        for kept in kepts if unit.is_block else (Kept(),):
            for state in states:
                yield Style(of_unit, kept, state)


@lru_cache(maxsize=4096)
def conversions_on(grid: Grid) -> Conversions:
    """Conversions on a grid, which are kept for all plans."""
    return Conversions(grid.mesh)
