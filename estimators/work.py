"""Amounts of work in a step by kind of operation, which a device's speed turns into seconds.

Pure. The kinds were chosen because the same FLOPs and bytes take them very different times. ``estimators.tracing``
counts the work.
"""

from __future__ import annotations

from dataclasses import dataclass

OP_KINDS = (
    "matmul",
    "convolution",
    "attention",
    "normalisation",
    "lookup",
    "function",
    "copy",
    "other",
    "gather",
    "reduce",
    "sharded",
)
"""``function`` stands for transcendental functions (GELU, softmax …), ``lookup`` for embeddings and indexing,
``gather`` and ``reduce`` for collectives. ``sharded`` stands for operations on DTensors, which only cost time in
Python. ``other`` operations mostly wait for memory."""

AMOUNTS = ("operations", "FLOPs", "bytes", "fresh bytes", "half FLOPs")
"""The amounts counted for each kind. ``bytes`` are those of all tensors read and written. ``fresh bytes`` are those of
large buffers that an operation makes; on a CPU the operating system must map and clear them first. ``half FLOPs`` are
the FLOPs on 16-bit numbers, for which GPUs have special units."""

_PER_KIND = len(AMOUNTS)
_NUM_AMOUNTS = _PER_KIND * len(OP_KINDS)


@dataclass(frozen=True, slots=True)
class Work:
    """The ``AMOUNTS`` of each of ``OP_KINDS``, one kind after another in one tuple."""

    amounts: tuple[float, ...] = (0,) * _NUM_AMOUNTS

    def __post_init__(self) -> None:
        if len(self.amounts) != _NUM_AMOUNTS:
            raise ValueError(f"work has {_NUM_AMOUNTS} amounts, got {len(self.amounts)}")

    def of(self, kind: str) -> tuple[float, ...]:
        """The ``AMOUNTS`` of one kind."""
        first = _FIRST[kind]
        return self.amounts[first : first + _PER_KIND]

    @property
    def flops(self) -> float:
        """FLOPs over all kinds."""
        return sum(self.amounts[1::_PER_KIND])

    @property
    def num_bytes(self) -> float:
        """Bytes of all tensors read and written, over all kinds."""
        return sum(self.amounts[2::_PER_KIND])

    def __add__(self, other: Work) -> Work:
        return Work(tuple(a + b for a, b in zip(self.amounts, other.amounts, strict=True)))

    def __sub__(self, other: Work) -> Work:
        return self + other * -1

    def __mul__(self, factor: float) -> Work:
        return Work(tuple(amount * factor for amount in self.amounts))


class WorkCounter:
    """Adds up the work of operations as they run."""

    def __init__(self) -> None:
        self._amounts = [0.0] * len(Work().amounts)

    def add(
        self, kind: str, flops: float = 0, num_bytes: float = 0, fresh_bytes: float = 0, half_flops: float = 0
    ) -> None:
        """Count one operation of ``kind``."""
        for place, amount in enumerate((1, flops, num_bytes, fresh_bytes, half_flops), _FIRST[kind]):
            self._amounts[place] += amount

    def clear(self) -> None:
        """Start again from zero."""
        self._amounts = [0.0] * len(self._amounts)

    @property
    def work(self) -> Work:
        """The work counted since the start or the last ``clear``."""
        return Work(tuple(self._amounts))


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
