"""Predicts the memory of one rank under a plan: the traced peak, plus a margin for what no trace of tensors shows.

Pure: numbers in, numbers out. The margins are measured (see the constants). If a rank needs more nevertheless, it fails
with a real allocation failure, and its trial is planned again with ``Extra`` bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from estimators.devices.catalogue import COMMUNICATORS
from estimators.model import MIB, NO_EVALUATION_EXTRA, EvaluationExtra, Layout, Peaks, Plan, Prediction

# Measured with real steps under RLIMIT_DATA (torch 2.13, one thread): the smallest budget that a rank survived was at
# most 0.15 MiB over the traced peak without a gang (7 ViT and GPT plans of 20 to 125 MiB, also with recompute and
# accumulation; the peak itself within 0.02 %). With FSDP2 the peak of tensors is as exact, and a rank needs 4 MiB (2
# ranks of 63 MiB) to 7 MiB (4 ranks of 80 MiB) beyond it: buffers too small to be mapped one by one leave malloc's heap
# in pieces, and gloo's threads have memory of their own.
# In a Ray worker one rank of 87 MiB that ran 32 micro-batches of 2 samples needed over 7 MiB. The rest of the margin
# covers what those runs did not have: the other threads of a Ray worker, which share the limit, and operations with
# scratch memory of their own, such as large convolutions. The margin does not cover memory that libraries allocate on
# first use and keep, such as the machine code of a U-Net's convolutions (46 MiB): the rank's limit is raised by that
# amount (docs/decisions/0009).
MARGIN_PERCENT = 6
MARGIN_BYTES = 4 * MIB
GANG_MARGIN_BYTES = 6 * MIB


@dataclass(frozen=True, slots=True)
class Margin:
    """Memory that a rank needs beyond its peak: ``percent`` of the peak, plus bytes that depend only on the number of
    ranks in its gang (1, 2 or more)."""

    alone_bytes: int = MARGIN_BYTES
    pair_bytes: int = MARGIN_BYTES + GANG_MARGIN_BYTES
    gang_bytes: int = MARGIN_BYTES + GANG_MARGIN_BYTES
    percent: int = MARGIN_PERCENT

    def fixed_bytes(self, num_ranks: int) -> int:
        """Bytes of the margin that do not depend on the peak."""
        return self.alone_bytes if num_ranks == 1 else self.pair_bytes if num_ranks == 2 else self.gang_bytes

    def bytes_for(self, peak_bytes: int, num_ranks: int) -> int:
        """Bytes of the whole margin for one rank of a gang of ``num_ranks``."""
        return self.fixed_bytes(num_ranks) + peak_bytes * self.percent // 100

    def largest_peak_bytes(self, capacity_mib: int, num_ranks: int) -> int:
        """The largest peak that fits into ``capacity_mib`` together with this margin; negative if none does."""
        without_margin = capacity_mib * MIB - self.fixed_bytes(num_ranks)
        return (100 * (without_margin + 1) - 1) // (
            100 + self.percent
        )  # peak + ⌊percent · peak / 100⌋ ≤ without_margin


VIRTUAL_MARGIN = Margin()
"""Margin on virtual devices."""


GPU_MARGIN = Margin(MARGIN_BYTES, *(MARGIN_BYTES + int(figure.value) for figure in COMMUNICATORS))
"""Margin on GPUs, beyond what PyTorch's allocator needs. In gangs it includes memory for NCCL, by figures of others.

