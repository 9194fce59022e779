"""Adasum: each replica makes an update from its own gradients, and the replicas combine these updates pairwise.

Two updates a and b become (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b, tensor by tensor: their sum where they are
orthogonal, their mean where they are equal. With Horovod's delta semantics the optimizer of each replica steps from the
same weights, with states of its own, and the differences of the weights are combined. More than two replicas are
combined in a binary tree by recursive halving and doubling, so their number is a power of two.

Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from workloads.parallel.exchanging.gloo import reduce
from workloads.parallel.forward_state.snapshot import has_fractions, real_numbers

BUCKET_BYTES = 25 * 2**20  # of updates that travel together, unless a single one is larger; as in torch's DDP


class AdasumOptimizer(Optimizer):
    """Steps with ``optimizer``, which must be new, and combines the updates of all replicas in ``group``.

    The optimizer's hooks before a step run on each replica by itself, those after a step once updates are combined.
    """

    def __init__(self, optimizer: Optimizer, group: dist.ProcessGroup) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.state = optimizer.state
        self._optimizer, self._group = optimizer, group
        self._after = list(optimizer._optimizer_step_post_hooks.values())
        optimizer._optimizer_step_post_hooks.clear()

    @property
    def replica(self) -> int:
        """Number of this replica, whose states are its own."""
        return self._group.rank()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights, all replicas together; it takes a copy of them, and two buckets."""
        groups = self._optimizer.param_groups
        weights = [
            real_numbers(parameter.detach())
            for group in groups
            for parameter in group["params"]
            if parameter.requires_grad and has_fractions(parameter)
        ]
        before = [weight.clone() for weight in weights]
        self._optimizer.step()
        if weights:
            torch._foreach_sub_(weights, before)
            combine(weights, self._group)
            torch._foreach_add_(weights, before)
        for hook in self._after:
            hook(self, (), {})


def combine(updates: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Replace each of ``updates`` by Adasum's combination over the ranks of ``group``, bit for bit equal on all."""
    for bucket in _buckets(updates):
        sizes = [update.numel() for update in bucket]
        padding = bucket[0].new_zeros(-sum(sizes) % group.size())  # so that it can be halved down to one rank's part
        flat = torch.cat([*(update.reshape(-1) for update in bucket), padding])
        _Halves(flat, list(accumulate(sizes, initial=0)), group).combine(0, len(flat), 1)
        for update, part in zip(bucket, torch.split(flat[: sum(sizes)], sizes), strict=True):
            update.copy_(part.view_as(update))


def _buckets(updates: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for update in updates:
        size = sum(other.nbytes for other in bucket) + update.nbytes
        if bucket and (size > BUCKET_BYTES or (update.dtype, update.device) != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket = []
        bucket.append(update)
    if bucket:
        yield bucket


@dataclass(frozen=True, slots=True)
class _Halves:
    """The updates of a bucket one after another; number n is ``flat[ends[n] : ends[n + 1]]``."""

    flat: Tensor
    ends: Sequence[int]
    group: dist.ProcessGroup

    def combine(self, begin: int, end: int, distance: int) -> None:
        """Combine ``flat[begin:end]`` over this rank's block of ranks, of which those ``distance`` apart differ.

        Each rank combines one half with its neighbour, then the whole block that half, and neighbours swap results.
        """
        rank, middle = self.group.rank(), (begin + end) // 2
        is_left = rank // distance % 2 == 0
        neighbour = rank + distance if is_left else rank - distance
        mine, theirs = ((begin, middle), (middle, end)) if is_left else ((middle, end), (begin, middle))
        own_part, sent_part = self.flat[slice(*mine)], self.flat[slice(*theirs)]
        received = torch.empty_like(own_part)
        self._swap(sent_part, received, neighbour)
        left, right = (own_part, received) if is_left else (received, own_part)
        self._add(left, right, *mine, distance)
        if not is_left:
            own_part.copy_(left)
        del received, left, right
        if 2 * distance < self.group.size():
            self.combine(*mine, 2 * distance)
        self._swap(own_part, sent_part, neighbour)

    def _add(self, left: Tensor, right: Tensor, begin: int, end: int, distance: int) -> None:
        """Put the combination of both into ``left``; each has ``flat[begin:end]`` of one half of a block."""
        inside = [(max(low, begin) - begin, min(high, end) - begin) for low, high in pairwise(self.ends)]
        parts = [(left[low:high], right[low:high]) for low, high in inside if low < high]
        places = [number for number, (low, high) in enumerate(inside) if low < high]
        size = 2 * distance
        # One row for each block of ranks, so that all ranks can add up in a group that exists.
        sums = self.flat.new_zeros(self.group.size() // size, 3, len(inside), dtype=torch.float64)
        if parts:
            products = [torch.stack([_dot(a, b), _dot(a, a), _dot(b, b)]) for a, b in parts]
            sums[self.group.rank() // size, :, places] = torch.stack(products, 1)
        reduce(sums, self.group)
        both, of_left, of_right = sums[self.group.rank() // size]
        ones = torch.ones_like(both)
        factors = [torch.where(norm > 0, 1 - both / (2 * norm), ones) for norm in (of_left, of_right)]
        for place, (a, b) in zip(places, parts, strict=True):
            a.mul_(factors[0][place])
            b.mul_(factors[1][place])
        left.add_(right)

    def _swap(self, sent: Tensor, received: Tensor, neighbour: int) -> None:
        messages = [
            dist.P2POp(dist.isend, sent, group=self.group, group_peer=neighbour),
            dist.P2POp(dist.irecv, received, group=self.group, group_peer=neighbour),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    narrow = a.dtype in (torch.float16, torch.bfloat16)
    return (torch.dot(a.float(), b.float()) if narrow else torch.dot(a, b)).double()
