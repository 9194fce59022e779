"""Memory that oneDNN uses for one layer and direction of an LSTM, as ATen/native/mkldnn/RNN.cpp calls it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import register_op_impl

from estimators.tracing.device.cpu import onednn
from estimators.tracing.device.cpu.products import packed_bytes
from estimators.tracing.device.device import NOTHING, Workspace

FORWARD, BACKWARD = torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default
_NUM_GATES = 4
_FP32_BYTES = 4


@register_op_impl(FORWARD)
def _fake_layer(mode: Any, operation: Any, source: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """One layer of an LSTM; torch's fake kernel forgets the memory that it keeps for the backward pass.

    It keeps none where gradients are off. The cached outcome has to suit both, so it is counted there too.
    """
    hx, cx, num_hidden = args[4], args[5], args[9]
    with torch._C._DisableTorchDispatch():
        num_bytes = kept_bytes(source, num_hidden)
    workspace = source.new_empty(num_bytes, dtype=torch.uint8)
    return source.new_empty((*source.shape[:2], num_hidden)), hx.new_empty(hx.shape), cx.new_empty(cx.shape), workspace


def kept_bytes(sequence: Tensor, num_hidden: int) -> int:
    """Bytes that the forward pass returns for the backward pass: oneDNN's workspace.

    ``sequence`` has the shape (steps, batch, inputs). If oneDNN cannot be asked, it is a rule: of eleven layers in
    fp32, seven got 5 to 32 % too much, one 88 %, and three small ones up to 28 KiB too little; in 16 bits, up to 127 %
    too much.
    """
    if not sequence.numel():
        return 0
    steps, batch, inputs = sequence.shape
    if not onednn.is_available():
        return _FP32_BYTES * (steps + 1) * batch * (_NUM_GATES * num_hidden + 12 * max(inputs, num_hidden))
    return onednn.lstm("forward", steps, batch, inputs, num_hidden, sequence.dtype).kept_bytes


def forward(args: tuple[Any, ...]) -> Workspace:
    """Workspace of ``aten.mkldnn_rnn_layer``: taken when the outputs exist, so that it belongs to the last of them."""
    sequence, num_hidden = args[0], args[10]
    if not sequence.numel():
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
    if not sequence.numel():
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
