"""Convolutions that torch computes itself, from columns: the windows of all positions side by side."""

from __future__ import annotations

from math import prod

from torch import Tensor

from estimators.tracing.device.cpu.convolution import Convolution
from estimators.tracing.device.device import NOTHING, Workspace


def forward(convolution: Convolution) -> Workspace:
    """Workspace of the forward pass."""
    before = convolution.reformatted(convolution.images, convolution.weight)
    columns = 0 if _is_plain(convolution) and not convolution.transposed else _columns(convolution)
    if _is_sliced(convolution):
        output_bytes = convolution.output.nbytes
        return ((before + output_bytes + _slice(convolution, convolution.images) + columns, before + output_bytes),)
    return ((before, before + columns),)


def backward(convolution: Convolution, of_input: bool, of_weight: bool) -> Workspace:
    """Workspace of the gradients of the input and of the weight, as far as they are asked for."""
    before = convolution.reformatted(convolution.output, convolution.images, convolution.weight)
    plain = _is_plain(convolution)
    for_input = 0 if plain and convolution.transposed else _columns(convolution)
    for_weight = 0 if plain else _columns(convolution)
    if not convolution.is_of_volumes and not convolution.transposed:
        for_input //= len(convolution.images)  # one sample after another
    if _is_sliced(convolution):
        parts = of_input * convolution.images.nbytes + of_weight * convolution.weight.nbytes
        slices = _slice(convolution, convolution.output) + _slice(convolution, convolution.images)
        taken = before + parts + slices + max(of_input * for_input, of_weight * for_weight)
        first, second = (taken, before + parts), (0, before + parts)
        return (first if of_input else NOTHING), ((second if of_input else first) if of_weight else NOTHING)
    input_takes = (before, before + for_input) if of_input else NOTHING
    return input_takes, (before, before + for_weight) if of_weight else NOTHING


def _is_sliced(convolution: Convolution) -> bool:
    """Whether torch computes its groups one after another, from copies of their channels, and joins them at the end."""
    return convolution.groups > 1 and not convolution.is_of_volumes


def _is_plain(convolution: Convolution) -> bool:
    """Whether its columns are its input as it is; those of volumes in groups are copied all the same."""
    in_place = convolution.is_of_points and max(convolution.stride) == 1 and max(convolution.padding) == 0
    return in_place and not (convolution.groups > 1 and convolution.is_of_volumes)


def _slice(convolution: Convolution, image: Tensor) -> int:
    """Bytes of the copy of one group's channels; a single image needs none."""
    return image.nbytes // convolution.groups if len(image) > 1 else 0


def _columns(convolution: Convolution) -> int:
    """Bytes of the columns of all samples, for one group or, of volumes, for all groups."""
    positions = convolution.images if convolution.transposed else convolution.output
    windows = convolution.weight[0].numel() * prod(positions.shape[2:])
    num_groups = convolution.groups if convolution.is_of_volumes else 1
    return num_groups * len(convolution.images) * windows * convolution.images.itemsize
