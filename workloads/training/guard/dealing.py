"""Deals some samples to ranks and micro-batches in two ways, for passes that are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from estimators.model import Plan
from workloads.training.samples import FEW, rank_slices

_ENOUGH = 8
"""Samples of a pass that are enough to see a difference; of large micro-batches a part is."""
_SHARE = 4
"""One in so many samples of a micro-batch is dealt, if these are enough: the check takes less time."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """Places of the samples of each micro-batch of one rank, in two ways that share all samples of all ranks.

    ``weight`` is that of this rank's samples in a mean over ranks, in both ways.
    """

    planned: Sequence[Tensor]
    other: Sequence[Tensor]
    weight: float = 1.0

    @property
    def joins(self) -> bool:
        """Whether the other way has more samples in a micro-batch, as none can be divided."""
        return len(self.planned) > len(self.other)

    @property
    def words(self) -> str:
        """The difference between the two ways."""
        if len(self.planned) == len(self.other):
            return "its samples share micro-batches with others"
        return f"micro-batches have {len(self.other[0])} instead of {len(self.planned[0])} samples"


def drawn(num: int, seed: int, step: int) -> Tensor:
    """All whole numbers below ``num`` in an order for this step, which does not depend on the version of Python."""
    return torch.randperm(num, generator=torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63))


def dealt(plan: Plan, rank: int, order: Tensor, *, has_own: bool = False) -> Dealing:
    """A micro-batch of every rank, or as many samples of it as are enough, of the places in a batch in this ``order``,
    and the same ones in halves and on other ranks; with ``has_own`` they are of the last micro-batch of a rank, which
    keeps its samples.

    A pipeline, whose passes have fixed sizes, gets the whole batch in another order.
    """
    sizes, place = [_enough(size) for size in plan.samples_of_shares], plan.data_rank(rank)
    if plan.pp > 1:
        planned, other = (rank_slices(places, plan, rank) for places in (torch.arange(plan.batch), order))
        return Dealing(planned, other, plan.weight_of(rank))
    if not has_own:
        return _dealt(sizes, place, order)
    samples = rank_slices(torch.arange(plan.batch), plan, rank)[-1]
    halves = [size // 2 for size in sizes]
    samples = samples[order[order < len(samples)]][: 2 * halves[place] if min(halves) else sizes[place]]
    return Dealing([samples], samples.flip(0).chunk(2 if min(halves) else 1), _dealt(sizes, place, order).weight)


def dealt_held_out(plan: Plan, rank: int, num: int) -> tuple[int, Dealing] | None:
    """The number of held-out samples to evaluate in two ways, and how they are dealt; None if there are too few.

    ``num`` is the number of all held-out samples. No pass has more samples than in an evaluation, unless that is one.
    """
    most = min(num, FEW) // plan.num_shares
    sizes = [min(_enough(samples), plan.evaluation_micro_batch, most) for samples in plan.samples_of_shares]
    num_drawn = max(sum(sizes), 2)
    if min(sizes) < 1 or num_drawn > num:
        return None
    generator = torch.Generator().manual_seed(num_drawn)
    return num_drawn, _dealt(sizes, plan.data_rank(rank), torch.randperm(num_drawn, generator=generator))


def _enough(num_samples: int) -> int:
    return min(num_samples, max(_ENOUGH, num_samples // _SHARE))


def _dealt(sizes: Sequence[int], place: int, order: Tensor) -> Dealing:
    """The rank at ``place`` has a micro-batch of as many samples as ``sizes`` says, and then the halves of another."""
    if max(sizes) == 1:  # a pair of samples, one after the other and together; some may be dealt twice
        pair = order[torch.arange(2 * place, 2 * place + 2) % len(order)]
        return Dealing(pair.chunk(2), [pair])
    halves = [samples // 2 for samples in sizes]
    num_parts = 2 if min(halves) > 0 else 1
    sizes = [2 * half for half in halves] if num_parts == 2 else list(sizes)
    chosen = order[: sum(sizes)]
    again = torch.cat([chosen[::2], chosen[1::2]]).flip(0)
    planned, other = (torch.split(samples, sizes)[place] for samples in (chosen, again))
    return Dealing([planned], other.chunk(num_parts), sizes[place] * len(sizes) / sum(sizes))
