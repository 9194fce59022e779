"""Memory of attention by blocks on a CPU: see ATen/native/cpu/FlashAttentionKernel.cpp, with one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from estimators.scaling.formula import MOST_KEYS, QUERIES
from estimators.tracing.workspace.amounts import Workspace
from estimators.tracing.workspace.matrices import scratch_bytes
from estimators.tracing.workspace.products import has_avx512

_ATEN = torch.ops.aten
FORWARD = _ATEN._scaled_dot_product_flash_attention_for_cpu.default
_PACKED_ROWS = 64
BACKWARD = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default


def forward(args: Sequence[Any]) -> Workspace:
    """Workspace of the forward pass: scores, sums and results of one block, and its scores in 16 bits.

    For tiles of AMX all keys and values are packed first.
    """
    query, key, value = args[:3]
    queries, keys, width = _block(query, key)
    numbers = queries * (keys + 2 + width)
    reduced = queries * keys * query.itemsize if query.itemsize < 4 else 0
    packed = 0
    if query.dtype is torch.bfloat16 and min(query.shape[2], key.shape[2]) >= _PACKED_ROWS and has_amx():
        packed = key.nbytes // key.shape[2] * _up(key.shape[2], _PACKED_ROWS) + value.nbytes
    return ((0, 4 * numbers + reduced + packed),) * 2


def backward(args: Sequence[Any]) -> Workspace:
    """Workspace of the gradients: scores of one block and their gradients, and a copy of the output's gradient.

    torch wants that gradient contiguous with heads behind positions.
    """
    gradient, query, key = args[:3]
    queries, keys, width = _block(query, key)
    num_bytes = 8 * queries * keys
    if query.itemsize < 4:
        num_bytes += 2 * queries * keys * query.itemsize + 4 * keys * width
        scores, rows, columns = (
            torch.empty(shape, dtype=query.dtype, device="meta")
            for shape in ((queries, keys), (queries, width), (keys, width))
        )
        pairs = ((rows, columns.t()), (scores.t(), rows), (scores, columns))
        num_bytes += max(scratch_bytes(*pair, torch.float32) for pair in pairs)
    if not gradient.transpose(1, 2).is_contiguous():
        num_bytes += gradient.nbytes
    return ((0, num_bytes),) * 3


def _block(query: Tensor, key: Tensor) -> tuple[int, int, int]:
    """(queries, keys, width of a head) of one block."""
    queries = next(size for fewest, size in QUERIES if query.shape[2] >= fewest)
    return min(queries, query.shape[2]), min(MOST_KEYS, key.shape[2]), query.shape[3]


def has_amx() -> bool:
    """Whether torch uses tiles of AMX in this process."""
    return has_avx512() and bool(torch.cpu._is_amx_tile_supported())


def _up(size: int, block: int) -> int:
    return -(-size // block) * block
