"""Copies that ranks make of gradients before they add them up, on a CPU (torch 2.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.fsdp  # registers fsdp::chunk_cat
from torch import Tensor

from estimators.tracing.device.device import Workspace

_REDUCE_SCATTER = torch.ops._c10d_functional.reduce_scatter_tensor.default
_CHUNK_CATS = frozenset([torch.ops.aten._chunk_cat.default, torch.ops.fsdp.chunk_cat.default])
COPYING = frozenset([_REDUCE_SCATTER, *_CHUNK_CATS])


def copies(operation: Any, args: Sequence[Any]) -> Workspace:
    """Workspace of an operation that copies gradients and holds the copies until it has made its output."""
    if operation in _CHUNK_CATS:
        return ((0, _of_chunks(args[0], args[2])),)
    return ((0, args[0].nbytes),)  # ranks add up a copy (workloads.parallel.exchanging.gloo)


def _of_chunks(gradients: Sequence[Tensor], num_chunks: int) -> int:
    """FSDP2 puts the gradients of one module together, the rows of each divided over ``num_chunks`` ranks.

    Before, a CPU copies each gradient whose rows the ranks do not divide evenly, padded, and each that is not
    contiguous. All copies are alive until the last gradient is in its place (``_pad_chunk`` in ATen/native). One number
    is counted at least: the logs of all architectures of a model then have the same events.
    """
    num_bytes = 0
    for gradient in gradients:
        num_padded = -gradient.shape[0] % num_chunks
        if num_padded or not _is_view(gradient, num_chunks):
            num_bytes += (gradient.shape[0] + num_padded) * gradient.shape[1:].numel() * gradient.itemsize
    return max(num_bytes, gradients[0].itemsize)


def _is_view(source: Tensor, num_chunks: int) -> bool:
    """Whether the tensor can be seen as ``num_chunks`` rows without a copy."""
    on_meta = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
    try:
        on_meta.view(num_chunks, -1)
    except RuntimeError:
        return False
    return True
