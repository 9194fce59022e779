"""Memory that an operation uses internally while it makes its outputs. No tensor shows it, and it is freed afterwards.

Known are operations on a CPU, in a process with one thread. oneDNN computes most convolutions and LSTMs, often on
copies in a format of its own; it is asked which (``formats``, ``recurrent``). Torch computes other convolutions itself
(``columns``). Some of its operations on images take memory too (``images``); others copy inputs (``copies``), also to
give them the type of the result (``promotion``), or make other tensors on the way (``temporaries``). Attention works on
blocks (``attention``), and products of matrices take memory if they are in 16 bits (``matrices``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from estimators.tracing.workspace import attention, blocked, columns, formats, images, onednn, promotion, recurrent
from estimators.tracing.workspace.amounts import Workspace
from estimators.tracing.workspace.convolution import Convolution, convolution_of, on_meta
from estimators.tracing.workspace.copies import COPYING, copies
from estimators.tracing.workspace.matrices import PRODUCTS, product
from estimators.tracing.workspace.temporaries import TEMPORARIES, temporaries

__all__ = ["Workspace", "workspace_of"]


class _Rules(Protocol):
    """A module with rules for convolutions."""

    def forward(self, convolution: Convolution) -> Workspace: ...

    def backward(self, convolution: Convolution, of_input: bool, of_weight: bool) -> Workspace: ...


_FORWARD, _BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
_LSTM, _LSTM_BACKWARD = torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default
_KNOWN = (
    {_FORWARD, _BACKWARD, _LSTM, _LSTM_BACKWARD, images.BATCH_NORM_BACKWARD, attention.FORWARD, attention.BACKWARD}
    | images.UPSAMPLING
    | COPYING
    | PRODUCTS
    | promotion.PROMOTING
    | TEMPORARIES.keys()
)


def workspace_of(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Workspace:
    """The workspace of one operation that returned ``out``; empty if nothing is known about it."""
    if operation not in _KNOWN:
        return ()
    with torch._C._DisableTorchDispatch():
        if operation in PRODUCTS:
            return product(args)
        if operation in promotion.PROMOTING:
            return promotion.promoted(operation, args)
        num_outputs = len(out) if isinstance(out, tuple) else 1
        if operation in COPYING:
            return copies(operation, args, kwargs, num_outputs)
        if operation in TEMPORARIES:
            return temporaries(operation, args, num_outputs)
        if operation is attention.FORWARD:
            return attention.forward(args)
        if operation is attention.BACKWARD:
            return attention.backward(args)
        if operation in images.UPSAMPLING:
            return images.upsampling(operation, on_meta(args[0]), on_meta(out))
        if operation is images.BATCH_NORM_BACKWARD:
            return images.batch_norm_backward(on_meta(args[0]), on_meta(args[1]), args[9][0])
        if operation is _LSTM:
            return recurrent.forward(args)
        if operation is _LSTM_BACKWARD:
            return recurrent.backward(args)
        convolution = convolution_of(operation, args, out)
        is_needed = (bool(args[10][0]), bool(args[10][1])) if operation is _BACKWARD else None
        return _of_convolution(convolution, is_needed)


def _of_convolution(convolution: Convolution, is_needed: tuple[bool, bool] | None) -> Workspace:
    """The workspace of the forward pass, or of the gradients of input and weight that ``is_needed`` says."""
    if not convolution.output.numel() or not convolution.images.numel():
        return ()
    rules = _rules_of(convolution)
    if rules is None:
        return ()
    try:
        workspace = rules.forward(convolution) if is_needed is None else rules.backward(convolution, *is_needed)
    except onednn.NoKernel:
        return ()  # the real operation fails too
    copied = convolution.num_copied
    return tuple((before + copied, during + copied) for before, during in workspace)


def _rules_of(convolution: Convolution) -> _Rules | None:
    if convolution.is_torchs:
        return columns
    if onednn.is_available():
        return formats
    return blocked if convolution.images.dtype == torch.float32 else None
