"""Helpers for ``Workload.inherit``: a new network begins with the function of a trained one that is smaller.

After Net2Net (Chen et al. 2016, arXiv:1511.05641): ``widen`` gives a layer more units, and ``silence`` and ``identity``
let a further block change nothing at first. They work on whole models in host memory, before any plan divides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.GroupNorm)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
_EMPTY: Mapping[int, Units] = {}


@dataclass(frozen=True, slots=True)
class Units:
    """The units (features, channels, rows of heads) of a layer, by those of its parent.

    ``sources`` (int64, shape [n]) has the number of the parent's unit that each one copies, -1 for a new one. A layer
    that reads the units multiplies the parent's weights by ``shares`` (shape [n]), which are 0 for new units.
    """

    sources: Tensor
    shares: Tensor
    num_parent: int

    def each(self, size: int) -> Units:
        """The units where each of these stands for ``size`` consecutive ones, such as the rows of a head."""
        inner = torch.arange(size).repeat(len(self.sources))
        sources = self.sources.repeat_interleave(size)
        return Units(
            torch.where(sources < 0, sources, sources * size + inner),
            self.shares.repeat_interleave(size),
            self.num_parent * size,
        )

    def tiled(self, num: int) -> Units:
        """``num`` copies of these units in a row, such as the channels of each position."""
        start = (torch.arange(num) * self.num_parent).repeat_interleave(len(self.sources))
        sources = self.sources.repeat(num)
        return Units(torch.where(sources < 0, sources, sources + start), self.shares.repeat(num), self.num_parent * num)


def kept(num_parent: int, num: int) -> Units:
    """``num`` units: the parent's first, then new ones, which no later layer reads at first.

    The function stays the same where no normalisation is computed over the units, as inside a feed-forward or between
    heads of attention. With fewer units than the parent has, its first ones remain.
    """
    sources = torch.arange(num)
    is_new = sources >= num_parent
    return Units(sources.masked_fill(is_new, -1), (~is_new).float(), num_parent)


def duplicated(num_parent: int, num: int) -> Units:
    """``num`` units, each of which copies one of the parent's; ``num`` is a multiple of ``num_parent``.

    Means and variances over all units stay the same, so these also suit widths that are normalised. Copies share what
    later layers read in random parts, drawn from torch's global generator: equal parts would let them stay equal for
    ever. Raises ``ValueError`` for another number, as the function would change.
    """
    if num % num_parent:
        raise ValueError(f"{num} units are not a multiple of the parent's {num_parent}: copies would change its means")
    parts = torch.rand(num // num_parent, num_parent) + 0.5
    return Units(torch.arange(num) % num_parent, (parts / parts.sum(0)).flatten(), num_parent)


def copy(
    tensor: Tensor, parent: Tensor, outputs: Mapping[int, Units] = _EMPTY, inputs: Mapping[int, Units] = _EMPTY
) -> None:
    """Fill ``tensor`` from that of the parent: each dimension in ``outputs`` has units that it makes, each in
    ``inputs`` units that it reads. What belongs to new outputs stays as it is.

    Raises ``ValueError`` if the shapes do not fit.
    """
    value, is_new = parent.detach(), torch.zeros(tensor.shape, dtype=torch.bool)
    for units, dim in [(units, dim) for dims in (outputs, inputs) for dim, units in dims.items()]:
        if value.shape[dim] != units.num_parent:
            raise ValueError(f"dimension {dim} of the parent has {value.shape[dim]} units, not {units.num_parent}")
        value = value.index_select(dim, units.sources.clamp(min=0))
    if value.shape != tensor.shape:
        raise ValueError(f"the parent's tensor becomes one of shape {list(value.shape)}, not {list(tensor.shape)}")
    for dim, units in inputs.items():
        value = value * _along(units.shares, dim, value.ndim)
    for dim, units in outputs.items():
        is_new |= _along(units.sources < 0, dim, value.ndim)
    with torch.no_grad():
        tensor.copy_(torch.where(is_new, tensor, value))


def widen(layer: nn.Module, parent: nn.Module, *, outputs: Units | None = None, inputs: Units | None = None) -> None:
    """Fill a linear layer, a convolution or a normalisation from the parent's, with other ``outputs`` or ``inputs``.

    None: as many as in the parent. The outputs of a normalisation are what it reads, too. Raises ``ValueError``.
    """
    if not isinstance(layer, (*_LAYERS, *_NORMS)):
        raise ValueError(f"widen knows no {type(layer).__name__}: use copy() for each of its tensors")
    if inputs is not None and getattr(layer, "groups", 1) != 1:
        raise ValueError("a convolution with groups reads only its own channels: give outputs alone")
    theirs = dict(_tensors(parent))
    for name, tensor in _tensors(layer).items():
        if tensor.ndim == 0:
            copy(tensor, theirs[name])
        else:
            reads = {1: inputs} if inputs is not None and tensor.ndim > 1 else _EMPTY
            copy(tensor, theirs[name], {0: outputs} if outputs is not None else _EMPTY, reads)


def copy_equal(model: nn.Module, parent: nn.Module) -> list[str]:
    """Copy each parameter and buffer that the parent has with the same name and shape; returns the names of the others.

    Enough where only some layers differ, such as the operations of a cell.
    """
    theirs = dict([*parent.named_parameters(), *parent.named_buffers()])
    left = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in theirs and theirs[name].shape == tensor.shape:
            copy(tensor, theirs[name])
        else:
            left.append(name)
    return left


def silence(*layers: nn.Module) -> None:
    """Set every parameter of these layers to zero: a residual branch that ends in one changes nothing at first."""
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters():
                parameter.zero_()


def identity(layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
    """Let a square linear layer, or a convolution with an odd kernel, pass on its input: a further layer after a ReLU
    then changes nothing at first."""
    if isinstance(layer, nn.Linear):
        nn.init.eye_(layer.weight)
    else:
        nn.init.dirac_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _tensors(layer: nn.Module) -> Mapping[str, Tensor]:
    return dict([*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)])


def _along(values: Tensor, dim: int, ndim: int) -> Tensor:
    return values.reshape([-1 if axis == dim else 1 for axis in range(ndim)])
