"""Shapes of operations whose results torch's own fake kernels do not know, or get wrong, on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import register_op_impl

_aten = torch.ops.aten


@register_op_impl(_aten._grouped_mm.default)
def _grouped_mm(
    mode: Any, operation: Any, given: Tensor, weight: Tensor, offs: Tensor | None = None, *_: Any, **kwargs: Any
) -> Tensor:
    """Products of groups of rows or columns; a CPU also computes them in fp32, which torch's fake kernel refuses."""
    dtype = kwargs.get("out_dtype") or given.dtype
    if given.ndim == 2 and weight.ndim == 2:
        assert offs is not None, "two matrices need the ends of their groups"
        shape: tuple[int, ...] = (offs.shape[0], given.shape[0], weight.shape[1])
    elif given.ndim == 3 and weight.ndim == 3:
        shape = (given.shape[0], given.shape[1], weight.shape[2])
    else:
        shape = (given.shape[-2], weight.shape[-1])
    return given.new_empty(shape, dtype=dtype)
