"""A CPU, as virtual devices have it: memory that its kernels use while they make their outputs. No tensor shows it.

Known are operations in a process with one thread. oneDNN computes most convolutions and LSTMs, often on copies in a
format of its own; it is asked which (``formats``, ``recurrent``). Torch computes other convolutions itself
(``columns``). Products of matrices take memory if they are in 16 bits (``matrices``), gradients of batch norm if both
images have one format (``batch_norm``), and losses before they are reduced (``losses``); gradients that ranks divide
are copied (``copies``). Operations whose memory decided no peak are left out (docs/decisions/0026).

Only ``estimators.tracing.device`` imports this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from estimators.tracing.device.cpu import batch_norm, columns, formats, recurrent
from estimators.tracing.device.cpu.convolution import Convolution, convolution_of, on_meta
from estimators.tracing.device.cpu.copies import COPYING, copies
from estimators.tracing.device.cpu.losses import LOSSES, loss
from estimators.tracing.device.cpu.matrices import PRODUCTS, product
from estimators.tracing.device.cpu.onednn import NoKernel
from estimators.tracing.device.cpu.onednn import is_available as can_ask_onednn
from estimators.tracing.device.device import Workspace

__all__ = ["CPU", "can_ask_onednn"]

_FORWARD, _BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
_KNOWN = frozenset(
    [_FORWARD, _BACKWARD, recurrent.FORWARD, recurrent.BACKWARD, batch_norm.BACKWARD, *COPYING, *LOSSES, *PRODUCTS]
)


class Cpu:
    """The CPU of this process, with an oneDNN that can be asked."""

    holds_objects = True
    unknown_percent = 0

    def code_paths(self) -> AbstractContextManager[None]:
        """The code paths that torch takes without a change."""
        return nullcontext()

    def workspace(self, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Workspace:
        """The workspace of one operation that returned ``out``; empty if nothing is known about it."""
        if operation not in _KNOWN:
            return ()
        with torch._C._DisableTorchDispatch():
            if operation in PRODUCTS:
                return product(args)
            if operation in COPYING:
                return copies(operation, args)
            if operation in LOSSES:
                return loss(operation, args)
            if operation is batch_norm.BACKWARD:
                return batch_norm.backward(on_meta(args[0]), on_meta(args[1]), args[9][0])
            if operation is recurrent.FORWARD:
                return recurrent.forward(args)
            if operation is recurrent.BACKWARD:
                return recurrent.backward(args)
            convolution = convolution_of(operation, args, out)
            is_needed = (bool(args[10][0]), bool(args[10][1])) if operation is _BACKWARD else None
            return _of_convolution(convolution, is_needed)


CPU = Cpu()


def _of_convolution(convolution: Convolution, is_needed: tuple[bool, bool] | None) -> Workspace:
    """The workspace of the forward pass, or of the gradients of input and weight that ``is_needed`` says."""
    if not convolution.output.numel() or not convolution.images.numel():
        return ()
    rules = columns if convolution.is_torchs else formats
    try:
        workspace = rules.forward(convolution) if is_needed is None else rules.backward(convolution, *is_needed)
    except NoKernel:
        return ()  # the real operation fails too
    copied = convolution.num_copied
    return tuple((before + copied, during + copied) for before, during in workspace)
