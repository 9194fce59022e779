"""Deals some samples to ranks and micro-batches in two ways, for passes that are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from estimators.model import Plan
from workloads.training.samples import FEW, rank_slices

_ENOUGH = 8
"""Samples of a pass that are enough to see a difference; of large micro-batches a part is."""
_SHARE = 4
"""One in so many samples of a micro-batch is dealt, if these are enough: the check takes less time."""
_FEWEST_TO_SHIFT = 4
"""One of so many samples of a rank goes to another rank, and two of twice as many; of fewer, none can."""


@dataclass(frozen=True, slots=True)
class Division:
    """Places of the samples of each micro-batch of one rank, whose ``weight`` is that of its samples in a mean over
    ranks."""

    parts: Sequence[Tensor]
    weight: float = 1.0

    @property
    def is_even(self) -> bool:
        """Whether all micro-batches have as many samples."""
        return len(set(map(len, self.parts))) == 1


@dataclass(frozen=True, slots=True)
class Dealing:
    """Two divisions of the same samples of all ranks; ``words`` say how they differ, equal on all ranks.

    ``shifts``: some ranks have more samples, and others fewer.
    """

    planned: Division
    other: Division
    words: str
    shifts: bool = False

    @property
    def is_uneven(self) -> bool:
        """Whether some micro-batches have more samples than others, which counts in a mean."""
        return self.shifts or not self.other.is_even

    @property
    def joins(self) -> bool:
        """Whether the other division has more samples in a micro-batch, as those planned have one."""
        return len(self.planned.parts) > len(self.other.parts)


def _words(planned: int, other: int) -> str:
    """Words for other sizes of micro-batches of a rank."""
    if planned == other:
        return "its samples share micro-batches with others"
    return f"micro-batches have {other} instead of {planned} samples"


def drawn(num: int, seed: int, step: int, again: int = 0) -> Tensor:
    """All whole numbers below ``num`` in an order for this step, or in another one for each ``again``, which does not
    depend on the version of Python."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step + again * 1_000_000_007) % 2**63)
    return torch.randperm(num, generator=generator)


def dealt(
    plan: Plan,
    rank: int,
    order: Tensor,
    *,
    has_own: bool = False,
    keeps_sizes: bool = False,
    in_halves: bool = False,
) -> Dealing:
    """A micro-batch of every rank, or as many samples of it as are enough, of the places in a batch in this ``order``,
    and the same ones divided otherwise.

    Where only ranks divide the batch, some get more and some fewer of them. Else they come in two parts, and on other
    ranks: one part is a little smaller, as halves are often equal by chance where classes are, but not ``in_halves``.
    With ``has_own`` they are of the last micro-batch of a rank, which keeps its samples. With ``keeps_sizes`` they only
    come on other ranks. A pipeline, whose passes have fixed sizes, gets the whole batch in another order.
    """
    sizes, place = [_enough(size) for size in plan.samples_of_shares], plan.data_rank(rank)
    if plan.pp > 1:
        planned, other = (rank_slices(places, plan, rank) for places in (torch.arange(plan.batch), order))
        weight, size = plan.weight_of(rank), plan.micro_batch
        return Dealing(Division(planned, weight), Division(other, weight), _words(size, size))
    if keeps_sizes:
        samples = order[: sum(sizes)]
        as_planned, again = (_division(in_order, sizes, place) for in_order in (samples, samples.flip(0)))
        return Dealing(as_planned, again, _words(sizes[0], sizes[0]))
    if not has_own:
        only_ranks = plan.num_micro_batches == 1
        num = plan.num_micro_batches
        return _dealt(sizes, place, order, num, shifts=only_ranks and not in_halves, in_halves=in_halves)
    samples = rank_slices(torch.arange(plan.batch), plan, rank)[-1]
    halves = [size // 2 for size in sizes]
    samples = samples[order[order < len(samples)]][: 2 * halves[place] if min(halves) else sizes[place]]
    usual = _dealt(sizes, place, order)
    other = samples.flip(0).chunk(2 if min(halves) else 1)
    return Dealing(Division([samples], usual.planned.weight), Division(other, usual.planned.weight), usual.words)


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
    return num_drawn, _dealt(sizes, plan.data_rank(rank), torch.randperm(num_drawn, generator=generator), shifts=True)


def _enough(num_samples: int) -> int:
    return min(num_samples, max(_ENOUGH, num_samples // _SHARE))


def _dealt(
    sizes: Sequence[int], place: int, order: Tensor, most: int = 1, *, shifts: bool = False, in_halves: bool = True
) -> Dealing:
    """The rank at ``place`` has a micro-batch of as many samples as ``sizes`` says, and then another in two parts.

    These are halves ``in_halves`` and of few samples, else the sizes of the parts have no common divisor.

    Of small micro-batches there are several, up to ``most``: the halves of a few samples may be equal by chance.

    ``shifts``: if it may, it then has one with more samples, or with fewer, which takes less time than two.
    """
    if max(sizes) == 1:  # a pair of samples, one after the other and together; some may be dealt twice
        pair = order[torch.arange(2 * place, 2 * place + 2) % len(order)]
        return Dealing(Division(pair.chunk(2)), Division([pair]), _words(1, 2))
    halves = [samples // 2 for samples in sizes]
    num_parts = 2 if min(halves) > 0 else 1
    planned = [2 * half for half in halves] if num_parts == 2 else list(sizes)
    other = planned
    shifts = shifts and len(sizes) > 1 and min(sizes) >= _FEWEST_TO_SHIFT
    if shifts:
        shift, num_parts = min(sizes) // _FEWEST_TO_SHIFT, 1
        planned = [size - shift for size in sizes]
        signs = [1, -1] * (len(sizes) // 2) + [0] * (len(sizes) % 2)
        other = [size + sign * shift for size, sign in zip(planned, signs, strict=True)]
    words = _words(planned[0], other[0] // num_parts)
    num = 1 if shifts else max(1, min(most, -(-_ENOUGH // min(planned))))
    planned, other = ([num * size for size in sizes] for sizes in (planned, other))
    chosen = order[: sum(planned)]
    again = torch.cat([chosen[::2], chosen[1::2]]).flip(0)
    divided = _division(again, other, place, num * num_parts)
    if num * num_parts == 2 and min(planned) >= _ENOUGH and not in_halves:
        (samples,) = _division(again, other, place, 1).parts
        divided = replace(divided, parts=samples.tensor_split([_smaller(len(samples))]))
    return Dealing(_division(chosen, planned, place, num), divided, words, shifts)


def _smaller(even: int) -> int:
    """The largest number below half of ``even`` that has no common divisor with what is left of ``even``."""
    half = even // 2
    return half - 1 if half % 2 == 0 else half - 2


def _division(samples: Tensor, sizes: Sequence[int], place: int, num_parts: int = 1) -> Division:
    return Division(torch.split(samples, list(sizes))[place].chunk(num_parts), sizes[place] * len(sizes) / sum(sizes))
