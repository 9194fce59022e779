"""Says what each operation of torch does with values: it makes them, computes them from others, or draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten

# Comparisons of a tensor with itself (only NaN differs from itself) and with infinity, when there is neither.
_WITH_ITSELF = {_aten.ne.Tensor: False, _aten.eq.Tensor: True}
_WITH_INFINITY = {_aten.ne.Scalar: True, _aten.eq.Scalar: False}
_CHECKS = {_aten.isnan.default: False, _aten.isinf.default: False, _aten.isfinite.default: True}
_REDUCES = {_aten.all, _aten.any, _aten.amax, _aten.amin, _aten.max, _aten.min}
_SUMS = {_aten.sum, _aten.count_nonzero, _aten.cumsum, _aten.mean}  # of zeros are zero
_LIFTS = {_aten.lift_fresh.default, _aten.lift_fresh_copy.default}
_MASKED = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default}

CHOOSES = {
    _aten.topk.default: 2, _aten.argmax.default: 1, _aten.argmin.default: 1, _aten.max.dim: 1, _aten.min.dim: 1,
}  # fmt: skip
"""Operations that return the indices of the largest or smallest elements, with the place of the argument ``dim``."""

Effect = Literal["lift", "view", "write", "make", "compare", "choose", "random", "unknown", "compute"]
"""``lift`` starts from a real tensor, ``make`` from none; ``unknown`` returns memory as it is."""


@cache
def depends_on_values(operation: Any) -> bool:
    """Whether the result, or its shape, can depend on the values of tensors."""
    tags = operation.tags
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


@cache
def takes_masks(operation: Any) -> bool:
    """Whether the second argument is a list of indices, which may be masks."""
    return operation in _MASKED


@cache
def effect_of(operation: Any) -> Effect:
    """The effect of an operation on values."""
    if operation in _LIFTS:
        return "lift"
    if operation.is_view or not isinstance(operation, torch._ops.OpOverload):
        return "view"
    if operation._schema.is_mutable:
        return "write"
    if operation in CHOOSES:
        return "choose"
    name = operation._overloadpacket.__name__
    if name.startswith(("empty", "new_empty")):
        return "unknown"
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return "random"
    if operation in _WITH_ITSELF or operation in _WITH_INFINITY or operation in _CHECKS:
        return "compare"
    takes_tensors = any("Tensor" in str(argument.type) for argument in operation._schema.arguments)
    return "compute" if takes_tensors else "make"


def if_nothing_is_found(operation: Any, args: Sequence[Any]) -> bool | None:
    """The outcome of a comparison that finds NaN or infinity, if it finds none; None for other comparisons."""
    if operation in _CHECKS:
        return _CHECKS[operation]
    first, second = args[:2]
    if operation in _WITH_INFINITY:
        return _WITH_INFINITY[operation] if isinstance(second, float) and math.isinf(second) else None
    return _WITH_ITSELF[operation] if first is second and first.is_floating_point() else None


def tensors_written(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[FakeTensor]:
    """The fake tensors that an operation changes in place."""
    tensors: list[Any] = []
    for index, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            tensors.append(args[index] if index < len(args) else kwargs.get(argument.name))
    return [leaf for leaf in tree_leaves(tensors) if type(leaf) is FakeTensor and leaf.layout is torch.strided]


def keeps_uniform(operation: Any) -> bool:
    """Whether the output has one value everywhere if each input has."""
    return torch.Tag.pointwise in operation.tags or operation._overloadpacket in _REDUCES


def keeps_zeros(operation: Any) -> bool:
    """Whether the output is 0 everywhere if the inputs are."""
    return operation._overloadpacket in _SUMS
