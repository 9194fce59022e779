"""Memory that oneDNN uses for one layer and direction of an LSTM, as ATen/native/mkldnn/RNN.cpp calls it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from estimators.tracing.workspace import onednn
from estimators.tracing.workspace.amounts import NOTHING, Workspace
from estimators.tracing.workspace.products import packed_bytes

_NUM_GATES = 4
_FP32_BYTES = 4


def kept_bytes(sequence: Tensor, num_hidden: int) -> int:
    """Bytes that the forward pass returns for the backward pass: oneDNN's workspace. 0 if oneDNN cannot be asked.

    ``sequence`` has the shape (steps, batch, inputs).
    """
    if not _is_known(sequence):
        return 0
    steps, batch, inputs = sequence.shape
    return onednn.lstm("forward", steps, batch, inputs, num_hidden, sequence.dtype).kept_bytes


def forward(args: tuple[Any, ...]) -> Workspace:
    """Workspace of ``aten.mkldnn_rnn_layer``: taken when the outputs exist, so that it belongs to the last of them."""
    sequence, num_hidden = args[0], args[10]
    if not _is_known(sequence):
        return ()
    steps, batch, inputs = sequence.shape
    layer = onednn.lstm("forward", steps, batch, inputs, num_hidden, sequence.dtype)
    gates = _NUM_GATES * num_hidden
    packed = 0
    if layer.is_product:
        packed = max(
            packed_bytes(gates, steps * batch, inputs, "NN"),  # of the inputs of all steps
            packed_bytes(gates, batch, num_hidden, "NN"),  # of the states, step by step
        )
    taken = gates * sequence.itemsize + layer.copied_bytes + layer.scratch_bytes + packed  # the first: the biases' sum
    return NOTHING, NOTHING, NOTHING, (0, taken)


def backward(args: tuple[Any, ...]) -> Workspace:
    """Workspace of ``aten.mkldnn_rnn_layer_backward``, which has seven outputs and makes them first.

    It fills in zeros for the gradient of a result that the model has not used, and copies one that is not contiguous.
    """
    sequence, num_hidden, results, gradients = args[0], args[15], args[7:10], args[10:13]
    if not _is_known(sequence):
        return ()
    steps, batch, inputs = sequence.shape
    layer = onednn.lstm("backward", steps, batch, inputs, num_hidden, sequence.dtype)
    gates = _NUM_GATES * num_hidden
    packed = 0
    if layer.is_product:
        packed = max(
            packed_bytes(inputs, steps * batch, gates, "NN"),
            packed_bytes(gates, inputs, steps * batch, "NT"),
            packed_bytes(gates, num_hidden, steps * batch, "NT"),
        )
    widened = _FP32_BYTES * (steps + 2) * batch * num_hidden if sequence.dtype != torch.float32 else 0
    made = sum(
        tensor.nbytes
        for tensor, gradient in zip(results, gradients, strict=True)
        if gradient is None or not gradient.is_contiguous()
    )
    taken = gates * _FP32_BYTES + layer.copied_bytes + layer.scratch_bytes + packed + widened + made
    return *(NOTHING,) * 6, (0, taken)


def _is_known(sequence: Tensor) -> bool:
    return onednn.is_available() and sequence.numel() > 0
