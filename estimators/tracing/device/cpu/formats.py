"""Convolutions that oneDNN computes: copies in the formats that it chooses, and its scratch memory.

What torch does around them is in ATen/native/mkldnn/Conv.cpp, and in ideep's operators/conv.hpp and deconv.hpp.
"""

from __future__ import annotations

from math import prod

from torch import Tensor

from estimators.tracing.device.cpu import onednn
from estimators.tracing.device.cpu.convolution import Convolution
from estimators.tracing.device.cpu.onednn import Geometry, MemoryFormat, Primitive
from estimators.tracing.device.cpu.products import packed_bytes
from estimators.tracing.device.device import NOTHING, Workspace


def forward(convolution: Convolution) -> Workspace:
    """Workspace of the forward pass. Raises ``Refused``."""
    primitive = _primitive("forward", convolution, bias=convolution.has_bias)
    before = convolution.reformatted(convolution.images, convolution.weight)
    copies = _scratch("forward", convolution, primitive) + primitive.images.copied + primitive.weight.copied
    return (_image(convolution, before, copies, primitive.output),)


def backward(convolution: Convolution, of_input: bool, of_weight: bool) -> Workspace:
    """Workspace of the gradients of the input and of the weight, as far as they are asked for. Raises ``Refused``."""
    before = convolution.reformatted(convolution.output, convolution.images, convolution.weight)
    input_takes = weight_takes = NOTHING
    if of_input:
        primitive = _primitive("backward_data", convolution, bias=False)
        copies = _scratch("backward_data", convolution, primitive) + primitive.output.copied + primitive.weight.copied
        input_takes = _image(convolution, before, copies, primitive.images)
    if of_weight or convolution.has_bias:
        primitive = _primitive("backward_weights", convolution, bias=convolution.has_bias)
        copied = primitive.output.copied + primitive.images.copied
        copies = _scratch("backward_weights", convolution, primitive) + copied
        own_bytes = before + primitive.weight.num_bytes
        weight_takes = (own_bytes + copies, own_bytes + _reordered(convolution, primitive.weight))
    return input_takes, weight_takes


def _image(convolution: Convolution, before: int, copies: int, image: MemoryFormat) -> tuple[int, int]:
    """Bytes that making the output, or the gradient of the input, takes.

    If images are channels last, torch allocates it and oneDNN writes into it. Else oneDNN writes into memory of its
    own, which is then copied: twice if its format is plain but not torch's.
    """
    if convolution.is_channels_last:
        return before, before + copies
    unordered = image.num_bytes if image.is_plain and not image.is_contiguous else 0
    return before + copies + image.num_bytes, before + image.num_bytes + unordered


def _reordered(convolution: Convolution, weight: MemoryFormat) -> int:
    """Bytes of a second copy of the weight's gradient, on the way from oneDNN's format to torch's."""
    unordered = weight.is_plain and not weight.is_contiguous
    return convolution.weight.nbytes if unordered or convolution.is_channels_last else 0


def _scratch(of: str, convolution: Convolution, primitive: Primitive) -> int:
    """Bytes of scratch memory, with that for products of matrices: see ``execute_*`` in oneDNN's gemm_convolution.cpp.

    A transposed convolution is computed as the gradient of another one.
    """
    if not primitive.is_product:
        return primitive.scratch_bytes
    target = convolution.output
    if convolution.transposed:
        target = convolution.images
        of = {"forward": "backward_data", "backward_data": "forward"}.get(of, of)
    positions = prod(target.shape[3 if convolution.is_of_volumes else 2 :])
    channels = target.shape[1] // convolution.groups
    windows = convolution.weight.numel() // target.shape[1]
    last = convolution.is_channels_last
    shapes = {
        "forward": (channels, positions, windows, "NT") if last else (positions, channels, windows, "NN"),
        "backward_data": (windows, positions, channels, "TN") if last else (positions, windows, channels, "NT"),
        "backward_weights": (channels, windows, positions, "NN") if last else (windows, channels, positions, "TN"),
    }
    leading = target.shape[1] if last else positions
    return primitive.scratch_bytes + packed_bytes(*shapes[of], leading, target.itemsize)


def _primitive(of: str, convolution: Convolution, *, bias: bool) -> Primitive:
    padding = convolution.padding
    more = convolution.output_padding if convolution.transposed else [0] * len(padding)
    after = [before_ - other for before_, other in zip(padding, more, strict=True)]
    geometry = Geometry(convolution.stride, convolution.dilation, padding, after, convolution.transposed)
    weight = _grouped(convolution)
    memory_format = convolution.memory_format
    images, output = (
        tensor.contiguous(memory_format=memory_format) for tensor in (convolution.images, convolution.output)
    )
    keeps_images = convolution.is_channels_last
    return onednn.convolution(of, images, weight, output, geometry, bias=bias, keeps_images=keeps_images)


def _grouped(convolution: Convolution) -> Tensor:
    """The weight as oneDNN knows it: with a dimension of groups if there are several, and outputs before inputs."""
    weight = convolution.weight.contiguous(memory_format=convolution.memory_format)
    if convolution.groups == 1:
        return weight.transpose(0, 1) if convolution.transposed else weight
    num, *inner_shape = weight.shape
    stride, *strides = weight.stride()
    size = num // convolution.groups
    weight = weight.as_strided((convolution.groups, size, *inner_shape), (size * stride, stride, *strides))
    return weight.transpose(1, 2) if convolution.transposed else weight