No rank on a GPU has been measured. The CUDA context is not included: a node keeps it back from the memory it offers.
"""


@dataclass(frozen=True, slots=True)
class Extra:
    """Bytes to add to the traced peak of one rank, because attempts needed more than was traced.

    The largest of these counts: bytes ``under`` a layout, ``rank_bytes`` of every rank, ``state_bytes`` of the whole
    model, divided as the layout divides the model states, and ``sample_bytes`` for each sample of a micro-batch. Where
    the device has the room, a peak of ``held_bytes`` is reserved at least, divided like states. ``evaluation`` is added
    to the peak of evaluations.
    """

    under: Mapping[Layout, int] = field(default_factory=dict)
    rank_bytes: int = 0
    state_bytes: int = 0
    sample_bytes: int = 0
    held_bytes: int = 0
    evaluation: EvaluationExtra = NO_EVALUATION_EXTRA

    def __post_init__(self) -> None:
        if min(self.rank_bytes, self.state_bytes, self.sample_bytes, self.held_bytes, *self.under.values()) < 0:
            raise ValueError(f"extra bytes must be at least 0, got {self}")

    def bytes_for(self, layout: Layout, micro_batch: int = 1) -> int:
        """Bytes to add under this layout, with micro-batches of ``micro_batch`` samples."""
        states = -(-self.state_bytes // layout.parameter_shards) if self.state_bytes else 0
        under = self.under.get(layout, 0) if self.under else 0
        return max(under, self.rank_bytes, states, self.sample_bytes * micro_batch)

    def wanted_bytes(self, layout: Layout) -> int:
        """The peak that is reserved at least where the device has the room."""
        return -(-self.held_bytes // layout.parameter_shards)


NO_EXTRA = Extra()


def predict(
    profile: Peaks,
    plan: Plan,
    extra_bytes: int = 0,
    margin: Margin = VIRTUAL_MARGIN,
    evaluation: EvaluationExtra = NO_EVALUATION_EXTRA,
) -> Prediction:
    """Predict the memory of the rank that needs most, and with unlike shares of the batch what to reserve for each.

    ``extra_bytes`` are added to the traced peak, because this trial ran out of memory or because earlier trials needed
    more; ``evaluation`` is added to the peak of evaluations. Raises KeyError when a layout of the plan has not been
    traced.
    """
    if plan.shares:
        shares = {samples: plan.of_share(share) for share, samples in enumerate(plan.shares)}
        of_samples = {
            samples: predict(profile, share, extra_bytes, margin, evaluation) for samples, share in shares.items()
        }
        shares_mib = tuple(of_samples[samples].reserved_mib for samples in plan.shares)
        return replace(of_samples[plan.micro_batch], shares_mib=shares_mib)
    stages = predict_stages(profile, plan, extra_bytes, margin, evaluation)
    return max(stages, key=lambda stage: stage.needed_bytes)


def predict_stages(
    profile: Peaks,
    plan: Plan,
    extra_bytes: int = 0,
    margin: Margin = VIRTUAL_MARGIN,
    evaluation: EvaluationExtra = NO_EVALUATION_EXTRA,
) -> tuple[Prediction, ...]:
    """One prediction for each pipeline stage, or a single one without a pipeline; see ``predict``."""
    stages = []
    for layout in plan.layouts:
        curve = profile.curves[layout]
        peak, parts = curve.peak_bytes(plan.micro_batch), curve.parts(plan.micro_batch)
        slack = parts.get("slack", 0) + parts.get("objects", 0)
        parts = {**parts, "learned": extra_bytes} if extra_bytes else parts
        evaluated = evaluation_bytes(profile, layout, plan.evaluation_micro_batch, evaluation)
        margin_bytes = margin.bytes_for(max(peak + extra_bytes, evaluated), plan.world_size)
        stages.append(Prediction(peak - slack, slack, extra_bytes, 0, margin_bytes, parts, evaluated))
    return tuple(stages)


def evaluation_bytes(profile: Peaks, layout: Layout, micro_batch: int, extra: EvaluationExtra) -> int:
    """Peak bytes of an evaluation with such micro-batches, what was learned included; 0 if it is not known."""
    curve = profile.evaluations.get(layout)
    return curve.peak_bytes(micro_batch) + extra.bytes_for(micro_batch) if curve is not None else 0


def with_evaluation_batch(
    profile: Peaks, plan: Plan, extra_bytes: int = 0, extra: EvaluationExtra = NO_EVALUATION_EXTRA
) -> Plan:
    """The plan with the largest micro-batch of evaluations that needs no more memory than a training step of it.

    If even one sample needs more, it is one sample. It is never larger than the micro-batch of training: evaluations
    then need no larger activations than training has, and a larger one would save little time.
    """
    if all(layout not in profile.evaluations for layout in plan.layouts):
        return plan
    peaks = [profile.curves[layout].peak_bytes(plan.micro_batch) + extra_bytes for layout in plan.layouts]
    least = max(peaks + [evaluation_bytes(profile, layout, 1, extra) for layout in plan.layouts])

    def fits(size: int) -> bool:
        return all(evaluation_bytes(profile, layout, size, extra) <= least for layout in plan.layouts)

    if fits(plan.micro_batch):
        return plan
    size = bisect_left(range(2, plan.micro_batch), True, key=lambda size: not fits(size)) + 1
    return replace(plan, evaluation_batch=size)


def predict_states(
    profile: Peaks, num_shards: int, num_ranks: int, extra_bytes: int = 0, margin: Margin = VIRTUAL_MARGIN
) -> Prediction:
    """A lower bound for every plan of ``num_ranks`` that divides the model states into ``num_shards``, traced or not.

    The states exist when the optimizer begins, and sharding at best divides them evenly.
    """
    states = -(-profile.state_bytes // num_shards)
    return Prediction(states, extra_bytes=extra_bytes, margin_bytes=margin.bytes_for(states + extra_bytes, num_ranks))


def largest_micro_batch(
    profile: Peaks, layout: Layout, capacity_mib: int, extra: Extra = NO_EXTRA, margin: Margin = VIRTUAL_MARGIN
) -> int:
    """Largest micro-batch with which one rank needs at most ``capacity_mib``, margin included; 0 when none fits.

    Evaluations have a micro-batch of their own: they only exclude a layout under which not even one sample can be
    evaluated. Raises KeyError when the layout has not been traced.
    """
    highest, curve = margin.largest_peak_bytes(capacity_mib, layout.world_size), profile.curves[layout]
    if evaluation_bytes(profile, layout, 1, extra.evaluation) > highest:
        return 0
    most = curve.largest_batch(highest - extra.bytes_for(layout))
    if not extra.sample_bytes:
        return most
    sizes = range(1, most + 1)
    return bisect_right(sizes, highest, key=lambda size: curve.peak_bytes(size) + extra.bytes_for(layout, size))
