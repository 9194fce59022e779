"""The nouns of cost: a plan, the layouts that it is traced under, and what a trace says of a model.

Nothing here knows torch. Sizes are bytes, micro-batches count samples on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from estimators.work import StepWork

MIB = 2**20


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """The part of a plan that changes the sequence of operations on one rank, and so needs a trace of its own.

    ``accumulate`` is True when gradients outlive a backward pass because more micro-batches of the same step follow.
    """

    dp_shard: int = 1
    recompute: bool = False
    accumulate: bool = False

    def __post_init__(self) -> None:
        if self.dp_shard < 1:
            raise ValueError(f"dp_shard must be at least 1, got {self.dp_shard}")

    def __str__(self) -> str:
        words = [f"fsdp{self.dp_shard}" if self.dp_shard > 1 else "single"]
        words += ["recompute"] * self.recompute + ["accumulate"] * self.accumulate
        return "+".join(words)


@dataclass(frozen=True, slots=True)
class Plan:
    """How one candidate is spread over ranks; every plan of a candidate trains on the same effective batch.

    ``dp_shard`` ranks each hold 1/dp_shard of parameters, gradients and optimizer states (FSDP2); every optimizer
    step runs ``num_micro_batches`` forward and backward passes of ``micro_batch`` samples on every rank.
    """

    micro_batch: int
    num_micro_batches: int = 1
    dp_shard: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        for name in ("micro_batch", "num_micro_batches", "dp_shard"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def world_size(self) -> int:
        """Ranks in the gang."""
        return self.dp_shard

    @property
    def batch(self) -> int:
        """Samples per optimizer step over all ranks (the effective batch)."""
        return self.dp_shard * self.micro_batch * self.num_micro_batches

    @property
    def layout(self) -> Layout:
        return Layout(self.dp_shard, self.recompute, self.num_micro_batches > 1)

    def __str__(self) -> str:
        ranks = f"FSDP over {self.dp_shard} ranks" if self.dp_shard > 1 else "1 rank"
        steps = (
            f"{self.num_micro_batches} × {self.micro_batch}" if self.num_micro_batches > 1 else f"{self.micro_batch}"
        )
        return f"{ranks}, micro-batch {steps}{', recompute' if self.recompute else ''}"

    def to_json(self) -> dict[str, Any]:
        return {
            "dp_shard": self.dp_shard,
            "micro_batch": self.micro_batch,
            "num_micro_batches": self.num_micro_batches,
            "recompute": self.recompute,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        return cls(data["micro_batch"], data["num_micro_batches"], data["dp_shard"], data["recompute"])


CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "gathered", "scratch", "buffers", "batch")
"""What memory is held for. ``activations`` are kept by a forward pass for the backward pass, ``gathered`` are sharded
parameters made whole, ``scratch`` is whatever else an operation makes: gradients of activations, recomputed
activations, temporaries."""


class PeakCurve(Protocol):
    """Peak bytes on one rank as a function of the micro-batch, for one layout (see ``estimators.envelope``)."""

    def peak_bytes(self, micro_batch: int) -> int: ...

    def parts(self, micro_batch: int) -> dict[str, int]:
        """The peak by category (see ``CATEGORIES``); they add up to it."""
        ...

    def largest_batch(self, capacity_bytes: int) -> int:
        """Largest micro-batch whose peak is within ``capacity_bytes``; 0 when not even one sample fits."""
        ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What fake traces say of one model structure; grows by a peak curve and the work of a step per traced layout.

    ``state_bytes`` are the model states in the sense of ZeRO, held by one process when its optimizer begins:
    parameters, buffers, gradients and optimizer states. ``structure`` identifies the traced structure: two candidates
    that differ in learning rate alone share it.
    """

    structure: str
    num_params: int
    state_bytes: int
    curves: Mapping[Layout, PeakCurve]
    work: Mapping[Layout, StepWork] = field(default_factory=dict)

    def with_curve(self, layout: Layout, curve: PeakCurve, work: StepWork | None = None) -> ModelProfile:
        known = {**self.work, layout: work} if work is not None else self.work
        return replace(self, curves={**self.curves, layout: curve}, work=known)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Predicted cost of a plan on each rank: the traced peak, and the margin for what no trace sees.

    ``parts`` are the peak by category (see ``CATEGORIES``); empty where it was not traced.
    """

    peak_bytes: int
    margin_bytes: int
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def reserved_mib(self) -> int:
        """Whole MiB to reserve on a device for one rank."""
        return -(-(self.peak_bytes + self.margin_bytes) // MIB)
