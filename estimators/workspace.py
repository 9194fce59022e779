"""Memory that an operation takes inside while it makes its outputs: no tensor shows it, and it is gone afterwards.

Known are the convolutions of oneDNN on a CPU, which works on copies in a layout of its own: channels in blocks of one
vector register. Found with torch's profiler (torch 2.13, AVX2 and AVX512; kernels of 2 to 7, strides, groups, dilation)
for two samples and more in fp32, of a process with one thread. Left out: kernels of one pixel, which need none; 16-bit
numbers and single samples, which go other ways; scratch of a few ten KiB.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Workspace = tuple[tuple[int, int], ...]
"""For each output in order: bytes that are taken and given back before it is made, and bytes while it is made."""

_FEW_CHANNELS = 3  # so few are read as they are


def workspace_of(operation: Any, args: tuple[Any, ...], out: Any) -> Workspace:
    """Empty where nothing is known."""
    if operation is torch.ops.aten.convolution.default and _is_blocked(*args[:2]):
        given, weight, transposed = args[0], args[1], args[6]
        copy = _copy(out)
        return ((_read(given) + _copy(weight, dimensions=(0, 1)) + copy, copy * (2 if transposed else 1)),)
    if operation is torch.ops.aten.convolution_backward.default and _is_blocked(*args[1:3]):
        gradient, given = map(_copy, args[:2])
        kernel, (of_input, of_weight, _) = _copy(args[2], dimensions=(0, 1)), args[10]
        product, strided = _of_product(*args[:3]) if _is_product(args) else 0, max(args[4]) > 1 and not args[7]
        return (
            (gradient + kernel + given, given * (2 if strided else 1)) if of_input else (0, 0),
            ((product, product) if product else (gradient + kernel + _read(args[1]), kernel)) if of_weight else (0, 0),
        )
    return ()


def _is_product(args: tuple[Any, ...]) -> bool:
    """Whether the gradient of the weight is made as a product of matrices: without AVX512, of images smaller than the
    kernel, or kernels with gaps."""
    given, weight, dilation, transposed = args[1], args[2], args[6], args[7]
    return not transposed and not _has_avx512() and (given.shape[-1] < weight.shape[-1] or max(dilation) > 1)


def _of_product(gradient: Tensor, given: Tensor, weight: Tensor) -> int:
    """The windows of one sample side by side, four of the weight, and what the product packs."""
    rows, columns, depth = weight[0].numel(), weight.shape[0], gradient[0, 0].numel()
    return gradient.itemsize * (rows * depth + 4 * weight.numel() + _packed(rows, columns, depth))


def _packed(rows: int, columns: int, depth: int) -> int:
    """Numbers that oneDNN's product of matrices copies to have them in its order, if it does not read them as they are.

    From oneDNN's ``gemm_driver.cpp`` and ``gemm_info.cpp`` (AVX2), and measured: 64 to 256 channels in, 192 to 1024
    out, kernels of 3 to 7, 1 to 1024 positions.
    """
    if depth == 1 or 1 / rows + 1 / columns >= 0.0038:
        return 0
    at_once = max(depth, 128) if depth <= 256 else min(-(-depth // 2), 192)
    return at_once * (min(rows, 10080) + (min(columns, 384) if depth >= 64 else 0))


def _is_blocked(given: Tensor, weight: Tensor) -> bool:
    return given.dtype == torch.float32 and given.shape[0] > 1 and max(weight.shape[2:], default=1) > 1


def _read(given: Tensor) -> int:
    return 0 if given.shape[1] <= _FEW_CHANNELS else _copy(given)


def _copy(tensor: Tensor, dimensions: tuple[int, ...] = (1,)) -> int:
    """Bytes of a copy in which these dimensions are rounded up to whole blocks."""
    num, block = tensor.itemsize, _block()
    for dimension, size in enumerate(tensor.shape):
        num *= -(-size // block) * block if dimension in dimensions and size > _FEW_CHANNELS else size
    return num


def _block() -> int:
    """Numbers in a vector register."""
    return 16 if _has_avx512() else 8


def _has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")
