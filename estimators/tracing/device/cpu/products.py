"""Memory for matrices that oneDNN's products copy into an order of their own, where a convolution is such a product.

From ``gemm_driver.cpp`` and ``gemm_info.cpp`` of oneDNN 3.12, for one thread. Left out are AMX units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_PAGE_BYTES = 4096
_SMALL_DEPTH, _SMALL_COLUMNS = 48, 24  # products of so small a depth take fewer columns at once


@dataclass(frozen=True, slots=True)
class _Blocking:
    """Elements of a register block (rows, columns) and of what is packed at once; ``unpacked`` bounds products that
    are computed without packing, with this many bytes for one strip of rows."""

    row: int
    column: int
    rows: int
    columns: int
    depth: int
    full_depth: int
    unpacked: float
    strip_bytes: int


_AVX2 = _Blocking(
    row=24,
    column=4,
    rows=10000,
    columns=384,
    depth=192,
    full_depth=256,
    unpacked=0.0038,
    strip_bytes=4 * (256 * 16 + 64 + 16),
)
_AVX512 = _Blocking(
    row=48,
    column=8,
    rows=9984,
    columns=384,
    depth=384,
    full_depth=384,
    unpacked=0.00196,
    strip_bytes=4 * (384 * 48 + 64 + 48),
)


def packed_bytes(rows: int, columns: int, depth: int, transposed: str, leading: int = 1, itemsize: int = 4) -> int:
    """Bytes that a product of ``rows`` × ``depth`` and ``depth`` × ``columns`` takes, column by column.

    ``transposed`` has an N or a T for each matrix; ``leading`` is the distance of columns in the matrix of the images
    (1: unknown, but no multiple of 256, with which caches work badly).
    """
    if rows == 1 or columns == 1:
        return 0
    sizes = _AVX512 if has_avx512() else _AVX2
    if itemsize == 4:
        if has_avx512() and transposed == "TN" and columns < 16:
            return 0
        if not _is_packed(rows, columns, depth, transposed, leading, sizes):
            return sizes.strip_bytes
    most_depth = sizes.depth * 4 // itemsize
    at_once = max(depth, 128) if depth <= sizes.full_depth else min(-(-depth // 2), most_depth)
    most = _SMALL_COLUMNS if depth < _SMALL_DEPTH else sizes.columns
    packed_rows = _up(min(max(rows, sizes.row), sizes.rows), sizes.row)
    packed_columns = _up(min(max(columns, sizes.column), most), sizes.column)
    return itemsize * at_once * (packed_rows + packed_columns) + 4 * (sizes.row + packed_columns) + 4 * _PAGE_BYTES


def _is_packed(rows: int, columns: int, depth: int, transposed: str, leading: int, sizes: _Blocking) -> bool:
    """Whether matrices of fp32 numbers are packed (``nocopy_checker_avx512`` and ``nocopy_checker_avx2``)."""
    if has_avx512():
        small = rows < 1200 and columns < 200 and depth < 1200
        if transposed == "TN" and rows > 100 and (small or leading % 256 == 0):
            return True
        if leading % 1024 == 0 and transposed == "NN" and depth > 500 and columns > 100:
            return True
        if leading % 1024 == 0 and transposed == "NT" and rows >= 32 and columns > 16:
            return True
    return depth > 1 and 1 / rows + 1 / columns < sizes.unpacked


def has_avx512() -> bool:
    """Whether torch uses AVX512 in this process."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _up(size: int, block: int) -> int:
    return -(-size // block) * block
