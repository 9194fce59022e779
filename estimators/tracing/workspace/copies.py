"""Copies that torch's own operations make of their inputs on a CPU: contiguous ones, padded ones, or ones in fp32.

Found by running each operation with inputs of both orders of dimensions (torch 2.13, one thread).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed.fsdp  # registers fsdp::chunk_cat
from torch import Tensor

from estimators.tracing.workspace.amounts import Workspace

_ATEN = torch.ops.aten
_NORM, _NORM_BACKWARD = _ATEN.native_layer_norm.default, _ATEN.native_layer_norm_backward.default
_GELU_BACKWARD, _MEAN, _MEAN_OF_ALL = _ATEN.gelu_backward.default, _ATEN.mean.dim, _ATEN.mean.default
_REDUCE_SCATTER = torch.ops._c10d_functional.reduce_scatter_tensor.default
_CHUNK_CATS = frozenset([_ATEN._chunk_cat.default, torch.ops.fsdp.chunk_cat.default])

# The positions of the arguments that each operation copies unless they are contiguous.
_CONTIGUOUS: Mapping[Any, Sequence[int]] = {
    _NORM: (0,),
    _NORM_BACKWARD: (0, 1),
    _ATEN._softmax.default: (0,),
    _ATEN._log_softmax.default: (0,),
    _ATEN._softmax_backward_data.default: (0, 1),
    _ATEN._log_softmax_backward_data.default: (0, 1),
    _ATEN.embedding_dense_backward.default: (0,),
    _ATEN.reflection_pad1d.default: (0,),
    _ATEN.replication_pad1d.default: (0,),
    _ATEN.nll_loss2d_forward.default: (0,),
}
COPYING = frozenset([*_CONTIGUOUS, _GELU_BACKWARD, _MEAN, _MEAN_OF_ALL, _REDUCE_SCATTER, *_CHUNK_CATS])


def copies(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], num_outputs: int) -> Workspace:
    """Workspace of an operation that copies inputs and holds the copies until it has made all outputs."""
    if operation is _GELU_BACKWARD:
        num_bytes = _of_gelu(args[0], args[1], kwargs)
    elif operation in _CHUNK_CATS:
        num_bytes = _of_chunks(args[0], args[2])
    elif operation is _REDUCE_SCATTER:
        num_bytes = args[0].nbytes  # ranks add up a copy (workloads.parallel.exchanging.gloo)
    elif operation in (_MEAN, _MEAN_OF_ALL):
        num_bytes = args[0].numel() * 4 if args[0].dtype in (torch.bfloat16, torch.float16) else 0  # a sum in fp32
    else:
        sources = [args[place] for place in _CONTIGUOUS[operation]]
        num_bytes = sum(source.nbytes for source in sources if not source.is_contiguous())
    return ((0, num_bytes),) * num_outputs if num_bytes else ()


def _of_gelu(gradient: Tensor, activations: Tensor, kwargs: Mapping[str, Any]) -> int:
    """oneDNN computes the gradient of exact GELU in fp32 if its input is contiguous, and converts another gradient."""
    is_onednns = (
        activations.dtype == torch.float32
        and activations.is_contiguous()
        and kwargs.get("approximate", "none") == "none"
    )
    return 2 * activations.nbytes if is_onednns and not gradient.is_contiguous() else 0


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
