"""Collectives on gloo that return only after gloo's threads have released the tensors, and take no other memory.

Without the wait they release them at any time: the memory of a step would depend on the scheduler. The profiler, which
sees only the thread that it is started in, would also miss memory that gloo's threads free.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

RELEASE_SECONDS = 10.0  # gloo's threads need only microseconds, but on a busy machine they wait for a core


@contextmanager
def released(tensor: Tensor) -> Iterator[None]:
    """Return only when as few hold the tensor and its memory as before."""
    if _is_elsewhere(tensor):
        yield
        return
    before = _holders(tensor)
    yield
    deadline = time.monotonic() + RELEASE_SECONDS
    while _holders(tensor) > before and time.monotonic() < deadline:
        time.sleep(20e-6)


def _is_elsewhere(tensor: Tensor) -> bool:
    """Whether no thread of gloo can hold the tensor, as it is on a GPU or of a trace."""
    return tensor.device.type != "cpu" or isinstance(tensor, FakeTensor)


def _holders(tensor: Tensor) -> int:
    """Number of references to the tensor, from C++ and Python, and to its memory: gloo's threads hold some of each.

    All references from C++ together hold one Python reference; the thread that drops the last of them releases it
    slightly later.
    """
    in_cpp = tensor._use_count() + torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]
    return int(in_cpp + sys.getrefcount(tensor))


def gather(output: Tensor, part: Tensor, group: dist.ProcessGroup) -> None:
    """All-gather by a broadcast from each rank; gloo's own needs memory for a second copy of the result."""
    if _is_elsewhere(output):
        dist.all_gather_single(output, part, group)
        return
    parts = output.view(group.size(), -1)
    parts[group.rank()].copy_(part.reshape(-1))
    for rank, rank_part in enumerate(parts):
        with released(rank_part):
            dist.broadcast(rank_part, group=group, group_src=rank)


def reduce(
    tensor: Tensor, group: dist.ProcessGroup, op: dist.ReduceOp | dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> None:
    """All-reduce in place."""
    with released(tensor):
        dist.all_reduce(tensor, op=op, group=group)


class _Allocating:
    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Allocating):
    """FSDP2's all-gather."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        gather(output_tensor, input_tensor, group)


class ReduceScatter(_Allocating):
    """FSDP2's reduce-scatter, in place: FSDP2 does not use the input afterwards. gloo's own does the same on a copy."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        reduce(input_tensor, group, op)
        output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()].view_as(output_tensor))


@contextmanager
def released_collectives() -> Iterator[None]:
    """While the context lasts, all-reduces, FSDP2's among them, and DTensor's collectives release host memory."""
    with (
        mock.patch.object(dist, "all_reduce", partial(_all_reduce_in_place, dist.all_reduce)),
        torch.library._scoped_library("_c10d_functional", "IMPL") as library,
    ):
        library.impl("all_reduce", _all_reduce, "CPU")
        library.impl("all_gather_into_tensor", _all_gather, "CPU")
        library.impl("reduce_scatter_tensor", _reduce_scatter, "CPU")
        yield


def _all_reduce_in_place(
    start: Callable[..., dist.Work | None], tensor: Tensor, *args: Any, async_op: bool = False, **kwargs: Any
) -> dist.Work | None:
    with nullcontext() if async_op else released(tensor):
        return start(tensor, *args, async_op=async_op, **kwargs)


def _all_reduce(tensor: Tensor, op: str, group: str | dist.ProcessGroup) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    reduce(total, _group(group), _operation(op))
    return total


def _all_gather(part: Tensor, num_ranks: int, group: str | dist.ProcessGroup) -> Tensor:
    gathered = part.new_empty(num_ranks * part.shape[0], *part.shape[1:])
    gather(gathered, part, _group(group))
    return gathered


def _reduce_scatter(tensor: Tensor, op: str, num_ranks: int, group: str | dist.ProcessGroup) -> Tensor:
    """On a copy, as others may use the input: the trace counts it (``estimators.tracing.device.cpu.copies``)."""
    total, ranks = tensor.clone(memory_format=torch.contiguous_format), _group(group)
    reduce(total, ranks, _operation(op))
    return total.chunk(num_ranks)[ranks.rank()].clone()


def _group(group: str | dist.ProcessGroup) -> dist.ProcessGroup:
    if isinstance(group, str):
        return torch._C._distributed_c10d._resolve_process_group(dist.GroupName(group))
    return group


def _operation(name: str) -> dist.ReduceOp.RedOpType:
    operation: dist.ReduceOp.RedOpType = getattr(dist.ReduceOp, name.upper())
    return operation
