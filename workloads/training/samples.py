"""The samples of each step and each rank: every plan sees the same ones in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from estimators.model import Plan
from scamp.workload.seeds import mixed

FEW = 2**16  # samples whose whole permutation is drawn; it takes 8 bytes and about 10 ns a sample, in every step
ROUNDS = 6
_MULTIPLIERS = (0x1FE4C1C5BF58476D, 0x14D049BB133111EB)  # odd, with about as many ones as zeros


def batch_indices(num_train: int, batch: int, step: int, seed: int, first: int = 0) -> Tensor:
    """Indices of the training samples of optimizer step ``step``, shape [batch].

    Each epoch is one shuffle, and batches run across epochs without a gap. The indices depend only on the arguments, so
    a trial continues with the same samples under another plan. ``first`` is the position at which step 0 begins.
    """
    positions = torch.arange(step * batch, (step + 1) * batch) + first
    parts = []
    for epoch in range(int(positions[0]) // num_train, int(positions[-1]) // num_train + 1):
        generator = torch.Generator().manual_seed(mixed(seed, epoch))
        inside = positions[(positions // num_train) == epoch] % num_train
        few = num_train <= FEW
        parts.append(
            torch.randperm(num_train, generator=generator)[inside] if few else _permuted(inside, num_train, generator)
        )
    return torch.cat(parts)


def rank_slices(indices: Tensor, plan: Plan, rank: int) -> tuple[Tensor, ...]:
    """The micro-batches of ``rank``, cut from its contiguous share of the global batch ``indices``."""
    shares = torch.split(indices, [samples * plan.num_micro_batches for samples in plan.samples_of_shares])
    return shares[plan.data_rank(rank)].chunk(plan.num_micro_batches)


def evaluation_slices(num_eval: int, plan: Plan, rank: int) -> Iterator[Tensor]:
    """Yield the indices of the held-out samples that ``rank`` evaluates, one micro-batch after another.

    All ranks get as many micro-batches; the last ones may be smaller. Only where samples do not suffice, some get one
    with the index ``num_eval`` or more, which just fills up.
    """
    share = plan.data_rank(rank)
    most = [min(samples, plan.evaluation_micro_batch) for samples in plan.samples_of_shares]
    first = 0
    for size in _rounds(num_eval, most):
        parts = _divided(size, most)
        start = first + sum(parts[:share])
        yield torch.arange(start, start + max(1, parts[share]))
        first += size


def _rounds(num_eval: int, most: Sequence[int]) -> list[int]:
    """Samples that all ranks evaluate together, in each round; none has fewer samples than ranks, if that can be.

    ``most`` are the most that each rank takes.
    """
    num_shares, together = len(most), sum(most)
    full, rest = divmod(num_eval, together)
    rounds = [together] * full + [rest] * (rest > 0)
    if full and 0 < rest < num_shares and together > num_shares:
        moved = min(num_shares - rest, together - num_shares)
        rounds[-2:] = [rounds[-2] - moved, rest + moved]
    return rounds


def _divided(size: int, most: Sequence[int]) -> list[int]:
    """``size`` samples divided between ranks by the ``most`` that each takes, at least one for each if possible."""
    if size <= len(most):
        return [int(share < size) for share in range(len(most))]
    room, left = [most_there - 1 for most_there in most], size - len(most)
    parts = [1 + left * room_there // sum(room) for room_there in room]
    for share in range(len(most)):
        parts[share] += parts[share] < most[share] and sum(parts) < size
    return parts


def _permuted(positions: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Elements ``positions`` (int64) of a random permutation of 0 … ``num`` - 1, which is never built as a whole.

    A Feistel network permutes the numbers of an even number of bits; a result that is not below ``num`` is permuted
    again, until it is ("cycle walking"; Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
    """
    half = ((num - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    keys = torch.randint(2**62, (ROUNDS,), generator=generator).tolist()

    def permuted(numbers: Tensor) -> Tensor:
        left, right = numbers >> half, numbers & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return left << half | right

    order = permuted(positions)
    while bool((outside := order >= num).any()):
        order[outside] = permuted(order[outside])
    return order


def _mixed(numbers: Tensor) -> Tensor:
    """A hash of each of ``numbers`` (int64), in which a small change spreads over all bits."""
    for multiplier in _MULTIPLIERS:
        numbers = numbers * multiplier  # modulo 2^64
        numbers = numbers ^ (numbers >> 31)
    return numbers
