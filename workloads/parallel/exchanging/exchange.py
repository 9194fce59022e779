"""All-to-all with gradients: every rank sends each other one an equal part, and gets one from each."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.parallel.exchanging.gloo import released


def exchanged(parts: Tensor, group: dist.ProcessGroup, *, weight: float = 1.0) -> Tensor:
    """The parts that all ranks have for this one, in the order of the ranks.

    Dimension 0 of both tensors counts ranks. Gradients go back the same way, times ``weight``.
    """
    received: Tensor = _Exchange.apply(parts, group, weight)  # type: ignore[no-untyped-call]
    return received


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup, weight: float) -> Tensor:
        ctx.group, ctx.weight = group, weight
        return _all_to_all(parts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        returned = _all_to_all(gradients[0], ctx.group)
        return returned if ctx.weight == 1.0 else returned.mul_(ctx.weight), None, None


def _all_to_all(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = torch.empty_like(parts, memory_format=torch.contiguous_format)
    sent = parts.contiguous()
    with released(sent), released(received):
        dist.all_to_all_single(received, sent, group=group)
    return received
