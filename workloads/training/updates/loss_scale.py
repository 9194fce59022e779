"""Dynamic loss scaling for fp16, whose smallest numbers are too large for many gradients.

The loss is multiplied by ``factor`` before its backward pass, and the gradients are divided by it before the update. If
a gradient has overflowed on any rank, all ranks skip the update, and the factor is halved; after ``GROWTH_STEPS`` good
steps it is doubled. These are the numbers of ``torch.amp.GradScaler``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from workloads.parallel.exchanging.gloo import reduce
from workloads.training.updates.norms import global_norm, local_gradients

FIRST_SCALE = 2.0**16
GROWTH_STEPS = 2000
LARGEST = torch.finfo(torch.float16).max
TYPICAL_COUNT = 1024
"""By this many tokens a loss that is a sum is divided before its backward pass, as counts are known only after it."""


@torch.no_grad()
def share_overflows(parameters: Iterable[Tensor], num_shares: int, ranks: dist.ProcessGroup | None) -> None:
    """Make all gradients infinite if one is on any rank, or would be in fp16 if the whole batch were one pass.

    The gradients are those of a workload that scales its loss itself, averaged over ``num_shares`` ranks: it sees the
    same on every rank, and under every plan.
    """
    gradients = list(local_gradients(parameters))
    highest = [torch.linalg.vector_norm(gradient, math.inf).float() for gradient in gradients if gradient.numel()]
    if any(isinstance(number, FakeTensor) for number in highest):
        return
    overflown = torch.tensor(float(not all(float(number) * num_shares <= LARGEST for number in highest)))
    if ranks is not None:
        reduce(overflown, ranks)
    for gradient in gradients if overflown else ():
        gradient.fill_(math.inf)


@dataclass(slots=True, eq=False)
class LossScale:
    """The scale of the mean loss over a whole batch; ``num_shares`` parts of it are trained by different ranks.

    A part of a batch gets a part of the scale. So the numbers in its backward pass are those of the whole batch, and
    every plan skips the same updates.
    """

    num_shares: int
    scale: float = FIRST_SCALE
    num_good: int = 0
    num_micro_batches: int = 1

    @property
    def factor(self) -> float:
        """The number by which the loss of a micro-batch is multiplied."""
        return self.scale / (self.num_shares * self.num_micro_batches)

    @property
    def scale_of_sums(self) -> float:
        """The number by which a sum is multiplied: it is larger than a mean, about as often as a batch has tokens."""
        return self.scale / TYPICAL_COUNT

    @torch.no_grad()
    def unscale(self, parameters: Iterable[Tensor], stages: dist.ProcessGroup | None) -> None:
        """Divide the gradients by the factor; if one of them is not finite, drop all, so that no weight changes."""
        parameters = list(parameters)
        for gradient in local_gradients(parameters):
            gradient.mul_(1 / self.factor)  # not all at once: fake tensors would be copied one by one
        norm = global_norm(parameters, stages)
        if isinstance(norm, FakeTensor) or bool(norm.isfinite()):  # a trace follows a step that updates
            self.num_good += 1
            if self.num_good % GROWTH_STEPS == 0:
                self.scale *= 2
            return
        self.scale, self.num_good = self.scale / 2, 0
        for parameter in parameters:
            parameter.grad = None
