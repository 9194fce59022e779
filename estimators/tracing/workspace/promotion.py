"""Copies that operations on two tensors make on a CPU of a tensor whose type is not that of the result.

A mask that is multiplied with numbers is copied as numbers, and so are 16-bit numbers that are added to 32-bit ones.
Found by running each operation with each pair of types, and read in ATen/TensorIterator.cpp (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from estimators.tracing.workspace.amounts import Workspace

_ATEN = torch.ops.aten
_DIVIDING = frozenset([_ATEN.div.Tensor, _ATEN.div_.Tensor])
_IN_PLACE = frozenset([_ATEN.add_.Tensor, _ATEN.sub_.Tensor, _ATEN.mul_.Tensor, _ATEN.div_.Tensor])
_OF_CHOICE = frozenset([_ATEN.where.self])  # its first argument is the mask that chooses
_COMPARING = frozenset(getattr(_ATEN, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge"))
PROMOTING = (
    frozenset([_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor, _ATEN.pow.Tensor_Tensor])
    | frozenset([_ATEN.maximum.default, _ATEN.minimum.default])
    | _IN_PLACE
    | _OF_CHOICE
    | _COMPARING
)


def promoted(operation: Any, args: Sequence[Any]) -> Workspace:
    """Workspace of an operation of ``PROMOTING``: its copies live as long as it lasts."""
    first, second = args[1:3] if operation in _OF_CHOICE else args[:2]
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return ()
    common = torch.result_type(first, second)
    if operation in _DIVIDING and not (common.is_floating_point or common.is_complex):
        common = torch.get_default_dtype()
    copied = [tensor for tensor in (first, second) if tensor.dtype != common and tensor.ndim]
    if operation in _IN_PLACE and first.dtype != common:
        copied.append(first)  # the result, before it is written into the first one
    num_bytes = sum(tensor.numel() for tensor in copied) * common.itemsize
    return ((0, num_bytes),) if num_bytes else ()
