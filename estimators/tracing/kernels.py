"""Shapes of operations whose results torch's own fake kernels do not know, or get wrong, on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import meta_table
from torch._prims_common import suggest_memory_format
from torch._refs import native_layer_norm
from torch._subclasses.fake_impls import op_implementations_dict, register_op_impl

_aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_GROUPED_ALIGNMENT = 16  # bytes
PRODUCTS = (_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default)


def _instead_of_decompositions(*operations: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a kernel that fake tensors prefer to torch's decompositions of ``operations``."""

    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        meta_table.update(dict.fromkeys(operations, kernel))  # an operation in this table is not decomposed
        op_implementations_dict.update(dict.fromkeys(operations, kernel))  # layer norm has one of torch already
        return kernel

    return register


@register_op_impl(_aten._grouped_mm.default)
def _grouped_mm(
    mode: Any, operation: Any, source: Tensor, weight: Tensor, offs: Tensor | None = None, *_: Any, **kwargs: Any
) -> Tensor:
    """Products of groups of rows or columns; a CPU also computes them in fp32, which torch's fake kernel refuses.

    Raises ``RuntimeError`` for strides that the real operation refuses.
    """
    for factor in (source, weight):
        strides, sizes = factor.stride()[-2:], factor.shape[-2:]
        outer = next((n for n in (1, 0) if strides[1 - n] == 1 and strides[n] >= max(1, sizes[1 - n])), None)
        if outer is None:
            raise RuntimeError(f"Invalid strides/sizes, got {factor.stride()} for strides and {factor.shape} for sizes")
        if strides[outer] * factor.itemsize % _GROUPED_ALIGNMENT:
            raise RuntimeError("strides should be multiple of 16 bytes")
    dtype = kwargs.get("out_dtype") or source.dtype
    if source.ndim == 2 and weight.ndim == 2:
        assert offs is not None, "two matrices need the ends of their groups"
        shape: tuple[int, ...] = (offs.shape[0], source.shape[0], weight.shape[1])
    elif source.ndim == 3 and weight.ndim == 3:
        shape = (source.shape[0], source.shape[1], weight.shape[2])
    else:
        shape = (source.shape[-2], weight.shape[-1])
    return source.new_empty(shape, dtype=dtype)


