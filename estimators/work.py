"""Amounts of work in a step by kind of operation and of collective, which a device's speed turns into seconds.

Pure. The kinds were chosen because the same FLOPs and bytes take them very different times. ``estimators.tracing``
counts the work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

OP_KINDS = (
    "matmul",
    "convolution",
    "attention",
    "normalisation",
    "lookup",
    "function",
    "copy",
    "other",
    "sharded",
)
"""``function`` stands for transcendental functions (GELU, softmax …), ``lookup`` for embeddings and indexing.
``sharded`` stands for operations on DTensors, which only cost time in Python. ``other`` operations mostly wait for
memory."""

COLLECTIVES = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "queued_all_reduce",
    "all_to_all",
    "broadcast",
    "message",
    "new_all_gather",
    "new_reduce_scatter",
    "new_all_reduce",
)
"""How ranks communicate. ``message`` goes from one rank to another. ``new_…`` return their result in new memory, as
DTensor's do; the others fill memory that exists, as FSDP2's do. A ``queued_all_reduce`` is one of many that a rank
starts before it waits for the first, as ZeRO-1 does. The bytes of a collective are those of the whole
tensor: what an all-gather gives each rank; what each rank contributes to a reduce-scatter, an all-reduce or an
all-to-all; what a broadcast or a message sends."""

AMOUNTS = ("operations", "FLOPs", "bytes", "fresh bytes", "half FLOPs")
"""The amounts counted for each kind. ``bytes`` are those of all tensors read and written. ``fresh bytes`` are those of
large buffers that an operation makes; on a CPU the operating system must map and clear them first. ``half FLOPs`` are
the FLOPs on 16-bit numbers, for which GPUs have special units."""

MAPPED_BYTES = 128 * 2**10
"""Buffers of at least this size get fresh memory each time: so malloc is set (``workloads.training.memory``)."""

_PER_KIND = len(AMOUNTS)
_NUM_AMOUNTS = _PER_KIND * len(OP_KINDS)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its kind (``OP_KINDS``), its FLOPs, and whether they are half FLOPs.

    ``sizes`` are the bytes of each tensor that it reads or writes, and ``new_sizes`` those of each that it makes in new
    memory.
    """

    kind: str
    flops: float
    is_half: bool
    sizes: tuple[int, ...]
    new_sizes: tuple[int, ...]

    @property
    def amounts(self) -> tuple[float, float, float, float]:
        """FLOPs, bytes, fresh bytes and half FLOPs (``AMOUNTS`` without the count)."""
        fresh_bytes = sum(size for size in self.new_sizes if size >= MAPPED_BYTES)
        return self.flops, sum(self.sizes), fresh_bytes, self.flops if self.is_half else 0.0


@dataclass(frozen=True, slots=True)
class Collectives:
    """``num`` collectives of one kind (``COLLECTIVES``) over one ``dimension`` of the device mesh, of ``num_bytes`` in
    total.

    A ``dimension`` "" stands for all ranks of the gang. With ``overlaps`` the rank computes meanwhile, as it does while
    FSDP2 communicates; otherwise it waits.
    """

    kind: str
    dimension: str
    overlaps: bool
    num: float
    num_bytes: float

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVES:
            raise ValueError(f"kind must be one of {', '.join(COLLECTIVES)}, got {self.kind!r}")


@dataclass(frozen=True, slots=True)
class Work:
    """The ``AMOUNTS`` of each of ``OP_KINDS``, one kind after another in one tuple, and all ``collectives``: one entry
    for each kind, dimension and whether they overlap."""

    amounts: tuple[float, ...] = (0,) * _NUM_AMOUNTS
    collectives: tuple[Collectives, ...] = ()

    def __post_init__(self) -> None:
        if len(self.amounts) != _NUM_AMOUNTS:
            raise ValueError(f"work has {_NUM_AMOUNTS} amounts, got {len(self.amounts)}")

    def of(self, kind: str) -> tuple[float, ...]:
        """The ``AMOUNTS`` of one kind."""
        first = _FIRST[kind]
        return self.amounts[first : first + _PER_KIND]

    @property
    def num_operations(self) -> int:
        """Operations of all kinds."""
        return round(sum(self.amounts[::_PER_KIND]))

    @property
    def flops(self) -> float:
        """FLOPs over all kinds."""
        return sum(self.amounts[1::_PER_KIND])

    @property
    def num_bytes(self) -> float:
        """Bytes of all tensors read and written, over all kinds."""
        return sum(self.amounts[2::_PER_KIND])

    def __add__(self, other: Work) -> Work:
        sums = tuple(a + b for a, b in zip(self.amounts, other.amounts, strict=True))
        return Work(sums, _merged(self.collectives, other.collectives))

    def __sub__(self, other: Work) -> Work:
        return self + other * -1

    def __mul__(self, factor: float) -> Work:
        collectives = tuple(
            replace(collective, num=collective.num * factor, num_bytes=collective.num_bytes * factor)
            for collective in self.collectives
        )
        return Work(tuple(amount * factor for amount in self.amounts), collectives)


def _merged(earlier: tuple[Collectives, ...], later: tuple[Collectives, ...]) -> tuple[Collectives, ...]:
    """The sums of both, without those that are nothing."""
    if not earlier or not later:
        return earlier or later
    sums: dict[tuple[str, str, bool], tuple[float, float]] = {}
    for collective in (*earlier, *later):
        num, num_bytes = sums.get(key := (collective.kind, collective.dimension, collective.overlaps), (0, 0))
        sums[key] = num + collective.num, num_bytes + collective.num_bytes
    return tuple(Collectives(*key, *num_and_bytes) for key, num_and_bytes in sums.items() if any(num_and_bytes))


class WorkCounter:
    """Adds up the work of operations as they run."""

    def __init__(self) -> None:
        self._amounts = [0.0] * len(Work().amounts)
        self._collectives: dict[tuple[str, str, bool], list[float]] = {}

    def add(
        self, kind: str, flops: float = 0, num_bytes: float = 0, fresh_bytes: float = 0, half_flops: float = 0
    ) -> None:
        """Count one operation of ``kind``."""
        for index, amount in enumerate((1, flops, num_bytes, fresh_bytes, half_flops), _FIRST[kind]):
            self._amounts[index] += amount

    def communicate(self, kind: str, dimension: str, num_bytes: float, *, overlaps: bool = False) -> None:
        """Count one collective (see ``Collectives``)."""
        num_and_bytes = self._collectives.setdefault((kind, dimension, overlaps), [0.0, 0.0])
        num_and_bytes[0] += 1
        num_and_bytes[1] += num_bytes

    def clear(self) -> None:
        """Start again from zero."""
        self._amounts = [0.0] * len(self._amounts)
        self._collectives.clear()

    @property
    def work(self) -> Work:
        """The work counted since the start or the last ``clear``."""
        collectives = (Collectives(*key, *values) for key, values in self._collectives.items())
        return Work(tuple(self._amounts), tuple(collectives))


_FIRST = {kind: _PER_KIND * number for number, kind in enumerate(OP_KINDS)}


@dataclass(frozen=True, slots=True)
class StepWork:
    """Work of a step on one rank under one layout. A micro-batch of B samples takes ``fixed`` + B · ``per_sample``, and
    the update at the end of the step takes ``update``."""

    fixed: Work
    per_sample: Work
    update: Work

    def step(self, micro_batch: int, num_micro_batches: int) -> Work:
        """Work of one optimizer step of ``num_micro_batches`` micro-batches of ``micro_batch`` samples each."""
        return (self.fixed + self.per_sample * micro_batch) * num_micro_batches + self.update
