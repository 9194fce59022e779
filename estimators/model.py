"""The nouns of cost: a plan, the layouts that it is traced under, and what a trace says of a model.

Nothing here knows torch. Sizes are bytes, micro-batches count samples on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Protocol

from estimators.work import StepWork

MIB = 2**20


SCHEDULES = ("1f1b", "gpipe")
"""Orders of the micro-batches of a pipeline: 1F1B holds as many as there are stages from here on, GPipe all."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One of ``count`` stages of a pipeline, and what determines how many micro-batches it holds at a time."""

    index: int
    count: int
    num_micro_batches: int
    schedule: str

    def __post_init__(self) -> None:
        _check_positive(self, "count", "num_micro_batches")
        if not 0 <= self.index < self.count:
            raise ValueError(f"stages are counted from 0 to {self.count - 1}, got {self.index}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"the schedule of a pipeline is one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        if self.schedule == "1f1b" and self.num_micro_batches < self.count:
            raise ValueError(f"1F1B needs at least {self.count} micro-batches, one for each stage: use them, or gpipe")

    def __str__(self) -> str:
        return f"stage{self.index}of{self.count}+{self.schedule}{self.num_micro_batches}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The part of a plan that changes the sequence of operations on one rank, and so needs a trace of its own.

    ``accumulate`` is True when gradients outlive a backward pass because more micro-batches of the same step follow.
    """

    dp_shard: int = 1
    recompute: bool = False
    accumulate: bool = False
    tp: int = 1
    sequence_parallel: bool = False
    stage: Stage | None = None
    dp_replicate: int = 1
    reshard: bool = True
    selective: bool = False
    zero1: bool = False
    co_shard: int = 1
    spatial: int = 1

    def __post_init__(self) -> None:
        _check_positive(self, "dp_shard", "tp", "dp_replicate", "co_shard", "spatial")
        _check_sequence(self)
        if not self.reshard and self.dp_shard == 1:
            raise ValueError("without shards there is nothing to keep gathered: reshard=false needs dp_shard > 1")
        if self.selective and not self.recompute:
            raise ValueError("selective says what is recomputed: it needs recompute=true")
        if self.zero1 and (self.dp_replicate == 1 or self.dp_shard > 1 or self.tp > 1 or self.stage is not None):
            raise ValueError("whole replicas divide optimizer states between them: zero1 needs dp_replicate > 1 alone")
        if self.co_shard > 1 and self.tp > 1:
            raise ValueError("layers are divided over ranks or computed in parts, not both: use tp or co_shard")
        if self.spatial > 1 and (self.dp_replicate > 1 or self.tp > 1 or self.stage is not None):
            raise ValueError("space is divided over ranks beside dp_shard alone: use dp_replicate=1, tp=1 and pp=1")

    def __hash__(self) -> int:
        """Of what differs most: layouts are looked up some ten thousand times in a screening."""
        return hash((self.dp_shard, self.recompute, self.accumulate, self.tp, self.dp_replicate, self.spatial))

    @property
    def divides_blocks_alike(self) -> bool:
        """Whether equal blocks cost a rank the same: no stage has but some of them, and it updates a part of each."""
        return self.stage is None and not self.zero1

    @property
    def mesh(self) -> dict[str, int]:
        """Ranks along each dimension of the device mesh, the slowest first; empty for a single rank.

        With replicas there is a dimension of shards, if need be of one that is all: FSDP2 asks for both, ZeRO-1 not.
        Ranks that divide space are replicas, too.
        """
        sizes = {"spatial": self.spatial, "replicate": self.dp_replicate, "dp": self.dp_shard}
        sizes |= {"pp": self.stage.count if self.stage else 1, "tp": self.tp}
        fsdp = self.spatial > 1 or (self.dp_replicate > 1 and not self.zero1)
        return {name: size for name, size in sizes.items() if size > 1 or (name == "dp" and fsdp)}

    @property
    def world_size(self) -> int:
        """Ranks in the gang."""
        return self.spatial * self.dp_replicate * self.dp_shard * (self.stage.count if self.stage else 1) * self.tp

    @property
    def first_rank(self) -> int:
        """Of the gang, of those that this is the layout of."""
        return self.stage.index * self.tp if self.stage else 0

    def __str__(self) -> str:
        degrees = {"spatial": self.spatial, "replicate": self.dp_replicate, "fsdp": self.dp_shard, "tp": self.tp}
        words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
        words += ["gathered"] * (not self.reshard) + ["zero1"] * self.zero1
        words += [str(self.stage)] if self.stage else []
        words = (words or ["single"]) + ["sequence"] * self.sequence_parallel
        words += [f"coshard{self.co_shard}"] * (self.co_shard > 1)
        words += ["selective"] * self.selective + ["recompute"] * self.recompute
        return "+".join(words + ["accumulate"] * self.accumulate)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        """Inverse of ``dataclasses.asdict``."""
        return cls(**{**data, "stage": Stage(**data["stage"]) if data["stage"] else None})


@dataclass(frozen=True, slots=True)
class Plan:
    """How one candidate is spread over ranks; every plan of a candidate trains on the same effective batch.

    ``dp_shard`` ranks each hold 1/dp_shard of parameters, gradients and optimizer states (FSDP2); every optimizer
    step runs ``num_micro_batches`` forward and backward passes of ``micro_batch`` samples on every rank.
    Parameters of a block are gathered for its forward pass and, if ``reshard``, once more for its backward pass; else
    they stay whole in between. ``dp_replicate`` such groups of ranks have the same shards, and other samples (HSDP). If
    ``zero1`` these are whole replicas, each of which alone has the states of a part of the parameters (ZeRO-1).
    The layers of each rank are split over ``tp`` ranks with the same samples (tensor parallel), which also divide what
    is between these layers along the sequence when ``sequence_parallel``. ``pp`` stages of a pipeline each have a share
    of the blocks, and take the micro-batches in the order of ``schedule``. If ``recompute``, blocks are computed once
    more in the backward pass: all of them, or if ``selective`` what is neither a product of matrices nor attention.
    Heads and hidden units of a block are computed in ``co_shard`` parts one after another, and each part once more in
    the backward pass, so that the activations of one part alone are there at a time (SuperScaler's co-shard).
    ``spatial`` such gangs have the same samples, and each a slab of their space (rows of images, layers of volumes).
    """

    micro_batch: int
    num_micro_batches: int = 1
    dp_shard: int = 1
    recompute: bool = False
    tp: int = 1
    sequence_parallel: bool = False
    pp: int = 1
    schedule: str = SCHEDULES[0]
    dp_replicate: int = 1
    reshard: bool = True
    selective: bool = False
    zero1: bool = False
    co_shard: int = 1
    spatial: int = 1

    def __post_init__(self) -> None:
        _check_positive(self, "micro_batch", "num_micro_batches", "pp")
        _ = self.layouts  # which check the rest

    @property
    def world_size(self) -> int:
        """Ranks in the gang."""
        return self.spatial * self.num_shares * self.pp * self.tp

    @property
    def num_shares(self) -> int:
        """Of the batch, of which every rank trains on one (see ``data_rank``)."""
        return self.dp_replicate * self.dp_shard

    @property
    def batch(self) -> int:
        """Samples per optimizer step over all ranks (the effective batch)."""
        return self.num_shares * self.micro_batch * self.num_micro_batches

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One for each stage; without a pipeline that of all ranks."""
        accumulate, sequence = self.num_micro_batches > 1, self.sequence_parallel
        whole = _layout(
            self.dp_shard, self.recompute, accumulate, self.tp, sequence, None, self.dp_replicate, self.reshard,
            self.selective, self.zero1, self.co_shard, self.spatial,
        )  # fmt: skip
        if self.pp == 1:
            return (whole,)
        stages = (Stage(index, self.pp, self.num_micro_batches, self.schedule) for index in range(self.pp))
        return tuple(replace(whole, stage=stage) for stage in stages)

    @property
    def layout(self) -> Layout:
        """Of rank 0."""
        return self.layouts[0]

    def layout_of(self, rank: int) -> Layout:
        return self.layouts[rank // self.tp % self.pp]

    def data_rank(self, rank: int) -> int:
        """Which share of the batch a rank trains on; those that share layers or space have the same samples."""
        return rank // (self.tp * self.pp) % self.num_shares

    def slab(self, rank: int) -> int:
        """Which part of each sample's space a rank has."""
        return rank // (self.tp * self.pp * self.num_shares)

    def __str__(self) -> str:
        split = f"tensor{' and sequence' * self.sequence_parallel} parallel over {self.tp} ranks"
        ways = [f"{self.spatial} slabs of space"] * (self.spatial > 1)
        ways += [f"{self.dp_replicate} replicas{' that share optimizer states' * self.zero1}"] * (self.dp_replicate > 1)
        gathered = " that keep what they gather" * (not self.reshard)
        ways += [f"FSDP over {self.dp_shard} ranks{gathered}"] * (self.dp_shard > 1) + [split] * (self.tp > 1)
        ways += [f"{self.schedule} pipeline of {self.pp} stages"] * (self.pp > 1)
        ranks = " × ".join(ways) or "1 rank"
        steps = (
            f"{self.num_micro_batches} × {self.micro_batch}" if self.num_micro_batches > 1 else f"{self.micro_batch}"
        )
        recompute = f", {'selective ' * self.selective}recompute" if self.recompute else ""
        parts = f", blocks in {self.co_shard} parts" if self.co_shard > 1 else ""
        return f"{ranks}, micro-batch {steps}{recompute}{parts}"

    @property
    def short(self) -> str:
        """Degrees alone, for a column of a table: ``FSDP ×2 · TP ×4``."""
        replicas = "ZeRO-1" if self.zero1 else "DP"
        degrees = {"space": self.spatial, replicas: self.dp_replicate, "FSDP": self.dp_shard}
        degrees |= {"TP": self.tp, "PP": self.pp}
        return " · ".join(f"{name} ×{degree}" for name, degree in degrees.items() if degree > 1) or "1 rank"

    def to_json(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Plans that were written before there was a way to spread lack its fields."""
        return cls(**{item.name: data[item.name] for item in fields(cls) if item.name in data})


_layout = cache(Layout)  # a screening asks for the same few tens of thousands of times


def _check_positive(sizes: Stage | Layout | Plan, *names: str) -> None:
    for name in names:
        if getattr(sizes, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(sizes, name)}")


def _check_sequence(split: Layout) -> None:
    if split.sequence_parallel and split.tp == 1:
        raise ValueError("sequence parallelism divides activations between tensor-parallel ranks: it needs tp > 1")


CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "gathered",
    "scratch",
    "workspace",
    "buffers",
    "batch",
    "slack",
    "learned",
)
"""What memory is held for. ``activations`` are kept by a forward pass for the backward pass. ``gathered`` are sharded
parameters made whole. ``scratch`` is whatever else an operation makes: gradients of activations, recomputed
activations, temporaries. ``workspace`` is memory that an operation uses internally (``estimators.tracing.workspace``).
``slack`` is what a GPU's allocator needs beyond the tensors. ``learned`` is what earlier trials needed beyond their
trace. The parts of a ``Prediction`` add up to its peak."""


class PeakCurve(Protocol):
    """Peak bytes on one rank as a function of the micro-batch, for one layout (see ``estimators.peaks.envelope``)."""

    def peak_bytes(self, micro_batch: int) -> int: ...

    def parts(self, micro_batch: int) -> dict[str, int]:
        """The peak by category (see ``CATEGORIES``); they add up to it."""
        ...

    def largest_batch(self, capacity_bytes: int) -> int:
        """Largest micro-batch whose peak is within ``capacity_bytes``; 0 when not even one sample fits."""
        ...


class Peaks(Protocol):
    """What must be known of a candidate to choose its plan: see ``ModelProfile``."""

    @property
    def state_bytes(self) -> int: ...

    @property
    def curves(self) -> Mapping[Layout, PeakCurve]: ...


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
class Candidate:
    """One proposal to train: a workload and its parameters.

    ``workload`` is a built-in name or ``FILE.py:Class``; ``code`` is the sha256 of the zip of the user's files, None
    for a built-in workload. The effective batch is no field of its own: the workload decides it from ``params``.
    """

    workload: str
    code: str | None
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes that one rank will need at its peak. The only place where they are added up.

    ``traced_bytes`` are the tensors of the trace, ``slack_bytes`` what a GPU's allocator needs beyond them.
    ``extra_bytes`` are added because this trial ran out of memory, or earlier trials of its family needed more than
    traced; ``bias_bytes`` of these are tensors, which a measured peak shows. ``margin_bytes`` are for memory that no
    trace shows. ``parts`` are the peak by category (``CATEGORIES``), empty where it was not traced.
    """

    traced_bytes: int = 0
    slack_bytes: int = 0
    extra_bytes: int = 0
    bias_bytes: int = 0
    margin_bytes: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """Everything but the margin."""
        return self.traced_bytes + self.slack_bytes + self.extra_bytes

    @property
    def predicted_bytes(self) -> int:
        """The peak without the allocator's slack: what the study database calls the predicted peak."""
        return self.traced_bytes + self.extra_bytes

    @property
    def expected_bytes(self) -> int:
        """Tensors at the peak: the number to compare with a measured peak."""
        return self.traced_bytes + self.bias_bytes

    @property
    def reserved_mib(self) -> int:
        """Whole MiB to reserve on a device for one rank."""
        return -(-(self.peak_bytes + self.margin_bytes) // MIB)

    def error_pct(self, measured_bytes: int) -> float:
        """Signed error against a measured peak of tensors: positive when too much was predicted."""
        return 100.0 * (self.expected_bytes - measured_bytes) / measured_bytes
