"""Memory of products of matrices on a CPU.

See addmm_impl_cpu_ and bmm_out_or_baddbmm_ in ATen/native/LinearAlgebra.cpp, and mkldnn_bf16_gemm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from estimators.tracing.device.cpu import onednn
from estimators.tracing.device.cpu.convolution import on_meta
from estimators.tracing.device.device import Workspace

_ATEN = torch.ops.aten
PRODUCTS = frozenset([_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default, _ATEN.baddbmm.default])
_FEWEST_PRODUCTS = 16**3  # of numbers, for which torch asks oneDNN


def product(args: Sequence[Any]) -> Workspace:
    """Workspace of a product, or of one for each sample: copies of matrices that are not dense, and scratch memory."""
    factors = args[-2:]
    if not all(factor.numel() for factor in factors):
        return ()
    num_bytes = sum(_copy_bytes(factor) for factor in factors)
    if factors[0].dtype in (torch.bfloat16, torch.float16):
        first, second = (_dense(factor if factor.ndim == 2 else factor[0]) for factor in map(on_meta, factors))
        num_bytes += _scratch_bytes(first, second)
    return ((0, num_bytes),) if num_bytes else ()


def _scratch_bytes(first: Tensor, second: Tensor) -> int:
    """Scratch memory for the product of two dense matrices in 16 bits, on the meta device.

    Torch multiplies rows of a transposed matrix itself by sums in fp32, if oneDNN does not multiply them.
    """
    rows, depth, columns = *first.shape, second.shape[1]
    is_known = first.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if is_known and rows * columns * depth > _FEWEST_PRODUCTS:
        try:
            return onednn.product_scratch_bytes(first, second)
        except onednn.NoKernel:
            return 0
    is_turned = first.stride(0) == 1 and second.stride(0) != 1
    return 4 * rows * columns if is_turned else 0


def _copy_bytes(factor: Tensor) -> int:
    """Bytes of the copy of a matrix, or of several: one after another or, in 16 bits, all at once."""
    if factor.ndim == 2:
        return 0 if _is_dense(factor) else factor.numel() * factor.itemsize
    if factor.itemsize == 2:
        is_contiguous = factor.is_contiguous() or factor.transpose(1, 2).is_contiguous()
        return 0 if is_contiguous else factor.numel() * factor.itemsize
    return _copy_bytes(factor[0])


def _dense(matrix: Tensor) -> Tensor:
    return matrix if _is_dense(matrix) else matrix.contiguous()


def _is_dense(matrix: Tensor) -> bool:
    """Whether rows or columns are contiguous and do not overlap, as BLAS wants them."""
    (rows, columns), (down, along) = matrix.shape, matrix.stride()
    return (along == 1 and down >= columns) or (down == 1 and along >= rows)
