"""What a step does, as numbers that a device's speed turns into seconds: amounts of work by kind of operation.

Pure. The kinds are those of which the seconds differ most for the same FLOPs and bytes; ``estimators.tracing`` counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
"""``function`` are transcendental ones (GELU, softmax …), ``lookup`` embeddings and indexing, ``gather`` and ``reduce``
collectives, ``sharded`` the operations on DTensors, which cost time in Python and no more; ``other`` mostly wait for
memory."""

AMOUNTS = ("operations", "FLOPs", "bytes", "fresh bytes", "half FLOPs")
"""Of each kind: ``bytes`` are those of all tensors read and written, ``fresh bytes`` those of large buffers that an
operation makes, which on a CPU the operating system first has to map and clear, and ``half FLOPs`` the FLOPs on numbers
of 16 bits, for which GPUs have units of their own."""

_PER_KIND = len(AMOUNTS)


@dataclass(frozen=True, slots=True)
class Work:
    """The ``AMOUNTS`` of each of ``OP_KINDS``, one after another."""

    amounts: tuple[float, ...] = (0,) * (_PER_KIND * len(OP_KINDS))

    def of(self, kind: str) -> tuple[float, ...]:
        """The ``AMOUNTS`` of one kind."""
        first = _FIRST[kind]
        return self.amounts[first : first + _PER_KIND]

    @property
    def flops(self) -> float:
        return sum(self.amounts[1::_PER_KIND])

    @property
    def num_bytes(self) -> float:
        """Of all tensors read and written."""
        return sum(self.amounts[2::_PER_KIND])

    def __add__(self, other: Work) -> Work:
        return Work(tuple(a + b for a, b in zip(self.amounts, other.amounts, strict=True)))

    def __sub__(self, other: Work) -> Work:
        return self + other * -1

    def __mul__(self, factor: float) -> Work:
        return Work(tuple(amount * factor for amount in self.amounts))

    def to_json(self) -> list[float]:
        return list(self.amounts)

    @classmethod
    def from_json(cls, data: Sequence[float]) -> Work:
        """Raises ValueError or TypeError on anything but what ``to_json`` gives."""
        if len(data) != _PER_KIND * len(OP_KINDS):
            raise ValueError(f"work has {_PER_KIND * len(OP_KINDS)} amounts, got {len(data)}")
        return cls(tuple(map(float, data)))


class WorkCounter:
    """Counts as operations come."""

    def __init__(self) -> None:
        self._amounts = [0.0] * len(Work().amounts)

    def add(
        self, kind: str, flops: float = 0, num_bytes: float = 0, fresh_bytes: float = 0, half_flops: float = 0
    ) -> None:
        """One operation."""
        for place, amount in enumerate((1, flops, num_bytes, fresh_bytes, half_flops), _FIRST[kind]):
            self._amounts[place] += amount

    def clear(self) -> None:
        self._amounts = [0.0] * len(self._amounts)

    @property
    def work(self) -> Work:
        return Work(tuple(self._amounts))


_FIRST = {kind: _PER_KIND * number for number, kind in enumerate(OP_KINDS)}


@dataclass(frozen=True, slots=True)
class StepWork:
    """Of one rank under one layout: a micro-batch of B samples takes ``fixed`` + B · ``per_sample``, the update at the
    end of the step ``update``."""

    fixed: Work
    per_sample: Work
    update: Work

    def step(self, micro_batch: int, num_micro_batches: int) -> Work:
        return (self.fixed + self.per_sample * micro_batch) * num_micro_batches + self.update

    def to_json(self) -> dict[str, Any]:
        return {"fixed": self.fixed.to_json(), "per_sample": self.per_sample.to_json(), "update": self.update.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepWork:
        """Raises ValueError, KeyError or TypeError on anything but what ``to_json`` gives."""
        return cls(*(Work.from_json(data[part]) for part in ("fixed", "per_sample", "update")))
