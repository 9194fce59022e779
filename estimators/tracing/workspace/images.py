"""Memory that torch's own operations on images use internally on a CPU: upsampling, and gradients of batch norm.

Measured with torch 2.13 and one thread; smaller amounts and other operations are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from estimators.tracing.workspace.amounts import Workspace

_SMALL = 128  # the most rows and columns together of an output that is computed with channels last
_COLOURS = 3

_ATEN = torch.ops.aten
_BILINEAR = {_ATEN.upsample_bilinear2d.default, _ATEN.upsample_bilinear2d.vec}
_NEAREST = {
    _ATEN.upsample_nearest2d.default,
    _ATEN.upsample_nearest2d.vec,
    _ATEN._upsample_nearest_exact2d.default,
    _ATEN._upsample_nearest_exact2d.vec,
}
UPSAMPLING = _BILINEAR | _NEAREST
BATCH_NORM_BACKWARD = _ATEN.native_batch_norm_backward.default


def upsampling(operation: Any, images: Tensor, output: Tensor) -> Workspace:
    """Workspace of upsampling: copies of both images with channels last, if they have another memory format.

    See ``_use_vectorized_kernel_cond_2d`` in ATen/native/cpu/UpSampleKernel.cpp, and where it is asked.
    """
    channels = images.shape[1]
    is_small = output.shape[-2] + output.shape[-1] <= _SMALL
    uses_channels_last = is_small or (operation in _BILINEAR and channels == _COLOURS)
    if not uses_channels_last or images.is_contiguous(memory_format=torch.channels_last):
        return ()
    return ((0, images.nbytes + output.nbytes),)


def batch_norm_backward(gradient: Tensor, images: Tensor, of_input: bool) -> Workspace:
    """Workspace of the gradients of batch norm: the input's is allocated twice if both images have the same format.

    See ``batch_norm_backward_cpu_template`` in ATen/native/Normalization.cpp: ``all_contiguous``.
    """
    formats = suggest_memory_format(images), suggest_memory_format(gradient)
    same = formats[0] == formats[1] and all(
        tensor.is_contiguous(memory_format=formats[0]) for tensor in (images, gradient)
    )
    return ((0, images.nbytes),) if of_input and same else ()