@register_op_impl([_aten._ctc_loss.Tensor, _aten._ctc_loss.default])
def _ctc_loss(mode: Any, operation: Any, log_probs: Tensor, targets: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
    """The losses, and a table with two places for each label of the longest target, which torch reads off the lengths.

    At most, the longest target is as long as the targets' rows.
    """
    num_steps, num_samples = log_probs.shape[0], log_probs.shape[1] if log_probs.ndim == 3 else 1
    longest = max(more[1]) if isinstance(more[1], list | tuple) else targets.shape[-1]
    losses = log_probs.new_empty(num_samples)
    return losses, log_probs.new_empty((num_samples, num_steps, 2 * longest + 1))


@register_op_impl(_aten._embedding_bag_backward.default)
def _embedding_bag_backward(
    mode: Any, operation: Any, gradient: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, *more: Any
) -> Any:
    """A sparse gradient with a row for each index; torch's fake kernel has none where a forward pass has not made the
    bag of each index, as that of a sum."""
    is_sparse = more[5]
    if not is_sparse or bags.numel() == indices.numel():
        return NotImplemented
    return operation(gradient, indices, offsets, torch.empty_like(indices), *more)


@_instead_of_decompositions(*PRODUCTS, _aten._sparse_addmm.default)
def _product(mode: Any, operation: Any, *factors: Any, **kwargs: Any) -> Any:
    """Refuses matrices of different types, as the real products do and torch's fake kernels do not.

    Sparse matrices are refused, too: torch sorts them, which takes memory that nobody predicts.
    """
    first, second = factors[-2:]
    if torch.sparse_coo in (first.layout, second.layout):
        raise NotImplementedError("a product with a sparse matrix")
    if first.dtype != second.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {first.dtype} != {second.dtype}")
    return NotImplemented


@_instead_of_decompositions(_aten.native_layer_norm_backward.default)
def _layer_norm_backward(mode: Any, operation: Any, gradient: Tensor, source: Tensor, *more: Any) -> Any:
    """Gradients are contiguous on a CPU; torch's fake kernel gives that of the input the input's strides."""
    if source.device.type != "cpu":
        return NotImplemented
    weight, bias, is_needed = more[3:6]
    tensors = (source, weight, bias)
    return tuple(
        gradient_there.new_empty(gradient_there.shape) if is_wanted and gradient_there is not None else None
        for gradient_there, is_wanted in zip(tensors, is_needed, strict=True)
    )


@_instead_of_decompositions(_aten.native_layer_norm.default)
def _layer_norm(mode: Any, operation: Any, source: Tensor, shape: list[int], *more: Any) -> Any:
    """The output is contiguous on a CPU. Of a single image torch's fake kernel keeps the stride of the first dimension,
    and then takes later images with channels last for contiguous ones."""
    if source.device.type != "cpu":
        return native_layer_norm(source, shape, *more)
    outer_shape = source.shape[: source.ndim - len(shape)]
    weight = more[0]
    dtype = weight.dtype if weight is not None and source.dtype in _HALVES else source.dtype
    mean, scale = (source.new_empty((*outer_shape, *[1] * len(shape)), dtype=dtype) for _ in range(2))
    return source.new_empty(source.shape), mean, scale


@_instead_of_decompositions(_aten.native_group_norm.default)
def _group_norm(
    mode: Any, operation: Any, source: Tensor, weight: Tensor | None, bias: Tensor | None, num: int, *more: Any
) -> Any:
    """The output has the memory format of the input on a CPU (ATen/native/group_norm.cpp)."""
    if source.device.type != "cpu":
        return NotImplemented
    dtype = weight.dtype if weight is not None and source.dtype in _HALVES else source.dtype
    mean, scale = (source.new_empty((num, more[2]), dtype=dtype) for _ in range(2))
    return _like(source), mean, scale


@_instead_of_decompositions(_aten.native_group_norm_backward.default)
def _group_norm_backward(mode: Any, operation: Any, gradient: Tensor, source: Tensor, *more: Any) -> Any:
    """The gradient of the input has the input's memory format on a CPU."""
    if source.device.type != "cpu":
        return NotImplemented
    weight, is_needed = more[2], more[7]
    return _gradients_of_norm(source, weight if weight is not None else gradient, is_needed)


@_instead_of_decompositions(_aten.native_batch_norm.default)
def _batch_norm(mode: Any, operation: Any, source: Tensor, *more: Any) -> Any:
    """The output has the memory format of the input on a CPU, and is contiguous if the input is that, too, as an image
    of one pixel is (``suggest_memory_format_contig`` in ATen/native/Normalization.cpp)."""
    if source.device.type != "cpu":
        return NotImplemented
    parameter = next((tensor for tensor in more[:4] if tensor is not None), source)
    dtype = parameter.dtype if source.dtype in _HALVES else source.dtype
    mean, scale = (source.new_empty(source.shape[1] if more[4] else 0, dtype=dtype) for _ in range(2))
    return _like(source, contiguous=source.is_contiguous()), mean, scale


@_instead_of_decompositions(_aten.native_batch_norm_backward.default)
def _batch_norm_backward(mode: Any, operation: Any, gradient: Tensor, source: Tensor, *more: Any) -> Any:
    """The gradient of the input is contiguous if the input is, and torch suggests one format for both gradients."""
    if source.device.type != "cpu":
        return NotImplemented
    weight, is_needed = more[0], more[7]
    memory_format = suggest_memory_format(source)
    is_same = suggest_memory_format(gradient) == memory_format and gradient.is_contiguous(memory_format=memory_format)
    parameter = weight if weight is not None else source
    return _gradients_of_norm(source, parameter, is_needed, contiguous=source.is_contiguous() and is_same)


def _gradients_of_norm(
    source: Tensor, parameter: Tensor, is_needed: Sequence[bool], *, contiguous: bool = False
) -> tuple[Tensor | None, ...]:
    """Gradients of the input, and of the weight and the bias in the type of ``parameter``, as far as asked for."""
    parameters = [parameter.new_empty(source.shape[1]) if is_wanted else None for is_wanted in is_needed[1:]]
    return (_like(source, contiguous=contiguous) if is_needed[0] else None), *parameters


@_instead_of_decompositions(_aten.reflection_pad2d_backward.default, _aten.replication_pad2d_backward.default)
def _padding_backward(mode: Any, operation: Any, gradient: Tensor, source: Tensor, padding: Any) -> Tensor:
    """The gradient has the input's memory format; torch's fake kernel makes a contiguous one."""
    return _like(source)


@_instead_of_decompositions(_aten.glu_backward.default, _aten._log_softmax_backward_data.default)
def _contiguous_backward(mode: Any, operation: Any, gradient: Tensor, like: Tensor, *more: Any) -> Any:
    """The gradient is contiguous on a CPU, with the shape of ``like``: the input or the output."""
    if like.device.type != "cpu":
        return NotImplemented
    dtype = more[1] if operation is _aten._log_softmax_backward_data.default else like.dtype
    return like.new_empty(like.shape, dtype=dtype)


@_instead_of_decompositions(
    _aten.hardswish_backward.default,
    _aten.hardtanh_backward.default,
    _aten.hardsigmoid_backward.default,
    _aten.softplus_backward.default,
    _aten.elu_backward.default,
)
def _activation_backward(mode: Any, operation: Any, gradient: Tensor, *more: Any) -> Tensor:
    """Strides as of a product: the output's gradient comes first. torch's fake kernel takes the input's."""
    source = more[-1] if operation is _aten.elu_backward.default else more[0]
    result: Tensor = gradient * source
    return result


def _like(source: Tensor, *, contiguous: bool = False) -> Tensor:
    """A tensor of the same shape, ``contiguous`` or in the memory format that torch suggests for ``source``."""
    memory_format = torch.contiguous_format if contiguous else suggest_memory_format(source)
    return torch.empty_like(source, memory_format=memory_format)
