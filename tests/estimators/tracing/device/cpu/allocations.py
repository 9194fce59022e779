"""Runs operations under the heap counter: prints what each allocates at its peak, and what is predicted, as JSON.

A process of its own, because the counter has to be loaded when it starts (``benchmarks.estimating.measuring.heap``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.estimating.measuring import heap
from estimators.tracing import kernels  # noqa: F401  (registers them)
from estimators.tracing.device import CPU

Call = tuple[str, Any, tuple[Any, ...]]
_ATEN = torch.ops.aten
_BF16 = torch.bfloat16


def convolution(
    batch: int,
    num_inputs: int,
    num_outputs: int,
    side: int,
    kernel: int,
    *,
    dimensions: int = 2,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    last: bool = False,
    transposed: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Call]:
    """A convolution with half a kernel of padding and its gradients; ``last``: channels last."""
    padding = (kernel - 1) // 2 * dilation
    first, second = (num_inputs, num_outputs // groups) if transposed else (num_outputs, num_inputs // groups)
    image = torch.randn(batch, num_inputs, *[side] * dimensions).to(dtype)
    weight = torch.randn(first, second, *[kernel] * dimensions).to(dtype)
    if last:
        memory_format = torch.channels_last if dimensions == 2 else torch.channels_last_3d
        image, weight = (tensor.to(memory_format=memory_format) for tensor in (image, weight))
    every = [[number] * dimensions for number in (stride, padding, dilation)]
    options = (*every, transposed, [0] * dimensions, groups)
    forward = (image, weight, torch.randn(num_outputs).to(dtype), *options)
    yield "forward", _ATEN.convolution.default, forward
    gradient = torch.randn_like(_ATEN.convolution.default(*forward))
    for name, mask in {"weight": [False, True, True], "both": [True, True, True]}.items():
        yield name, _ATEN.convolution_backward.default, (gradient, image, weight, [num_outputs], *options, mask)


def turned(calls: Iterator[Call]) -> Iterator[Call]:
    """Convolutions of lines whose channels are the last dimension in memory."""
    for name, operation, args in calls:
        place = 0 if name == "forward" else 1
        line = args[place].transpose(1, 2).contiguous().transpose(1, 2)
        yield name, operation, (*args[:place], line, *args[place + 1 :])


def lstm(steps: int, batch: int, inputs: int, hidden: int, dtype: torch.dtype = torch.float32) -> Iterator[Call]:
    """One layer of an LSTM and its gradients."""
    source, state = torch.randn(steps, batch, inputs).to(dtype), torch.zeros(1, batch, hidden).to(dtype)
    shapes = [(4 * hidden, inputs), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    weights = [torch.randn(shape).to(dtype) for shape in shapes]
    forward = (source, *weights, state, state, False, [], 2, hidden, 1, True, False, False, True)
    yield "forward", _ATEN.mkldnn_rnn_layer.default, forward
    *outputs, kept = _ATEN.mkldnn_rnn_layer.default(*forward)
    gradients = [torch.randn_like(tensor) for tensor in outputs]
    tensors = (source, *weights, state, state, *outputs, *gradients)
    options: tuple[Any, ...] = (False, 2, hidden, 1, True, True, False, [], False, kept)
    yield "backward", _ATEN.mkldnn_rnn_layer_backward.default, (*tensors, *options)
    last_alone = (*tensors[:-3], None, *gradients[1:])
    yield "backward from the last state", _ATEN.mkldnn_rnn_layer_backward.default, (*last_alone, *options)


def batch_norm(*shape: int, last: bool = False) -> Iterator[Call]:
    """Gradients of batch norm."""
    source, ones = torch.randn(shape), torch.ones(shape[1])
    source = source.to(memory_format=torch.channels_last) if last else source
    options = (ones, ones, ones, ones, ones, True, 1e-5, [True, True, True])
    yield "backward", _ATEN.native_batch_norm_backward.default, (torch.randn_like(source), source, *options)


def of_rows(*, transposed: bool = False) -> Iterator[Call]:
    """Operations over the last dimension and their gradients; ``transposed``: it is the second in memory."""
    source, ones = torch.randn(4, 50, 64), torch.ones(64)
    source = torch.randn(4, 64, 50).transpose(1, 2) if transposed else source
    gradient = torch.randn_like(source)
    _, mean, scale = _ATEN.native_layer_norm.default(source, [64], ones, ones, 1e-5)
    likely = _ATEN._softmax.default(source, 2, False)
    options = (source, [64], mean, scale, ones, ones, [True, True, True])
    yield "layer norm", _ATEN.native_layer_norm.default, (source, [64], ones, ones, 1e-5)
    yield "layer norm backward", _ATEN.native_layer_norm_backward.default, (gradient, *options)
    yield "softmax", _ATEN._softmax.default, (source, 2, False)
    yield "softmax backward", _ATEN._softmax_backward_data.default, (gradient, likely, 2, torch.float32)
    yield "GELU backward", _ATEN.gelu_backward.default, (gradient, source.contiguous())
    yield "hard swish backward", _ATEN.hardswish_backward.default, (gradient, source.contiguous())


def losses() -> Iterator[Call]:
    """Losses, reduced and not."""
    source, target = torch.rand(4, 50, 64), torch.rand(4, 50, 64)
    for reduction in (0, 1):
        for loss in (_ATEN.mse_loss, _ATEN.smooth_l1_loss, _ATEN.huber_loss, _ATEN.soft_margin_loss):
            yield f"{loss.__name__} {reduction}", loss.default, (source, target, reduction)
        yield f"entropy {reduction}", _ATEN.binary_cross_entropy.default, (source, target, None, reduction)
        several = (source, target, None, None, reduction)
        yield f"entropy of logits {reduction}", _ATEN.binary_cross_entropy_with_logits.default, several


def products(rows: int, columns: int, depth: int, dtype: torch.dtype = _BF16) -> Iterator[Call]:
    """Products of matrices of which none, the first or the second is transposed, alone and for several samples."""
    for transposed in ("NN", "TN", "NT"):
        shapes = [(rows, depth), (depth, columns)]
        first, second = (
            torch.randn(3, *(shape if letter == "N" else shape[::-1])).to(dtype)
            for shape, letter in zip(shapes, transposed, strict=True)
        )
        first = first if transposed[0] == "N" else first.transpose(1, 2)
        second = second if transposed[1] == "N" else second.transpose(1, 2)
        yield f"mm {transposed}", _ATEN.mm.default, (first[0], second[0])
        yield f"addmm {transposed}", _ATEN.addmm.default, (torch.randn(columns).to(dtype), first[0], second[0])
        yield f"bmm {transposed}", _ATEN.bmm.default, (first, second)
    yield "of one number", _ATEN.mm.default, (torch.ones((), dtype=dtype).expand(rows, depth), second[0])


def of_images(batch: int) -> Iterator[Call]:
    """Operations on images with channels last. Of one image, the stride of the first dimension may be any number."""
    last = torch.randn(batch, 8, 8, 32).permute(0, 3, 1, 2)
    other, ones = torch.randn(batch, 32, 8, 8), torch.ones(32)
    odd = last.as_strided(last.shape, (32 if batch == 1 else 2048, 1, 256, 32))  # as views of one image have
    yield "layer norm", _ATEN.native_layer_norm.default, (odd.permute(0, 2, 3, 1), [32], ones, ones, 1e-5)
    norm = (last, ones, ones, batch, 32, 64, 4, 1e-5)
    yield "group norm", _ATEN.native_group_norm.default, norm
    _, mean, scale = _ATEN.native_group_norm.default(*norm)
    options = (mean, scale, ones, batch, 32, 64, 4, [True, True, True])
    yield "group norm backward", _ATEN.native_group_norm_backward.default, (last.clone(), last, *options)
    sums = (ones, ones, ones, ones, ones, True, 1e-5, [True, True, True])
    for name, gradient, source in (("last", last, other), ("given last", other, last), ("odd", last, odd)):
        yield f"batch norm backward, {name}", _ATEN.native_batch_norm_backward.default, (gradient, source, *sums)
    wide = torch.randn(batch, 10, 10, 32).permute(0, 3, 1, 2)
    for pad in (_ATEN.reflection_pad2d_backward.default, _ATEN.replication_pad2d_backward.default):
        yield f"{pad}", pad, (wide, last, [1, 1, 1, 1])
    half = torch.randn(batch, 8, 8, 16).permute(0, 3, 1, 2)
    yield "GLU backward", _ATEN.glu_backward.default, (half, last, 1)
    yield "log softmax backward", _ATEN._log_softmax_backward_data.default, (last, other, 1, torch.float32)
    yield "hard tanh backward", _ATEN.hardtanh_backward.default, (last, other, 0.0, 6.0)
    yield "hard sigmoid backward", _ATEN.hardsigmoid_backward.default, (last, other)
    yield "softplus backward", _ATEN.softplus_backward.default, (last, other, 1.0, 20.0)
    yield "ELU backward", _ATEN.elu_backward.default, (last, 1.0, 1.0, 1.0, False, other)


def chunks() -> Iterator[Call]:
    """Gradients put together for ranks that divide their rows evenly, unevenly, or not at all."""
    wide, tall = torch.randn(64, 96), torch.randn(5, 33)
    image = torch.randn(70, 16, 3, 3).to(memory_format=torch.channels_last)
    for name, gradients in {
        "even": [wide],
        "uneven": [wide[:63], torch.randn(63), wide],
        "few rows": [tall, wide],
        "transposed": [wide.t().contiguous().t(), tall],
        "transposed, uneven": [wide[:63], torch.randn(50, 70).t()],
        "channels last": [image, torch.randn(9)],
        "in 16 bits": [wide[:63].to(_BF16)],
    }.items():
        yield name, _ATEN._chunk_cat.default, (gradients, 0, 4)


CASES: dict[str, Callable[[], Iterator[Call]]] = {
    "depthwise 7×7": lambda: convolution(1, 96, 96, 28, 7, groups=96),
    "depthwise 3×3": lambda: convolution(2, 144, 144, 28, 3, groups=144, stride=2),
    "depthwise, channels last": lambda: convolution(2, 96, 96, 28, 7, groups=96, last=True),
    "channels last": lambda: convolution(4, 48, 96, 28, 3, last=True),
    "1×1, channels last": lambda: convolution(2, 96, 40, 28, 1, last=True),
    "strides, channels last": lambda: convolution(4, 64, 128, 28, 3, stride=2, last=True),
    "transposed, channels last": lambda: convolution(2, 64, 32, 14, 2, stride=2, last=True, transposed=True),
    "strides": lambda: convolution(4, 64, 128, 28, 3, stride=2),
    "odd channels": lambda: convolution(3, 20, 36, 33, 5),
    "many groups": lambda: convolution(2, 128, 128, 28, 3, groups=32),
    "groups of points": lambda: convolution(3, 64, 96, 28, 1, groups=4),
    "points": lambda: convolution(3, 64, 96, 28, 1),
    "long kernel": lambda: convolution(2, 192, 192, 60, 128, dimensions=1, groups=16),
    "line, transposed": lambda: turned(convolution(2, 64, 96, 700, 10, dimensions=1, stride=5)),
    "line": lambda: convolution(2, 64, 96, 700, 10, dimensions=1, stride=5),
    "one small image": lambda: convolution(1, 64, 64, 16, 3),
    "transposed": lambda: convolution(2, 64, 48, 28, 2, stride=2, transposed=True),
    "dilation": lambda: convolution(2, 64, 64, 28, 3, dilation=2),
    "volumes": lambda: convolution(2, 16, 24, 16, 3, dimensions=3),
    "batch norm": lambda: batch_norm(4, 64, 28, 28),
    "batch norm, channels last": lambda: batch_norm(4, 64, 28, 28, last=True),
    "batch norm of vectors": lambda: batch_norm(256, 512),
    "rows": of_rows,
    "rows, transposed": lambda: of_rows(transposed=True),
    "one image": lambda: of_images(1),
    "two images": lambda: of_images(2),
    "chunks": chunks,
    "losses": losses,
    "products": lambda: products(64, 96, 128, torch.float32),
    "LSTM": lambda: lstm(20, 4, 64, 128),
    "LSTM of odd sizes": lambda: lstm(30, 5, 100, 200),
}
CASES_OF_16_BITS: dict[str, Callable[[], Iterator[Call]]] = {
    "bf16": lambda: convolution(4, 64, 128, 28, 3, dtype=_BF16),
    "bf16, strides": lambda: convolution(4, 64, 96, 28, 3, stride=2, dtype=_BF16),
    "bf16, depthwise": lambda: convolution(2, 96, 96, 28, 7, groups=96, dtype=_BF16),
    "bf16, channels last": lambda: convolution(4, 64, 128, 28, 3, last=True, dtype=_BF16),
    "bf16, products": lambda: products(256, 192, 768),
    "bf16, small products": lambda: products(13, 100, 64),
    "LSTM in bf16": lambda: lstm(20, 4, 64, 128, _BF16),
}


def allocated(operation: Any, args: tuple[Any, ...]) -> int:
    """Bytes that an operation allocates at its peak, its outputs included, when it runs for the second time."""
    operation(*args)
    heap.forget_peak()
    before = heap.held()
    operation(*args)
    return heap.peak() - before


def predicted(operation: Any, args: tuple[Any, ...]) -> tuple[int, list[Any]]:
    """The same, from the workspace and the fake outputs, and the shapes and strides of these."""
    with FakeTensorMode() as fake:
        faked = tree_map_only(Tensor, fake.from_tensor, args)
        out = operation(*faked)
        workspace = CPU.workspace(operation, faked, {}, out)
    held = peak = 0
    tensors = out if isinstance(out, tuple) else (out,)
    for index, tensor in enumerate(tensors):
        before, during = workspace[index] if index < len(workspace) else (0, 0)
        peak = max(peak, held + before)
        held += tensor.untyped_storage().nbytes() if isinstance(tensor, Tensor) else 0
        peak = max(peak, held + during)
    return peak, [described(tensor) for tensor in tensors if isinstance(tensor, Tensor)]


def described(tensor: Tensor) -> list[Any]:
    """Shape, strides and type of a tensor."""
    return [list(tensor.shape), list(tensor.stride()), str(tensor.dtype)]


def main() -> None:
    torch.set_num_threads(1)
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    in_16_bits = CASES_OF_16_BITS if has_avx512 and torch.ops.mkldnn._is_mkldnn_bf16_supported() else {}
    for name, calls in {**CASES, **in_16_bits}.items():
        for kind, operation, args in calls():
            real = [described(tensor) for tensor in tree_leaves(operation(*args)) if isinstance(tensor, Tensor)]
            peak, fake = predicted(operation, args)
            print(json.dumps([f"{name}: {kind}", allocated(operation, args), peak, real, fake]))


if __name__ == "__main__":
    main()
