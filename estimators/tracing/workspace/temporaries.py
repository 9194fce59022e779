"""Tensors that torch's own operations make on a CPU on the way to their outputs.

Found by running each operation, and read in ATen/native (torch 2.13, one thread).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from estimators.tracing.workspace.amounts import Workspace

_ATEN = torch.ops.aten
_INT64_BYTES = 8
_EXACT, _BY_PRODUCTS = 2, 1  # how distances are computed
_FEWEST_POINTS = 25  # for which they are computed by products of matrices


def temporaries(operation: Any, args: Sequence[Any], num_outputs: int) -> Workspace:
    """Workspace of an operation of ``TEMPORARIES``: its temporary tensors live as long as it lasts."""
    if operation is _ATEN.col2im.default:
        return ((_contiguous(args[0]), 0),)  # the output is made later
    num_bytes = TEMPORARIES[operation](args)
    return ((0, num_bytes),) * num_outputs if num_bytes else ()


def _contiguous(source: Tensor) -> int:
    """Bytes of a copy of each sample, and of a contiguous one of all samples before it if they are not contiguous."""
    return source.nbytes if source.is_contiguous() else 2 * source.nbytes


def _times(number: int) -> Callable[[Sequence[Any]], int]:
    return lambda args: number * int(args[0].nbytes)


def _of_loss(number: int, index: int, always: int = 0) -> Callable[[Sequence[Any]], int]:
    """Bytes of ``always`` tensors like the input, and of ``number`` more if argument ``index`` reduces the loss."""

    def num_bytes(args: Sequence[Any]) -> int:
        is_reduced = len(args) <= index or args[index] != 0
        return int(args[0].nbytes) * (always + is_reduced * number)

    return num_bytes


def _of_real_fft(args: Sequence[Any]) -> int:
    source, dims = args[:2]
    return 0 if source.is_contiguous() and dims[-1] == source.ndim - 1 else int(source.nbytes)


def _of_inverse_fft(args: Sequence[Any]) -> int:
    source, dims = args[:2]
    return 2 * int(source.nbytes) if len(dims) > 1 else _of_real_fft(args)


def _of_distances(args: Sequence[Any]) -> int:
    first, second, norm, mode = args
    few = max(first.shape[-2], second.shape[-2]) <= _FEWEST_POINTS
    if norm != 2 or mode == _EXACT or (few and mode != _BY_PRODUCTS):
        return 0
    rows = first.numel() // first.shape[-1] + second.numel() // second.shape[-1]
    return int(rows * (first.shape[-1] + 2) * first.itemsize)  # with a column of squares and one of ones


def _of_safe_softmax(args: Sequence[Any]) -> int:
    """Attention's softmax marks the rows that are masked as a whole; before, it may copy its input in another type."""
    source, dim, *dtypes = args
    dtype = dtypes[0] if dtypes and dtypes[0] is not None else source.dtype
    copied = source.numel() * dtype.itemsize if dtype != source.dtype else 0
    return int(max(copied, source.numel() + source.numel() // max(source.shape[dim], 1) + dtype.itemsize))


def _of_sum(args: Sequence[Any]) -> int:
    """Masks and short integers are copied as long ones."""
    dtype = args[0].dtype
    is_copied = not dtype.is_floating_point and not dtype.is_complex and dtype != torch.int64
    return int(args[0].numel()) * _INT64_BYTES if is_copied else 0


def _of_truth(args: Sequence[Any]) -> int:
    """Numbers are copied as a mask."""
    return 0 if args[0].dtype in (torch.bool, torch.uint8) else int(args[0].numel())


TEMPORARIES: Mapping[Any, Callable[[Sequence[Any]], int]] = {
    _ATEN.mse_loss.default: _of_loss(2, 2),
    _ATEN.smooth_l1_loss.default: _of_loss(2, 2),
    _ATEN.huber_loss.default: _of_loss(1, 2),
    _ATEN.soft_margin_loss.default: _of_loss(1, 2),
    _ATEN.soft_margin_loss_backward.default: lambda args: 2 * int(args[1].nbytes),
    _ATEN.binary_cross_entropy.default: _of_loss(1, 3),
    _ATEN.binary_cross_entropy_with_logits.default: _of_loss(1, 4, always=1),
    _ATEN.logsumexp.default: _times(1),
    _ATEN._safe_softmax.default: _of_safe_softmax,
    _ATEN.sum.default: _of_sum,
    _ATEN.sum.dim_IntList: _of_sum,
    _ATEN.cumsum.default: _of_sum,
    _ATEN.prod.default: _of_sum,
    _ATEN.any.default: _of_truth,
    _ATEN.any.dim: _of_truth,
    _ATEN.any.dims: _of_truth,
    _ATEN.all.default: _of_truth,
    _ATEN.all.dim: _of_truth,
    _ATEN.all.dims: _of_truth,
    _ATEN.median.default: _times(1),
    _ATEN.median.dim: _times(1),
    _ATEN.kthvalue.default: lambda args: args[0].numel() * (args[0].itemsize + _INT64_BYTES),
    _ATEN.abs.default: lambda args: args[0].nbytes if args[0].is_complex() else 0,
    _ATEN.im2col.default: lambda args: _contiguous(args[0]),
    _ATEN.col2im.default: lambda args: _contiguous(args[0]),
    _ATEN._fft_r2c.default: _of_real_fft,
    _ATEN._fft_c2r.default: _of_inverse_fft,
    _ATEN._cdist_forward.default: _of_distances,
}
