"""Results of operations on sparse gradients, which torch's own fake kernels make empty or refuse.

Rows of a sparse tensor may repeat, and how many differ depends on values. They are all taken to differ, so results have
as many rows as they can have. Only the same indices, looked up twice, are known to be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_ATEN = torch.ops.aten
COALESCE, ADD = _ATEN._coalesce.default, _ATEN.add.Tensor
_CLONE, _MASK, _ADD_IN_PLACE = _ATEN.clone.default, _ATEN.sparse_mask.default, _ATEN.add_.Tensor
_SAME_ROWS = frozenset(
    [
        *(_CLONE, _ATEN.neg.default, _ATEN.mul.Tensor, _ATEN.mul.Scalar, _ATEN.div.Tensor),
        *(_ATEN.div.Scalar, _ATEN.pow.Tensor_Scalar, _ATEN.sqrt.default, _ATEN.abs.default),
    ]
)
_MULTIPLIED_IN_PLACE = frozenset([_ATEN.mul_.Tensor, _ATEN.mul_.Scalar])
_IN_PLACE = frozenset([_ATEN.div_.Tensor, _ATEN.div_.Scalar, _ATEN.neg_.default]) | _MULTIPLIED_IN_PLACE
OPERATIONS = frozenset([COALESCE, ADD, _MASK, _ADD_IN_PLACE]) | _SAME_ROWS | _IN_PLACE
_SORTED_BYTES = 4 * 8  # sorting and joining rows takes so much for each


def sparse_argument(args: tuple[Any, ...]) -> FakeTensor | None:
    """The first sparse tensor among the first two arguments, whose rows the result has; None if there is none."""
    for argument in args[:2]:
        if type(argument) is FakeTensor and argument.layout is torch.sparse_coo:
            return argument
    return None


def result(
    operation: Any, args: tuple[Any, ...], sparse_tensor: Tensor, are_equal: Callable[[Tensor, Tensor], bool]
) -> Any:
    """The fake result, with as many rows as the real one may have, in as much memory.

    ``are_equal`` says whether two tensors are known to have the same values.
    """
    if operation in _IN_PLACE:
        return args[0]
    if operation in (ADD, _ADD_IN_PLACE):
        return _sum(args[0], args[1], are_equal, in_place=operation is _ADD_IN_PLACE)
    if operation is _CLONE and _takes_over(sparse_tensor):
        return _made_of(sparse_tensor, sparse_tensor._indices(), sparse_tensor._values())
    num_rows = num_different = sparse_tensor._nnz()
    if operation is COALESCE:
        num_different = min(num_rows, prod(sparse_tensor.shape[: sparse_tensor.sparse_dim()]))
    is_coalesced = operation is COALESCE or sparse_tensor.is_coalesced()
    return _rows_like(sparse_tensor, num_rows, num_different, is_coalesced)


def _sum(first: Tensor, second: Tensor, are_equal: Callable[[Tensor, Tensor], bool], *, in_place: bool) -> Any:
    """The sum with a sparse tensor. Of two sparse ones, rows are joined if they have the same places in both.

    Sums in place are those of micro-batches. A trace repeats the same one, and real ones look up other rows.
    """
    if first.layout is torch.strided:
        return first if in_place else torch.empty_like(first)
    num_made = first._nnz() + second._nnz()
    is_joined = not in_place and first._values().is_contiguous() and second._values().is_contiguous()
    num_rows = first._nnz() if is_joined and are_equal(first._indices(), second._indices()) else num_made
    total = _rows_like(first, num_made, num_rows, first.is_coalesced() and second.is_coalesced())
    return _ATEN.copy_sparse_to_sparse_.default(first, total) if in_place else total


def _takes_over(gradient: Tensor) -> bool:
    """Whether autograd makes this the gradient of a parameter, without a copy (torch/csrc/autograd/functions/
    accumulate_grad.h). It copies fake tensors, as Python knows of them."""
    node = torch._C._current_autograd_node()
    is_last = node is not None and node.name() == "torch::autograd::AccumulateGrad"
    return is_last and gradient._indices().is_contiguous() and gradient._values().is_contiguous()


def grow(sparse_tensor: Tensor, factor: int) -> None:
    """Give the tensor ``factor`` times as many rows, as if more like it had been added."""
    if factor > 1:
        num_rows = sparse_tensor._nnz() * (factor - 1)
        sparse_tensor.add_(_rows_like(sparse_tensor, num_rows, num_rows, False))


def workspace_bytes(operation: Any, sparse_tensor: Tensor) -> int:
    """Bytes that the operation on ``sparse_tensor`` takes while it makes its result (torch 2.13 on a CPU)."""
    if operation is COALESCE:
        return _SORTED_BYTES * sparse_tensor._nnz()
    if operation in _MULTIPLIED_IN_PLACE:
        return sparse_tensor._indices().nbytes + sparse_tensor._values().nbytes
    return sparse_tensor._values().nbytes if operation is _MASK else 0


def _rows_like(sparse_tensor: Tensor, num_made: int, num_rows: int, is_coalesced: bool) -> Any:
    """A sparse tensor with ``num_rows`` rows, in memory for ``num_made``."""
    indices, values = sparse_tensor._indices(), sparse_tensor._values()
    made = _made_of(
        sparse_tensor,
        indices.new_empty(indices.shape[0], num_made)[:, :num_rows],
        values.new_empty(num_made, *values.shape[1:])[:num_rows],
    )
    return _ATEN._coalesced_.default(made, is_coalesced)


def _made_of(like: Tensor, indices: Tensor, values: Tensor) -> Any:
    return _ATEN._sparse_coo_tensor_with_dims_and_tensors.default(
        like.sparse_dim(),
        like.dense_dim(),
        like.shape,
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=like.device,
    )
