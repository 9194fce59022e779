"""Collectives with gradients: what ranks send each other, and what all of them get of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from estimators.tracing.fake_shares import rows_of_largest
from workloads.parallel.exchanging.gloo import gather, reduce, released


def of_all_ranks(values: Tensor, groups: Sequence[dist.ProcessGroup], fill: int = 0) -> Tensor:
    """The ``values`` (shape [n]) of all ranks, shape [ranks, largest n], filled up where a rank has fewer.

    ``groups`` are those of this rank along dimensions of a mesh, the slowest first.
    """
    most = _largest(values, groups)
    every = functional.pad(values, (0, most - len(values)), value=fill) if most > len(values) else values
    for group in reversed(groups):
        part, every = every.contiguous(), every.new_empty(group.size() * len(every))
        gather(every, part, group)
    return every.view(-1, most)


def _largest(values: Tensor, groups: Sequence[dist.ProcessGroup]) -> int:
    """The largest number of values that a rank has: they differ at the end of an evaluation and with unlike shares."""
    if isinstance(values, FakeTensor):
        return rows_of_largest(len(values))
    most = torch.tensor(len(values), device=values.device)
    for group in groups:
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return int(most)


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


def exchanged_rows(
    rows: Tensor,
    sent: Sequence[int],
    received: Sequence[int],
    size: int,
    group: dist.ProcessGroup,
    *,
    weight: float = 1.0,
) -> Tensor:
    """Rows that the ranks of ``group`` have for this one, in their order, and then zeros up to ``size`` rows.

    The first ``sent[0]`` of ``rows`` go to the first rank, and so on; ``received`` has the numbers of those that come.
    Gradients go back the same way, times ``weight``.
    """
    output: Tensor = _ExchangeRows.apply(rows, sent, received, size, group, weight)  # type: ignore[no-untyped-call]
    return output


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        size: int,
        group: dist.ProcessGroup,
        weight: float,
    ) -> Tensor:
        ctx.sizes, ctx.num, ctx.group, ctx.weight = (received, sent), len(rows), group, weight
        return _send_rows(rows, sent, received, size, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        received, sent = ctx.sizes
        returned = _send_rows(gradients[0], received, sent, ctx.num, ctx.group)
        return (returned if ctx.weight == 1.0 else returned.mul_(ctx.weight), *(None,) * 5)


def _send_rows(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], size: int, group: dist.ProcessGroup
) -> Tensor:
    output = rows.new_zeros(size, *rows.shape[1:])
    outgoing, incoming = rows[: sum(sent)].contiguous(), output[: sum(received)]
    with released(outgoing), released(incoming):
        dist.all_to_all_single(incoming, outgoing, list(received), list(sent), group=group)
    return output


def gathered_rows(rows: Tensor, group: dist.ProcessGroup, *, weight: float = 1.0) -> Tensor:
    """The ``rows`` (shape [n, features]) of all ranks, shape [ranks · largest n, features], with zeros where a rank has
    fewer. Each rank gets the sum of the gradients that the ranks have for its rows, times ``weight``."""
    output: Tensor = _GatherRows.apply(rows, group, weight)  # type: ignore[no-untyped-call]
    return output


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup, weight: float) -> Tensor:
        ctx.num, ctx.group, ctx.weight = len(rows), group, weight
        most = _largest(rows, (group,))
        padded = functional.pad(rows, (0, 0, 0, most - len(rows))) if most > len(rows) else rows.contiguous()
        every = rows.new_empty(group.size() * most, *rows.shape[1:])
        gather(every, padded, group)
        return every

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        reduce(total, ctx.group)
        gradient = total.view(ctx.group.size(), -1, *total.shape[1:])[ctx.group.rank(), : ctx.num]
        return gradient * ctx.weight, None, None
