"""The nouns of cost: a candidate, a plan, the layouts that it is traced under, and the memory that one rank needs.

Nothing here knows torch. Sizes are bytes, micro-batches count samples on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import groupby
from typing import Any, Protocol

from estimators.axes import AXES, SHARES, Spread, axis_values, check, numbers_in_words
from estimators.constraints import UNCONSTRAINED, PlanConstraints
from estimators.pipelining.schedules import IN_WHOLE, holders_of, schedule_of, short_name, stages_of

MIB = 2**20
GIB = 2**30


def mib_in_words(num_bytes: float) -> str:
    """Bytes in MiB, and in KiB or bytes where it would be 0.0 MiB."""
    if not num_bytes or num_bytes >= 0.95 * MIB:
        return f"{num_bytes / MIB:.1f} MiB"
    return f"{num_bytes / 1024:.0f} KiB" if num_bytes >= 1024 else f"{num_bytes:.0f} bytes"


def size_in_words(num_bytes: float) -> str:
    """Bytes in GiB from one on, and below as ``mib_in_words``."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else mib_in_words(num_bytes)


@dataclass(frozen=True, slots=True)
class Stage:
    """One of ``count`` stages of a pipeline, and what determines how many micro-batches it holds at a time.

    ``cut`` is the number of blocks of each stage; empty: as equal numbers as possible.
    """

    index: int
    count: int
    num_micro_batches: int
    schedule: str
    cut: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_positive(self, "count", "num_micro_batches")
        if not 0 <= self.index < self.count:
            raise ValueError(f"the index of a stage must be from 0 to {self.count - 1}, got {self.index}")
        if self.schedule == "1f1b" and self.num_micro_batches < self.count:
            raise ValueError(f"1F1B needs at least {self.count} micro-batches, one for each stage: use them, or gpipe")

    def blocks(self, num_blocks: int) -> range:
        """The blocks of the stage. Raises ``ValueError`` for a cut of another number of blocks."""
        return blocks_of_stage(num_blocks, self.index, self.count, self.cut)


