"""Deals some samples of a batch to ranks and micro-batches in two ways, for a step that is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from estimators.model import Plan
from workloads.training.samples import rank_slices


@dataclass(frozen=True, slots=True)
class Dealing:
    """Places in the batch of the samples of each micro-batch of one rank, in two ways that share all samples.

    ``weight`` is that of this rank's samples in a mean over ranks, in both ways.
    """

    planned: Sequence[Tensor]
    other: Sequence[Tensor]
    weight: float

    @property
    def words(self) -> str:
        """The difference between the two ways."""
        if len(self.planned) == len(self.other):
            return "its samples share micro-batches with others"
        return f"micro-batches have {len(self.other[0])} instead of {len(self.planned[0])} samples"


def dealt(plan: Plan, rank: int, seed: int) -> Dealing:
    """One micro-batch of every rank, drawn from the batch, and the same samples in halves and on other ranks.

    A pipeline, whose passes have fixed sizes, gets the whole batch in another order. Micro-batches have at least two
    samples: more than planned would need more memory than was predicted.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(plan.batch, generator=generator)
    if plan.pp > 1:
        weight = plan.weight_of(rank)
        return Dealing(rank_slices(torch.arange(plan.batch), plan, rank), rank_slices(order, plan, rank), weight)
    halves = [samples // 2 for samples in plan.samples_of_shares]
    num_parts = 2 if min(halves) > 0 else 1
    sizes = [2 * half for half in halves] if num_parts == 2 else list(plan.samples_of_shares)
    chosen, place = order[: sum(sizes)], plan.data_rank(rank)
    again = chosen[torch.randperm(len(chosen), generator=generator)]
    planned, other = (torch.split(samples, sizes)[place] for samples in (chosen, again))
    return Dealing([planned], other.chunk(num_parts), sizes[place] * len(sizes) / sum(sizes))
