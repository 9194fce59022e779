"""Spatial parallelism: each rank holds one slab of the same samples; convolutions fetch rows from neighbouring slabs.

A model supports it by its attribute ``spatial``, a ``Spatial``. The divided dimension of activations is 2, the first
after samples and channels: rows of images, layers of volumes. Each of these ranks has all parameters, with equal
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from workloads.parallel.exchanging.attention import attend_over_slabs
from workloads.parallel.exchanging.gloo import reduce
from workloads.parallel.forward_state.replaced import ReplacedForward
from workloads.protocol import Batch, Context, Spatial

_CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: functional.conv1d,
    nn.Conv2d: functional.conv2d,
    nn.Conv3d: functional.conv3d,
}
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_GLOBAL_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_OF_POSITIONS = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)
"""Layers that treat each position of a sequence on its own; their features are the last dimension."""
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
EXCHANGING = (*_CONVOLUTIONS, *_BATCH_NORMS, nn.GroupNorm)
"""Layers in which ranks exchange something about dimension 2; so do poolings over all of it."""
_OF_SPACE = (*_CONVOLUTIONS, *_TRANSPOSED, *_POOLS, *_GLOBAL_POOLS, *_BATCH_NORMS, nn.GroupNorm, nn.Upsample)
"""Layers whose divided dimension is 2."""


def slab(model: nn.Module, batch: Batch, index: int, count: int) -> Batch:
    """Slab ``index`` of ``count`` of every sample in ``batch``. Raises ``ValueError`` if the samples do not divide."""
    spatial = _spatial_of(model)
    leaves, tree = tree_flatten(batch)
    if len(leaves) != len(spatial.dims):
        raise ValueError(
            f"a batch has {len(leaves)} tensors, but `spatial` names dimensions of {len(spatial.dims)}: give `dims` "
            "one entry for each tensor"
        )
    return tree_unflatten([_cut(*pair, spatial, index, count) for pair in zip(leaves, spatial.dims, strict=True)], tree)


def _cut(tensor: Tensor, dim: int | None, spatial: Spatial, index: int, count: int) -> Tensor:
    if dim is None:
        return tensor
    if isinstance(spatial, Context) and tensor.shape[dim] % count:
        raise ValueError(
            f"sequences of {tensor.shape[dim]} positions cannot be divided evenly over {count} ranks: use a number of "
            "ranks that divides their length, or pad them"
        )
    if tensor.shape[dim] % (count * spatial.multiple_of):
        raise ValueError(
            f"a dimension of {tensor.shape[dim]} cannot be divided into {count} slabs whose sizes are multiples of "
            f"{spatial.multiple_of}: use fewer spatial ranks, or samples of another size"
        )
    return tensor.chunk(count, dim)[index].clone()  # a view would keep the other slabs in memory


def split_space(model: nn.Module, mesh: DeviceMesh) -> None:
    """Make the layers of ``model`` work on slabs, in place; ``mesh`` has one dimension.

    Raises ``ValueError`` for a layer that cannot work on slabs.
    """
    in_sequence, group = isinstance(_spatial_of(model), Context), mesh.get_group()
    for name, module in model.named_modules():
        try:
            if in_sequence and not isinstance(module, _OF_SPACE):
                _expect_single_positions(module)
            else:
                _split(module, group)
        except _CannotSplit as why:
            words = f"{name} ({type(module).__name__})" if name else type(module).__name__
            raise ValueError(f"{words} cannot work on slabs: {why}") from None
    if in_sequence:
        attend_over_slabs(model, group)


class _CannotSplit(Exception):
    pass


def _expect_single_positions(module: nn.Module) -> None:
    """Raise ``_CannotSplit`` for a layer that is not known to treat single positions of a sequence."""
    parameter_name = next((name for name, _ in module.named_parameters(recurse=False)), None)
    if parameter_name is not None and not isinstance(module, _OF_POSITIONS):
        raise _CannotSplit(
            f"ranks that divide sequences cannot tell how it uses {parameter_name}: use linear layers, layer "
            "normalisation and embeddings, look up positions by numbers that are in the batch, and call "
            "scaled_dot_product_attention"
        )


def _spatial_of(model: nn.Module) -> Spatial:
    spatial = getattr(model, "spatial", None)
    if not isinstance(spatial, Spatial):
        raise ValueError(
            f"{type(model).__name__} does not say how its space is divided: give it an attribute `spatial`, a "
            "scamp.Spatial, or use plans with spatial=1"
        )
    return spatial


def _split(module: nn.Module, group: dist.ProcessGroup) -> None:
    if type(module) in _CONVOLUTIONS:
        _replace(module, _convolution(module, group))
    elif isinstance(module, _BATCH_NORMS):
        _replace(module, _batch_norm(module, group))
    elif isinstance(module, nn.GroupNorm):
        _replace(module, _group_norm(module, group))
    elif isinstance(module, (*_TRANSPOSED, *_POOLS)):
        sizes = (module.padding, getattr(module, "output_padding", 0))
        if _first(module.kernel_size) != _first(module.stride) or any(map(_first, sizes)):
            raise _CannotSplit("its kernel must be as large as its stride, without padding")
    elif is_global_pool(module):
        _replace(module, _global_pool(module, group))
    elif isinstance(module, nn.Upsample):
        if module.mode != "nearest":
            raise _CannotSplit("it mixes positions: use mode='nearest'")
    elif any(True for _ in module.parameters(recurse=False)) or "Pool" in type(module).__name__:
        raise _CannotSplit(
            "only convolutions, poolings that keep slabs apart or average all of space, batch and group normalisation "
            "can; after such an average, write a linear layer as a convolution with a kernel of 1"
        )


def _replace(module: Any, forward: Callable[[Tensor], Tensor]) -> None:
    module.forward = ReplacedForward(forward, module.forward, "spatial=1")


def is_global_pool(module: nn.Module) -> bool:
    """Whether ``module`` gives the mean over all of space."""
    return isinstance(module, _GLOBAL_POOLS) and _is_one(module.output_size)


def _first(size: Any) -> int:
    return int(size[0] if isinstance(size, tuple) else size)


def _is_one(size: Any) -> bool:
    return all(length == 1 for length in (size if isinstance(size, tuple) else (size,)))


def _global_pool(module: Any, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        return _mean(type(module).forward(module, x), group)  # slabs have equal sizes

    return forward


def _convolution(module: Any, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise _CannotSplit("its padding must be a number of zeros")
    before = module.padding[0]
    after = module.dilation[0] * (module.kernel_size[0] - 1) - before - (module.stride[0] - 1)
    if after < 0:
        raise _CannotSplit("it skips positions or pads more than its kernel reaches")
    convolve, padding = _CONVOLUTIONS[type(module)], (0, *module.padding[1:])

    def forward(x: Tensor) -> Tensor:
        if x.shape[2] % module.stride[0] or x.shape[2] < max(before, after):
            raise ValueError(
                f"slabs of {x.shape[2]} are too thin for a convolution, or not a multiple of its stride: use fewer "
                "spatial ranks"
            )
        wide: Tensor = _Widened.apply(x, before, after, group) if before or after else x  # type: ignore[no-untyped-call]
        return convolve(wide, module.weight, module.bias, module.stride, padding, module.dilation, module.groups)

    return forward


class _Widened(torch.autograd.Function):
    """Extends a slab by the last rows of the previous slab and the first of the next, by zeros at the ends of space."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: int, after: int, group: dist.ProcessGroup) -> Tensor:
        ctx.before, ctx.after, ctx.group = before, after, group
        size = x.shape[2]
        above, below = _exchange(x[:, :, :after], x[:, :, size - before :], before, after, group)
        return torch.cat([above, x, below], 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        before, after = ctx.before, ctx.after
        end = gradient.shape[2] - after
        above, below = _exchange(gradient[:, :, :before], gradient[:, :, end:], after, before, ctx.group)
        own_gradient = gradient[:, :, before:end].clone()
        own_gradient[:, :, :after] += above
        own_gradient[:, :, own_gradient.shape[2] - before :] += below
        return own_gradient, None, None, None


def _exchange(
    to_previous: Tensor, to_next: Tensor, num_above: int, num_below: int, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor]:
    """The rows received from the previous rank and from the next; zeros where there is no such rank."""
    index, count = dist.get_rank(group), dist.get_world_size(group)
    shape = list(to_previous.shape)
    above, below = (to_next.new_zeros([*shape[:2], num, *shape[3:]]) for num in (num_above, num_below))
    pairs = [(index - 1, to_previous, above), (index + 1, to_next, below)]
    messages = []
    for peer, sent, received in pairs:
        if 0 <= peer < count:
            if sent.numel():
                messages.append(dist.P2POp(dist.isend, sent.contiguous(), group=group, group_peer=peer))
            if received.numel():
                messages.append(dist.P2POp(dist.irecv, received, group=group, group_peer=peer))
    if messages:
        for work in dist.batch_isend_irecv(messages):
            work.wait()
    return above, below


class _Sum(torch.autograd.Function):
    """Sum of ``x`` over the ranks; each rank computes with the sum, so backward sums the gradients too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = x.clone()
        reduce(total, group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        reduce(total, ctx.group)
        return total, None


def _mean(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Mean of ``x`` over the ranks."""
    total: Tensor = _Sum.apply(x, group)  # type: ignore[no-untyped-call]
    return total / dist.get_world_size(group)


def _batch_norm(module: Any, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        if not module.training and module.running_mean is not None:
            normalised: Tensor = type(module).forward(module, x)
            return normalised
        dimensions = [0, *range(2, x.ndim)]
        shape = [1, -1] + [1] * (x.ndim - 2)
        mean = _mean(x.mean(dimensions), group)
        centred = x - mean.view(shape)
        variance = _mean(centred.square().mean(dimensions), group)
        if module.training and module.running_mean is not None:
            _track(module, mean.detach(), variance.detach(), x.numel() // x.shape[1] * dist.get_world_size(group))
        normal = centred * (variance + module.eps).rsqrt().view(shape)
        return _scaled(module, normal, shape)

    return forward


def _scaled(module: Any, normal: Tensor, shape: list[int]) -> Tensor:
    if not module.affine:
        return normal
    scaled: Tensor = normal * module.weight.view(shape) + module.bias.view(shape)
    return scaled


def _track(module: Any, mean: Tensor, variance: Tensor, num: int) -> None:
    module.num_batches_tracked.add_(1)
    momentum = module.momentum if module.momentum is not None else 1 / float(module.num_batches_tracked)
    module.running_mean.lerp_(mean, momentum)
    module.running_var.lerp_(variance * num / max(1, num - 1), momentum)


def _group_norm(module: nn.GroupNorm, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), module.num_groups, -1)
        mean = _mean(grouped.mean(2, keepdim=True), group)
        centred = grouped - mean
        variance = _mean(centred.square().mean(2, keepdim=True), group)
        normal = (centred * (variance + module.eps).rsqrt()).view_as(x)
        shape = [1, -1] + [1] * (x.ndim - 2)
        return _scaled(module, normal, shape)

    return forward
