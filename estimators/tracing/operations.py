"""The cost of a torch operation: its kind (``estimators.work``), FLOPs and bytes, from its arguments and result; and
what a collective moves, over which process group."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from estimators.work import Operation

_aten = torch.ops.aten
_IDLE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "_reshape_alias",
         "lift_fresh", "record_stream", "resize_", "set_", "_local_scalar_dense"}  # fmt: skip
_KINDS = {
    "matmul": {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"},
    "lookup": {"gather", "scatter", "scatter_add", "masked_fill", "where", "take"},
    "function": {"gelu", "exp", "exp_", "log", "log_", "erf", "tanh", "sigmoid", "silu", "rsqrt", "pow", "sin", "cos"},
    "copy": {"clone", "copy_", "_to_copy", "cat", "stack", "roll", "contiguous", "split_with_sizes_copy", "_chunk_cat"},
}
_PARTS = {
    "convolution": ("convolution",),
    "attention": ("scaled_dot_product",),
    "normalisation": ("_norm",),
    "lookup": ("embedding", "index", "nll_loss"),
    "function": ("softmax", "gelu_", "silu_", "tanh_", "sigmoid_", "logsumexp", "bernoulli", "dropout"),
    "copy": ("_foreach_copy", "all_gather_copy_in", "chunk_cat"),
}
_Known = dict[str, tuple[str, int | None]]  # operation → kind of collective, and place of the argument that is whole
_FILLS: _Known = {
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "reduce_": ("broadcast", 0),  # as long as a broadcast, in the other direction
    "broadcast_": ("broadcast", 0),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("message", 0),  # the other end is not counted again
}
_RETURNS: _Known = {  # functional collectives; None: the result is the whole tensor
    "all_gather_into_tensor": ("new_all_gather", None),
    "all_gather_into_tensor_coalesced": ("new_all_gather", None),
    "reduce_scatter_tensor": ("new_reduce_scatter", 0),
    "reduce_scatter_tensor_coalesced": ("new_reduce_scatter", 0),
    "all_reduce": ("new_all_reduce", 0),
    "all_reduce_coalesced": ("new_all_reduce", 0),
    "all_reduce_": ("all_reduce", 0),
    "all_reduce_coalesced_": ("all_reduce", 0),
    "all_to_all_single": ("all_to_all", 0),
    "shard_dim_alltoall": ("all_to_all", 0),
    "broadcast": ("broadcast", 0),
    "broadcast_": ("broadcast", 0),
}
_OF_NAMESPACE = {"c10d": _FILLS, "_c10d_functional": _RETURNS, "_dtensor": _RETURNS}


@cache
def op_kind_of(operation: Any) -> str | None:
    """One of ``OP_KINDS``; None for collectives (``collective_of``) and for operations that move no data: views, and
    memory that is only allocated."""
    name = operation._overloadpacket.__name__
    if operation.is_view or name in _IDLE or operation.namespace == "prim" or operation.namespace in _OF_NAMESPACE:
        return None
    for kind, names in _KINDS.items():
        if name in names:
            return kind
    for kind, parts in _PARTS.items():
        if any(part in name for part in parts):
            return kind
    return "other"


def operation_of(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, kind: str) -> Operation:
    """The work of one operation of this kind, tensor by tensor."""
    inputs, outputs = _tensors((args, kwargs)), _tensors(out)
    storages = {tensor.untyped_storage()._cdata for tensor in inputs} if outputs else set()
    sizes = tuple(tensor.numel() * tensor.itemsize for tensor in inputs + outputs)
    new = tuple(t.numel() * t.itemsize for t in outputs if t.untyped_storage()._cdata not in storages)
    flops = flops_of(operation, args, kwargs, out)
    return Operation(kind, flops, bool(inputs) and inputs[-1].itemsize <= 2, sizes, new)


def collective_of(operation: Any, args: tuple[Any, ...], out: Any) -> tuple[str, str, int] | None:
    """(kind of ``COLLECTIVES``, name of the process group, bytes of the whole tensor); None for other operations."""
    collective = _collective(operation)
    if collective is None:
        return None
    kind, place = collective
    if kind == "all_reduce" and operation.namespace == "c10d" and not any(arg is False for arg in args):
        kind = "queued_all_reduce"  # by default such an operation is asynchronous
    tensors = _tensors(out if place is None else args[place])
    group = next(arg for arg in reversed(args) if isinstance(arg, str) or _is_group(arg))
    name = group if isinstance(group, str) else dist.ProcessGroup.unbox(group).group_name
    return kind, name, sum(tensor.numel() * tensor.itemsize for tensor in tensors)


@cache
def _collective(operation: Any) -> tuple[str, int | None] | None:
    names = _OF_NAMESPACE.get(operation.namespace)
    return names.get(operation._overloadpacket.__name__) if names is not None else None


def _is_group(arg: Any) -> bool:
    return isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type())


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout == torch.strided]


def flops_of(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """FLOPs of matrix products, convolutions and attention, as ``torch.utils.flop_counter`` counts them; else 0."""
    # The counter's registry knows CUDA's attention kernels only.
    if operation is _aten._scaled_dot_product_flash_attention_for_cpu.default:
        return float(sdpa_flop_count(*_shapes(args)[:3]))  # type: ignore[no-untyped-call]
    if operation is _aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
        return float(sdpa_backward_flop_count(*_shapes(args)[:4]))  # type: ignore[no-untyped-call]
    formula = flop_registry.get(operation._overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0


def _shapes(args: tuple[Any, ...]) -> list[torch.Size]:
    return [arg.shape for arg in args if isinstance(arg, Tensor)]
