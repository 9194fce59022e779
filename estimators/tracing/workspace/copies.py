"""Copies that torch's own operations make of their inputs on a CPU: contiguous ones, or ones in fp32.

Found by running each operation with inputs of both orders of dimensions (torch 2.13, one thread).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from estimators.tracing.workspace.amounts import Workspace

_ATEN = torch.ops.aten
_NORM, _NORM_BACKWARD = _ATEN.native_layer_norm.default, _ATEN.native_layer_norm_backward.default
_GELU_BACKWARD, _MEAN, _MEAN_OF_ALL = _ATEN.gelu_backward.default, _ATEN.mean.dim, _ATEN.mean.default

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
COPYING = frozenset([*_CONTIGUOUS, _GELU_BACKWARD, _MEAN, _MEAN_OF_ALL])


def copies(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], num_outputs: int) -> Workspace:
    """Workspace of an operation that copies inputs and holds the copies until it has made all outputs."""
    if operation is _GELU_BACKWARD:
        num_bytes = _of_gelu(args[0], args[1], kwargs)
    elif operation in (_MEAN, _MEAN_OF_ALL):
        num_bytes = args[0].numel() * 4 if args[0].dtype in (torch.bfloat16, torch.float16) else 0  # a sum in fp32
    else:
        given = [args[place] for place in _CONTIGUOUS[operation]]
        num_bytes = sum(one.nbytes for one in given if not one.is_contiguous())
    return ((0, num_bytes),) * num_outputs if num_bytes else ()


def _of_gelu(gradient: Tensor, given: Tensor, kwargs: Mapping[str, Any]) -> int:
    """oneDNN computes the gradient of exact GELU in fp32 if its input is contiguous, and converts another gradient."""
    is_onednns = given.dtype == torch.float32 and given.is_contiguous() and kwargs.get("approximate", "none") == "none"
    return 2 * given.nbytes if is_onednns and not gradient.is_contiguous() else 0