def blocks_of_stage(num_blocks: int, index: int, count: int, cut: Sequence[int] = ()) -> range:
    """The blocks that ranks give to one of ``count`` stages, whose numbers of blocks are ``cut``.

    Without a cut they divide them evenly. If that is not possible, later stages get more of them, as they hold fewer
    micro-batches at a time. Raises ``ValueError`` for a cut of another number of blocks.
    """
    if cut:
        if sum(cut) != num_blocks:
            words = "-".join(map(str, cut))
            raise ValueError(f"the stages of a pipeline have {words} blocks, but the model has {num_blocks}")
        return range(sum(cut[:index]), sum(cut[: index + 1]))
    return range(num_blocks * index // count, num_blocks * (index + 1) // count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Spread):
    """The part of a plan that changes the sequence of operations on one rank, and so needs a trace of its own.

    ``accumulate`` is True when gradients outlive a backward pass because more micro-batches of the same step follow.
    In a pipeline this is the layout of the ranks with the place ``stage_index``, which also depends on
    ``num_micro_batches``. Ranks that divide layers compute for the samples of all: if they take unlike ``shares`` of
    the batch, these are the samples of each data-parallel rank in a micro-batch, first those of this one.
    """

    accumulate: bool = False
    stage_index: int = 0
    num_micro_batches: int = 1
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        if self.pp == 1 and (self.stage_index, self.num_micro_batches) != (0, 1):
            raise ValueError("stage_index and num_micro_batches need a pipeline: use pp > 1, or leave them out")
        if self.pp > 1 and not 0 <= self.stage_index < self.pp:
            raise ValueError(f"stage_index must be from 0 to {self.pp - 1}, got {self.stage_index}")
        _ = self.stages  # which checks the rest
        if self.pp > 1 and self.schedule not in IN_WHOLE:
            schedule_of(self.schedule, self.pp, self.num_micro_batches)

    def __hash__(self) -> int:
        """Hash of what differs most, as a screening looks up tens of thousands; an axis left out costs collisions."""
        return hash((self.dp_shard, self.recompute, self.accumulate, self.tp, self.dp_replicate, self.spatial))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the pipeline that the rank has; empty without one."""
        if self.pp == 1:
            return ()
        order = self.num_micro_batches, self.schedule, self.cut
        held = stages_of(self.schedule, self.pp, self.stage_index)
        return tuple(Stage(index, self.num_stages, *order) for index in held)

    @property
    def divides_batch(self) -> bool:
        """Whether a rank gets only a part of the samples of a step at a time."""
        return self.accumulate or self.num_shares > 1

    @property
    def treats_blocks_equally(self) -> bool:
        """Whether equal blocks cost a rank the same: true unless a pipeline or ZeRO-1 gives the rank only some of
        them, only some are recomputed, or Adasum sends them in buckets."""
        return self.pp == 1 and not (self.zero1 or self.adasum) and not self.recomputed

    @property
    def first_rank(self) -> int:
        """Global rank of the first rank with this layout."""
        return self.stage_index * self.stride("pp")

    def __str__(self) -> str:
        values = {**self.values, "stage_index": self.stage_index, "num_micro_batches": self.num_micro_batches}
        values["schedule"] = short_name(self.schedule)
        used = [row.label for name, row in AXES.items() if row.label and values[name] != row.default]
        values |= {name: numbers_in_words(value) for name, value in values.items() if isinstance(value, tuple)}
        words = ["single"] * (self.world_size == 1) + [label.format_map(values) for label in used]
        shares = ["shares" + "-".join(map(str, self.shares))] if self.shares else []
        return "+".join(words + ["accumulate"] * self.accumulate + shares)


@dataclass(frozen=True, slots=True)
class Plan(Spread):
    """How one candidate is spread over ranks; every plan of a candidate trains on the same effective batch.

    An optimizer step runs ``num_micro_batches`` forward and backward passes of ``micro_batch`` samples on every rank.
    """

    micro_batch: int
    num_micro_batches: int = 1
    evaluation_batch: int = 0
    """Samples of a forward pass of an evaluation; 0: as many as ``micro_batch``."""
    shares: tuple[int, ...] = ()
    """Samples of each data-parallel rank in a micro-batch, in the order of ``data_rank``, where faster devices take
    more of them; ``micro_batch`` is then the largest. Empty: all take ``micro_batch``."""
    layouts: tuple[Layout, ...] = field(init=False, repr=False, compare=False)
    """One for each place in the pipeline; without a pipeline, that of all ranks."""

    def __post_init__(self) -> None:
        _check_positive(self, "micro_batch", "num_micro_batches")
        layouts = _layouts(axis_values(self), self.num_micro_batches > 1, self.num_micro_batches if self.pp > 1 else 1)
        object.__setattr__(self, "layouts", layouts)  # they have checked the axes
        self._check_shares()
        if len(set(self.shares)) == 1:
            object.__setattr__(self, "shares", ())
        if not 0 <= self.evaluation_batch < self.micro_batch:
            raise ValueError(
                f"evaluation_batch must be smaller than the micro-batch, which is {self.micro_batch}, got "
                f"{self.evaluation_batch}: leave it out to evaluate in micro-batches of the same size"
            )

    def _check_shares(self) -> None:
        """Raise ``ValueError`` for shares that ranks cannot train."""
        if not self.shares:
            return
        if len(self.shares) != self.num_shares or min(self.shares) < 1 or max(self.shares) != self.micro_batch:
            raise ValueError(
                f"shares must list the samples of each of {self.num_shares} data-parallel ranks in a micro-batch, from "
                f"1 to micro_batch, which one of them has, got {self.shares} and micro_batch={self.micro_batch}"
            )
        if self.adasum:
            raise ValueError("Adasum combines updates of equal parts of a batch: leave out shares, or use adasum=false")

    @property
    def samples_of_shares(self) -> tuple[int, ...]:
        """Samples of each share of the batch in a micro-batch."""
        return self.shares or (self.micro_batch,) * self.num_shares

    @property
    def batch(self) -> int:
        """Samples per optimizer step over all ranks (the effective batch)."""
        return sum(self.samples_of_shares) * self.num_micro_batches

    def samples_of_rank(self, rank: int) -> int:
        """Samples of a micro-batch of this rank."""
        return self.samples_of_shares[self.data_rank(rank)]

    def rank_mibs(self, prediction: Prediction) -> tuple[int, ...]:
        """Whole MiB to reserve for each rank, in rank order; empty if all take as many samples."""
        shares_mib = prediction.shares_mib
        return tuple(shares_mib[self.data_rank(rank)] for rank in range(self.world_size)) if shares_mib else ()

    def of_share(self, share: int) -> Plan:
        """The plan of ranks with this share alone, which need as much memory: all ranks take as many samples.

        If they divide layers, its layouts know the shares of the others.
        """
        samples = self.samples_of_shares[share]
        evaluated = self.evaluation_batch if self.evaluation_batch < samples else 0
        plan = replace(self, micro_batch=samples, shares=(), evaluation_batch=evaluated)
        if self.divided and self.shares:
            others = sorted((*self.shares[:share], *self.shares[share + 1 :]))
            layouts = tuple(replace(layout, shares=(samples, *others)) for layout in plan.layouts)
            object.__setattr__(plan, "layouts", layouts)
        return plan

    @property
    def traced_layouts(self) -> tuple[Layout, ...]:
        """The layouts by whose traces the memory of the plan is predicted."""
        shares = map(self.of_share, range(self.num_shares if self.shares else 0))
        return tuple(dict.fromkeys((*self.layouts, *(layout for share in shares for layout in share.layouts))))

    def weight_of(self, rank: int) -> float:
        """Factor of a rank's mean loss by which the mean over ranks is that over samples: 1 if all take as many."""
        return self.samples_of_rank(rank) * self.num_shares / sum(self.samples_of_shares)

    @property
    def evaluation_micro_batch(self) -> int:
        """Samples of a forward pass of an evaluation on one rank."""
        return self.evaluation_batch or self.micro_batch

    @property
    def layout(self) -> Layout:
        """Layout of rank 0."""
        return self.layouts[0]

    def layout_of(self, rank: int) -> Layout:
        return self.layouts[self.coordinate(rank, "pp")]

    def has_last_stage(self, rank: int) -> bool:
        """Whether a rank computes losses: without a pipeline all do."""
        return self.pp == 1 or self.coordinate(rank, "pp") in holders_of(self.schedule, self.pp)[-1]

    def data_rank(self, rank: int) -> int:
        """Number of the share of the batch that a rank trains on. Ranks that split the same layers or space have the
        same share."""
        share = 0
        for axis in SHARES:
            share = share * getattr(self, axis) + self.coordinate(rank, axis)
        return share

    def __str__(self) -> str:
        steps = (
            f"{self.num_micro_batches} × {self.micro_batch}" if self.num_micro_batches > 1 else f"{self.micro_batch}"
        )
        evaluation = [f"evaluation {self.evaluation_batch}"] if self.evaluation_batch else []
        shares = [f"shares {self.shares_in_words}"] if self.shares else []
        return ", ".join([self.ways, f"micro-batch {steps}", *shares, *evaluation, *self.inside])

    @property
    def shares_in_words(self) -> str:
        """Samples of all shares, such as ``8 × 5 + 8 × 3``."""
        runs = ((samples, len(list(same))) for samples, same in groupby(self.shares))
        return " + ".join(f"{num} × {samples}" if num > 1 else str(samples) for samples, num in runs)

    def to_json(self) -> dict[str, Any]:
        """All fields by name, as JSON has them: tuples are lists."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@cache
def _layouts(values: tuple[Any, ...], accumulate: bool, num_micro_batches: int) -> tuple[Layout, ...]:
    """Layouts of all stages; a screening asks for the same few tens of thousands of times."""
    axes = dict(zip(AXES, values, strict=True))
    if axes["pp"] == 1:
        del axes["schedule"]  # which changes nothing then
    others: dict[str, Any] = {"accumulate": accumulate, "num_micro_batches": num_micro_batches}
    return tuple(Layout(**axes, **others, stage_index=index) for index in range(max(axes["pp"], 1)))


def _check_positive(sizes: Stage | Plan, *names: str) -> None:
    for name in names:
        if getattr(sizes, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(sizes, name)}")


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
    "objects",
    "learned",
)
"""The purposes that memory is held for. ``activations`` are kept by a forward pass for the backward pass. ``gathered``
are sharded parameters made whole. ``scratch`` is whatever else an operation makes: gradients of activations, recomputed
activations, temporaries. ``workspace`` is memory that an operation uses internally (``estimators.tracing.device``).
``slack`` is memory that a GPU's allocator needs beyond the tensors, or that kernels of an unknown CPU may need;
``objects`` is that of autograd's objects on a CPU (``estimators.tracing.device``). ``learned`` is memory that earlier
trials needed beyond their trace. The parts of a ``Prediction`` add up to its peak."""


class PeakCurve(Protocol):
    """Peak bytes on one rank as a function of the micro-batch, for one layout (see ``estimators.peaks.envelope``)."""

    def peak_bytes(self, micro_batch: int) -> int:
        """Peak bytes with micro-batches of ``micro_batch`` samples."""
        ...

    def parts(self, micro_batch: int) -> dict[str, int]:
        """Bytes of the peak by category (see ``CATEGORIES``); they add up to the peak."""
        ...

    def largest_batch(self, capacity_bytes: int) -> int:
        """Largest micro-batch whose peak is within ``capacity_bytes``; 0 when not even one sample fits."""
        ...


class Peaks(Protocol):
    """The facts about a candidate from which its plan is chosen; see ``estimators.profile``."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the model states (parameters, buffers, gradients, optimizer states) in one unsharded process."""
        ...

    @property
    def curves(self) -> Mapping[Layout, PeakCurve]:
        """The peak curve of each layout traced so far."""
        ...

    @property
    def evaluations(self) -> Mapping[Layout, PeakCurve]:
        """The peak curve of an evaluation under each of these layouts, over the micro-batch of the evaluation.

        Layouts without one are left out: functions are not evaluated, and formulas know no evaluation.
        """
        ...


@dataclass(frozen=True, slots=True)
class Divisions:
    """How a model says that it can be divided, besides the ways that need nothing of it (replicas, FSDP, recompute).

    Tensor-parallel ranks must divide ``most_parts``, and so must the parts of co-shard if the blocks compute
    ``in_parts``. A pipeline has at most ``most_stages``. Ranks that divide space must divide ``most_slabs``, and those
    that divide experts and columns of layers ``most_divided``. Each is 1 if the model cannot be divided in this way.
    ``constraints`` are limits that the model's hints set on its plans.
    """

    most_parts: int = 1
    in_parts: bool = False
    most_stages: int = 1
    most_slabs: int = 1
    most_divided: int = 1
    constraints: PlanConstraints = UNCONSTRAINED


INDIVISIBLE = Divisions()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One proposal to train: a workload and its parameters.

    ``workload`` is a built-in name or ``FILE.py:Class``; ``code`` is the sha256 of the zip of the user's files, None
    for a built-in workload. There is no field for the effective batch: the workload derives it from ``params``.
    """

    workload: str
    code: str | None
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EvaluationExtra:
    """Bytes to add to the traced peak of an evaluation, because some ran out of memory: so many for each sample of its
    micro-batch, but at least ``fixed_bytes``."""

    bytes_per_sample: int = 0
    fixed_bytes: int = 0

    def bytes_for(self, micro_batch: int) -> int:
        """Bytes to add with such micro-batches."""
        return max(self.fixed_bytes, self.bytes_per_sample * micro_batch)


NO_EVALUATION_EXTRA = EvaluationExtra()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes that one rank will need at its peak. They are added up here and nowhere else.

    ``traced_bytes`` are the tensors of the trace; ``slack_bytes`` is what a GPU's allocator needs beyond them, or what
    the objects of autograd take on a CPU. ``extra_bytes`` are added because this trial ran out of memory, or because
    earlier trials of its family needed more than was traced; ``bias_bytes`` of these are tensors, which a measured peak
    includes. ``margin_bytes`` cover memory that no trace shows. ``parts`` is the peak by category (``CATEGORIES``),
    empty if it was not traced. All this is the peak of a training step; ``evaluation_bytes`` is that of an evaluation,
    0 if it is not known. Where ranks take unlike shares of the batch, all this is for one with the largest share, and
    ``shares_mib`` are the whole MiB to reserve for a rank of each share; otherwise it is empty.
    """

    traced_bytes: int = 0
    slack_bytes: int = 0
    extra_bytes: int = 0
    bias_bytes: int = 0
    margin_bytes: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)
    evaluation_bytes: int = 0
    shares_mib: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All but the ``parts``, as a dictionary of JSON values."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "parts"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Prediction:
        """The prediction in its JSON, without ``parts``."""
        return cls(**{**data, "shares_mib": tuple(data["shares_mib"])})

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of a training step without the margin."""
        return self.traced_bytes + self.slack_bytes + self.extra_bytes

    @property
    def needed_bytes(self) -> int:
        """Peak bytes of training steps and evaluations without the margin."""
        return max(self.peak_bytes, self.evaluation_bytes)

    @property
    def predicted_bytes(self) -> int:
        """Peak bytes of a step without the margin and the allocator's slack; the study database calls this the
        predicted peak."""
        return self.traced_bytes + self.extra_bytes

    @property
    def expected_bytes(self) -> int:
        """Bytes of tensors at the peak: the number to compare with a measured peak."""
        return self.traced_bytes + self.bias_bytes

    @property
    def reserved_mib(self) -> int:
        """Whole MiB to reserve on a device for one rank."""
        return -(-(self.needed_bytes + self.margin_bytes) // MIB)

    def error_pct(self, measured_bytes: int) -> float:
        """Signed error in percent against a measured peak of tensors; positive when too much was predicted."""
        return 100.0 * (self.expected_bytes - measured_bytes) / measured_bytes
