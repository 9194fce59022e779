"""Memory that the gradients of batch norm use internally on a CPU (torch 2.13, one thread)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from estimators.tracing.device.device import Workspace

BACKWARD = torch.ops.aten.native_batch_norm_backward.default


def backward(gradient: Tensor, images: Tensor, of_input: bool) -> Workspace:
    """Workspace of the gradients: the input's is allocated twice if both images have the same format.

    See ``batch_norm_backward_cpu_template`` in ATen/native/Normalization.cpp: ``all_contiguous``.
    """
    formats = suggest_memory_format(images), suggest_memory_format(gradient)
    same = formats[0] == formats[1] and all(
        tensor.is_contiguous(memory_format=formats[0]) for tensor in (images, gradient)
    )
    return ((0, images.nbytes),) if of_input and same else ()
