"""The loss of a step, from those of its micro-batches: a mean over samples, or a sum and what it is divided by.

A loss that is divided by a number that differs between samples (tokens that count, weights of classes) is no mean over
samples: in a micro-batch with few tokens each of them would count for more. For such a loss a workload returns the sum
and the number. The gradients of all sums of a step are added up, and divided once, by the numbers of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from workloads.parallel.exchanging.gloo import reduce
from workloads.refusals import WrongResult, expect_loss


@dataclass(slots=True)
class StepLosses:
    """The losses of this rank's micro-batches in one step, which ``function`` returns.

    The backward pass of a mean begins with ``factor`` times the ``weight`` of this rank's samples, that of a sum with
    ``scale``: the numbers in it are the same under every plan. Once ``divisor`` was asked for,
    ``is_sum`` says whether the loss is a sum.
    """

    function: Callable[..., Any]
    factor: float = 1.0
    weight: float = 1.0
    scale: float = 1.0
    is_sum: bool = False
    _losses: list[Tensor] = field(default_factory=list)
    _counts: list[Tensor] = field(default_factory=list)
    _quotient: float | None = None

    def add(self, returned: Any) -> Tensor:
        """Take what the function has returned for the next micro-batch; returns the number to run backward from.

        Raises ``WrongResult`` unless it is a loss, of the same kind for every micro-batch. It is copied, as torch's
        ``mse_loss``, ``smooth_l1_loss``, ``soft_margin_loss`` and ``binary_cross_entropy`` return a number that keeps
        the memory of all terms alive on a CPU (torch 2.13).
        """
        loss, count = expect_loss(returned, self.function)
        if self._losses and (count is None) == bool(self._counts):
            raise WrongResult(
                self.function,
                "returns a sum and its count for one micro-batch, and one number for another",
                "return the same for every batch",
            )
        loss = loss.clone()
        self._losses.append(loss.detach())
        if count is None:
            return _times(loss, self.factor * self.weight)
        self._counts.append(count)
        return _times(loss, self.scale)

    def divisor(self, num: int, group: dist.ProcessGroup | None, *, asks: bool) -> float:
        """The divisor of gradients that were summed over ``num`` micro-batches and averaged over ranks.

        A sum is divided by the counts of all ranks in ``group``. ``asks``: ranks that compute no loss take part, and
        learn of what kind it is (``is_sum``).
        """
        self.is_sum = bool(self._counts)
        if not (self.is_sum or asks) or isinstance(zero := torch.zeros((), dtype=torch.float64), FakeTensor):
            return num
        parts = (_sum(self._losses) if self._counts else zero, _sum(self._counts), zero + bool(self._counts))
        sums = torch.stack(parts)
        if group is not None:
            reduce(sums, group)
        total, count, num_ranks = sums.tolist()
        self.is_sum = num_ranks > 0
        if not self.is_sum:
            return num
        self._quotient = total / count if count else 0.0
        return self.scale / self.factor * count / num_ranks if count else math.inf

    def mean(self) -> Tensor:
        """The loss of the step, a scalar, after ``divisor`` was asked for: 0 on a rank that computes none.

        A mean is that of this rank's micro-batches alone, a sum is divided by the counts of all ranks.
        """
        if not self._losses:
            return torch.zeros(())
        return torch.stack(self._losses).mean() if self._quotient is None else torch.tensor(self._quotient)


def _sum(numbers: list[Tensor]) -> Tensor:
    return sum((number.double().cpu() for number in numbers), start=torch.zeros((), dtype=torch.float64))


def _times(loss: Tensor, factor: float) -> Tensor:
    """The loss times ``factor``, in fp32."""
    return loss if factor == 1 else loss.float() * factor
