"""Workspaces of fp32 convolutions where oneDNN cannot be asked: a rule for the copies that it usually makes.

oneDNN computes most of them on copies with channels in blocks of one vector register. The rule was found with torch's
profiler (torch 2.13, AVX2 and AVX512; kernels of 1 to 7). It knows neither depthwise convolutions nor channels last.
"""

from __future__ import annotations

from math import prod

from torch import Tensor

from estimators.tracing.workspace.amounts import NOTHING, Workspace
from estimators.tracing.workspace.convolution import Convolution
from estimators.tracing.workspace.products import has_avx512, packed_bytes

_FEW_CHANNELS = 3  # up to this many channels are read without a copy


def forward(convolution: Convolution) -> Workspace:
    """Workspace of the forward pass."""
    output_bytes = _blocked_bytes(convolution.output)
    during = _read_bytes(convolution) + _kernel(convolution) + output_bytes
    return ((during, output_bytes * (2 if convolution.transposed else 1)),)


def backward(convolution: Convolution, of_input: bool, of_weight: bool) -> Workspace:
    """Workspace of the gradients of the input and of the weight, as far as they are asked for."""
    output_bytes, images = _blocked_bytes(convolution.output), _blocked_bytes(convolution.images)
    strided = max(convolution.stride) > 1 and not convolution.transposed
    before = output_bytes + _blocked_bytes(convolution.weight, dimensions=(0, 1)) + images
    input_takes = (before, images * (2 if strided else 1)) if of_input else NOTHING
    if not of_weight:
        return input_takes, NOTHING
    if _is_product(convolution):
        product = _product(convolution)
        return input_takes, (product, product)
    kernel = _kernel(convolution)
    return input_takes, (output_bytes + kernel + _read_bytes(convolution), kernel)


def _read_bytes(convolution: Convolution) -> int:
    """Bytes of the copy that is read; 0 if there are so few channels that they are read without a copy."""
    return _blocked_bytes(convolution.images) if convolution.images.shape[1] > _FEW_CHANNELS else 0


def _kernel(convolution: Convolution) -> int:
    dimensions = (0, 1) if convolution.weight.shape[1] > _FEW_CHANNELS else (0,)
    return _blocked_bytes(convolution.weight, dimensions)


def _is_product(convolution: Convolution) -> bool:
    """Whether the gradient of the weight is computed as a matrix product: without AVX512, for volumes, images smaller
    than the kernel, and kernels with gaps."""
    if convolution.transposed or convolution.is_of_points or has_avx512():
        return False
    smaller = convolution.images.shape[-1] < convolution.weight.shape[-1]
    return convolution.is_of_volumes or smaller or max(convolution.dilation) > 1


def _product(convolution: Convolution) -> int:
    """Bytes of that matrix product: the windows of one sample (for volumes, of one layer) side by side, four copies of
    the weight, and what the product packs."""
    weight = convolution.weight
    rows, columns = weight[0].numel(), len(weight)
    depth = prod(convolution.output.shape[3 if convolution.is_of_volumes else 2 :])
    packed = packed_bytes(rows, columns, depth, "TN", depth)
    return 4 * (rows * depth + 4 * weight.numel()) + packed


def _blocked_bytes(tensor: Tensor, dimensions: tuple[int, ...] = (1,)) -> int:
    """Bytes of a copy in which these dimensions are rounded up to whole blocks."""
    num, block = tensor.itemsize, _block()
    for dimension, size in enumerate(tensor.shape):
        num *= -(-size // block) * block if dimension in dimensions else size
    return num


def _block() -> int:
    """fp32 elements in a vector register."""
    return 16 if has_avx512() else 8
