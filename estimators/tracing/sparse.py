"""Results of operations on sparse gradients. Torch's own fake kernels make them all empty.

Left out is ``add_``, by which gradients of several micro-batches are accumulated.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten
COALESCE, MASK = _ATEN._coalesce.default, _ATEN.sparse_mask.default
_SAME_ROWS = (_ATEN.clone.default, _ATEN.neg.default, _ATEN.mul.Tensor, _ATEN.mul.Scalar, _ATEN.div.Tensor)
OPERATIONS = frozenset([*_SAME_ROWS, COALESCE, MASK])
_SORTED_BYTES = 4 * 8  # sorting and joining rows takes so much for each


def result(operation: Any, args: tuple[Any, ...], known_indices: Tensor | None) -> Any:
    """The fake result, with as many rows as the real one has.

    ``COALESCE`` joins equal rows: they are counted if ``known_indices`` are given, else all rows are taken to differ.
    """
    sparse_tensor = args[1 if operation is MASK else 0]
    num_rows = sparse_tensor._nnz()
    if operation is COALESCE:
        num_rows = min(num_rows, prod(sparse_tensor.shape[: sparse_tensor.sparse_dim()]))
        if known_indices is not None:
            with torch._C._DisableTorchDispatch():  # these values are real
                num_rows = torch.unique(known_indices, dim=1).shape[1]
    indices, values = sparse_tensor._indices(), sparse_tensor._values()
    return _ATEN._sparse_coo_tensor_with_dims_and_tensors.default(
        sparse_tensor.sparse_dim(),
        sparse_tensor.dense_dim(),
        sparse_tensor.shape,
        indices.new_empty(indices.shape[0], num_rows),
        values.new_empty(num_rows, *values.shape[1:]),
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=sparse_tensor.device,
    )


def workspace_bytes(operation: Any, sparse_tensor: Tensor) -> int:
    """Bytes that the operation on ``sparse_tensor`` takes while it makes its result (torch 2.13 on a CPU)."""
    if operation is COALESCE:
        return _SORTED_BYTES * sparse_tensor._nnz()
    return sparse_tensor._values().nbytes if operation is MASK else 0
