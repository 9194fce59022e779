"""Memory that an operation uses internally while it makes its outputs. No tensor shows it, and it is freed afterwards.

Only convolutions in fp32 on a CPU are known, in a process with one thread. oneDNN computes most of them on copies in a
layout of its own, with channels in blocks of one vector register. Torch itself computes those of a single small sample,
from columns: the windows of all positions side by side. The rules were found with torch's profiler (torch 2.13, AVX2
and AVX512; kernels of 1 to 7, strides, groups, dilation, images and volumes). Left out are 16-bit numbers, the
additional memory that oneDNN uses for strides, and scratch memory of some tens of KiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

Workspace = tuple[tuple[int, int], ...]
"""For each output in order: bytes that are taken and freed before it is made, and bytes held while it is made."""

_FEW_CHANNELS = 3  # up to so many channels are read without a copy
_NOTHING = (0, 0)


def workspace_of(operation: Any, args: tuple[Any, ...], out: Any) -> Workspace:
    """The workspace of one operation that returned ``out``; empty if nothing is known about it."""
    if operation is torch.ops.aten.convolution.default:
        convolution = _Convolution(args[0], args[1], out, args[3], args[5], args[6], args[8])
        return convolution.forward() if convolution.is_known else ()
    if operation is torch.ops.aten.convolution_backward.default:
        convolution = _Convolution(args[1], args[2], args[0], args[4], args[6], args[7], args[9])
        return convolution.backward(*args[10][:2]) if convolution.is_known else ()
    return ()


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution of ``given``. ``made`` has the shape of its output: it is the output or its gradient."""

    given: Tensor
    weight: Tensor
    made: Tensor
    stride: list[int]
    dilation: list[int]
    transposed: bool
    groups: int

    @property
    def is_known(self) -> bool:
        """Whether its workspace is known: only in fp32."""
        return self.given.dtype == torch.float32

    @property
    def is_of_points(self) -> bool:
        """Whether its kernel covers one position only."""
        return max(self.weight.shape[2:]) == 1

    @property
    def is_of_volumes(self) -> bool:
        """Whether it has three dimensions of space."""
        return self.given.ndim == 5

    @property
    def is_torchs(self) -> bool:
        """Whether torch computes it, not oneDNN: see ``use_mkldnn`` in ATen/native/Convolution.cpp, with one thread."""
        first_four = self.given.numel() // (self.given.shape[-1] if self.is_of_volumes else 1)
        *_, before_last, last = (1, *self.weight.shape[2:])
        few = self.groups == 1 and min(before_last, last) <= 3 and len(self.given) == 1 and first_four <= 20480
        plain = max(*self.stride, *self.dilation, before_last, last) == 1 and len(self.given) < 16
        return few or plain

    def forward(self) -> Workspace:
        """Workspace of the forward pass."""
        if self.is_torchs:
            return ((0, 0 if self.is_of_points else self._columns),)
        made = _blocked(self.made)
        return ((self._read + self._kernel + made, made * (2 if self.transposed else 1)),)

    def backward(self, of_input: bool, of_weight: bool) -> Workspace:
        """Workspace of the gradients of the input and of the weight, as far as they are asked for."""
        if self.is_torchs:
            return self._backward_of_columns(of_input, of_weight)
        made, given = _blocked(self.made), _blocked(self.given)
        strided = max(self.stride) > 1 and not self.transposed
        before = made + _blocked(self.weight, dimensions=(0, 1)) + given
        input_takes = (before, given * (2 if strided else 1)) if of_input else _NOTHING
        if not of_weight:
            return input_takes, _NOTHING
        if self._is_product:
            product = self._product
            return input_takes, (product, product)
        return input_takes, (made + self._kernel + self._read, self._kernel)

    @property
    def _read(self) -> int:
        """Bytes of the copy that is read; 0 if there are so few channels that they are read without a copy."""
        return _blocked(self.given) if self.given.shape[1] > _FEW_CHANNELS else 0

    @property
    def _kernel(self) -> int:
        dimensions = (0, 1) if self.weight.shape[1] > _FEW_CHANNELS else (0,)
        return _blocked(self.weight, dimensions)

    def _backward_of_columns(self, of_input: bool, of_weight: bool) -> Workspace:
        columns = (0, self._columns)
        if self.is_of_volumes or self.transposed:
            no_columns = not of_weight or (self.is_of_points and not self.transposed)
            return columns if of_input else _NOTHING, _NOTHING if no_columns else columns
        if self.is_of_points:
            return _NOTHING, _NOTHING
        return (_NOTHING, columns) if of_weight else (columns if of_input else _NOTHING, _NOTHING)

    @property
    def _columns(self) -> int:
        """Bytes of the windows of all positions side by side."""
        positions = self.given if self.transposed else self.made
        return len(self.given) * self.weight[0].numel() * prod(positions.shape[2:]) * self.given.itemsize

    @property
    def _is_product(self) -> bool:
        """Whether the gradient of the weight is computed as a matrix product: without AVX512, for volumes, images
        smaller than the kernel, and kernels with gaps."""
        if self.transposed or self.is_of_points or _has_avx512():
            return False
        return self.is_of_volumes or self.given.shape[-1] < self.weight.shape[-1] or max(self.dilation) > 1

    @property
    def _product(self) -> int:
        """Bytes of that matrix product: the windows of one sample (for volumes, of one layer) side by side, four copies
        of the weight, and what the product packs."""
        rows, columns = self.weight[0].numel(), len(self.weight)
        depth = prod(self.made.shape[3 if self.is_of_volumes else 2 :])
        return self.made.itemsize * (rows * depth + 4 * self.weight.numel() + _packed(rows, columns, depth))


def _packed(rows: int, columns: int, depth: int) -> int:
    """Elements that oneDNN's matrix product copies into its own order; 0 if it reads them as they are.

    From oneDNN's ``gemm_driver.cpp`` and ``gemm_info.cpp`` (AVX2), and measured: 64 to 256 channels in, 192 to 1024
    out, kernels of 3 to 7, 1 to 1024 positions.
    """
    if depth == 1 or 1 / rows + 1 / columns >= 0.0038:
        return 0
    at_once = max(depth, 128) if depth <= 256 else min(-(-depth // 2), 192)
    return at_once * (min(rows, 10080) + (min(columns, 384) if depth >= 64 else 0))


def _blocked(tensor: Tensor, dimensions: tuple[int, ...] = (1,)) -> int:
    """Bytes of a copy in which these dimensions are rounded up to whole blocks."""
    num, block = tensor.itemsize, _block()
    for dimension, size in enumerate(tensor.shape):
        num *= -(-size // block) * block if dimension in dimensions else size
    return num


def _block() -> int:
    """fp32 elements in a vector register."""
    return 16 if _has_avx512() else 8


def _has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")
