"""Evaluates the model of a gang on all held-out samples: the metrics of the workload, equal on all ranks."""

from __future__ import annotations

import math

import torch.distributed as dist
from torch import Tensor

from estimators.learning import AttemptPhase
from workloads.protocol import Batch
from workloads.training.attempt.rank import TrainingRank
from workloads.training.data.outputs import Collected, has_summary, summary
from workloads.training.metrics import Sums, common_names, reportable
from workloads.training.reported import joined
from workloads.training.step import evaluate, illustrate


def evaluate_held_out(rank: TrainingRank, step: int) -> dict[str, float]:
    """The metrics of the held-out samples, and those of the whole set if the workload has a ``summary``.

    After them, the workload may illustrate what the model has learned after ``step`` steps or epochs.
    """
    collected = Collected(rank.workload) if has_summary(rank.workload) else None
    with rank.budget.during(AttemptPhase.EVALUATION):
        with rank.budget.settling():
            values = _means(rank, collected)
        if collected is not None:
            with reportable("the workload"):
                values = joined(values, _summary(rank, collected))
        with rank.budget.settling():
            illustrate(rank.workload, rank.model, step, rank.job.seed)
    return values


def _means(rank: TrainingRank, collected: Collected | None) -> dict[str, float]:
    """Metrics averaged over all held-out samples. Padding gives every rank the same number of forward passes."""

    def held_out(whole_batch: tuple[Batch, Tensor]) -> tuple[Batch, Tensor]:
        batch, counted = whole_batch
        return rank.on_device(batch), counted

    batches = map(held_out, rank.feed.evaluation())
    sums = evaluate(rank.workload, rank.model, batches, collected.add if collected else None)
    return {name: total / count if count else math.nan for name, (total, count) in totals(rank, sums).items()}


def totals(rank: TrainingRank, sums: Sums) -> dict[str, tuple[float, float]]:
    """The sum of each metric over all ranks, and what it is divided by."""
    names = _names(rank, sums)
    both = rank.sum(sums.of(names)).T.tolist()  # ranks may report the same samples, and count them as often
    return {name: (total, count) for name, (total, count) in zip(names, both, strict=True)}


def _summary(rank: TrainingRank, collected: Collected) -> dict[str, float]:
    """Metrics of the whole held-out set: rank 0 computes them, outside of its budget, and sends them to all."""
    with rank.budget.uncounted():
        outputs = collected.gathered(rank.job.plan, rank.number)
        summaries = [summary(rank.workload, outputs, rank.job.seed) if rank.is_first else {}]
        if rank.mesh is not None:
            dist.broadcast_object_list(summaries, src=0)
    return summaries[0]


def _names(rank: TrainingRank, sums: Sums) -> list[str]:
    """The names of the metrics. Raises ``WorkloadError`` if ranks have different ones."""
    listed: list[list[str]] = [sums.names]
    if rank.mesh is not None:
        listed = [[] for _ in range(rank.job.plan.world_size)]
        dist.all_gather_object(listed, sums.names)
    return common_names(listed, may_be_none=has_summary(rank.workload))
