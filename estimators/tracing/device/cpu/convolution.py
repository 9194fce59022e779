"""A convolution as torch computes it on a CPU: its tensors, and whether torch or oneDNN computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of ``images``. ``output`` has the shape of its output: it is the output or its gradient.

    ``num_copied`` bytes are a copy of the input that torch holds for as long as the operation lasts.

    All tensors are on the meta device, and have two or three dimensions of space: torch computes a convolution of a
    line as that of an image with one row (``view1d_as_2d`` in ATen/native/Convolution.cpp).
    """

    images: Tensor
    weight: Tensor
    output: Tensor
    has_bias: bool
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int
    num_copied: int = 0

    @property
    def is_of_points(self) -> bool:
        """Whether its kernel covers one position only."""
        return max(self.weight.shape[2:]) == 1

    @property
    def is_of_volumes(self) -> bool:
        """Whether it has three dimensions of space."""
        return self.images.ndim == 5

    @property
    def memory_format(self) -> torch.memory_format:
        """The format of its images: channels last if its input or its weight has that, and if its kernels know that."""
        if self.is_of_volumes and self.is_torchs:
            return torch.contiguous_format
        formats = {suggest_memory_format(self.images), suggest_memory_format(self.weight)}
        channels_last = torch.channels_last_3d if self.is_of_volumes else torch.channels_last
        return channels_last if channels_last in formats else torch.contiguous_format

    @property
    def is_channels_last(self) -> bool:
        """Whether its images are channels last."""
        return self.memory_format is not torch.contiguous_format

    @property
    def is_torchs(self) -> bool:
        """Whether torch computes it, not oneDNN: see ``use_mkldnn`` in ATen/native/Convolution.cpp, with one thread."""
        if self.transposed and any(
            more >= stride for more, stride in zip(self.output_padding, self.stride, strict=True)
        ):
            return True
        if self.images.dtype == torch.bfloat16:
            return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        if self.images.dtype == torch.float16:
            return not torch.ops.mkldnn._is_mkldnn_fp16_supported()
        if self.images.dtype != torch.float32:
            return True
        first_four = self.images.numel() // (self.images.shape[-1] if self.is_of_volumes else 1)
        *_, before_last, last = self.weight.shape
        few = self.groups == 1 and min(before_last, last) <= 3 and len(self.images) == 1 and first_four <= 20480
        plain = max(*self.stride, *self.dilation, before_last, last) == 1 and len(self.images) < 16
        return few or plain

    def reformatted(self, *tensors: Tensor) -> int:
        """Bytes of the copies that bring these tensors into the common memory format."""
        memory_format = self.memory_format
        return sum(tensor.nbytes for tensor in tensors if not tensor.is_contiguous(memory_format=memory_format))


def convolution_of(operation: Any, args: tuple[Any, ...], out: Any) -> Convolution:
    """The convolution that ``aten.convolution`` or its backward operation, called with ``args``, computes."""
    if operation is torch.ops.aten.convolution.default:
        tensors, has_bias, options = (args[0], args[1], out), args[2] is not None, args[3:9]
    else:
        tensors, has_bias, options = (args[1], args[2], args[0]), args[10][2], args[4:10]
    stride, padding, dilation, transposed, output_padding, groups = options
    spatial = tensors[0].ndim - 2
    images, weight, output = map(on_meta, tensors)
    stride, padding, dilation, output_padding = (
        list(numbers) * (spatial if len(numbers) == 1 else 1) for numbers in (stride, padding, dilation, output_padding)
    )
    num_copied = 0
    if spatial == 1:
        if not images.is_contiguous():  # torch wants no line to pass for an image with channels last
            images, num_copied = images.contiguous(), images.nbytes
        images, weight, output = (tensor.unsqueeze(2) for tensor in (images, weight, output))
        stride, padding, dilation, output_padding = [1, *stride], [0, *padding], [1, *dilation], [0, *output_padding]
    return Convolution(
        images=images,
        weight=weight,
        output=output,
        has_bias=has_bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=transposed,
        output_padding=output_padding,
        groups=groups,
        num_copied=num_copied,
    )


def on_meta(tensor: Tensor) -> Tensor:
    """A tensor on the meta device with the same shape and strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
