"""Divides single layers by a style of a ``tp_plan``: torch's own styles, and three that torch does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from workloads.parallel.forward_state.replaced import ReplacedForward
from workloads.parallel.mixed_precision import replaced_parameters
from workloads.parallel.tp_plan.notation import (
    COLUMNS,
    EMBEDDING_COLUMNS,
    EMBEDDING_ROWS,
    EXPERTS,
    GATHERED,
    LATENT,
    PACKED,
    SCATTERED,
    WHOLE_IF_NEEDED,
    NamedSplit,
    is_divisible,
    rope_size,
)


def divide_others(model: nn.Module, part: nn.Module, split: NamedSplit, mesh: DeviceMesh) -> None:
    """Divide the layers of ``part``, a block of ``model`` or itself, that its ``split`` gives further styles."""
    modules = dict(part.named_modules())
    for name, style in split.others:
        if name not in modules:  # a trace leaves out most of many equal blocks
            continue
        if style in WHOLE_IF_NEEDED and not is_divisible(model, modules[name], style, mesh.size()):
            continue
        parallelize_module(modules[name], mesh, _style(model, name, style, split))


def _style(model: nn.Module, name: str, style: str, split: NamedSplit) -> ParallelStyle:
    if style in GATHERED or style == EMBEDDING_COLUMNS:
        return ColwiseParallel(output_layouts=Replicate())
    if style in SCATTERED or style == EMBEDDING_ROWS:
        return RowwiseParallel(input_layouts=Replicate())
    if style == LATENT:
        return _LatentKeys(rope_size(model))
    assert style == EXPERTS, style
    start = f"{name}."
    return _Experts({path.removeprefix(start): kind for path, kind in split.in_experts if path.startswith(start)})


class _SumOfGradients(Function):
    """The tensor itself; its gradient is the sum of those of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _summed(gradients[0], ctx.group), None


class _SumOfTensors(Function):
    """The sum of the tensors of all ranks; each has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(tensor, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return gradients[0], None


def _summed(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    reduced = collectives.all_reduce(tensor.contiguous(), "sum", group)
    summed = collectives.wait_tensor(reduced)  # type: ignore[no-untyped-call]
    assert isinstance(summed, Tensor)
    return summed


def _gradients_summed(tensor: Any, group: dist.ProcessGroup) -> Any:
    if not isinstance(tensor, Tensor) or not tensor.requires_grad:
        return tensor
    return _SumOfGradients.apply(tensor, group)  # type: ignore[no-untyped-call]


def _call_with(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A function that calls the ``forward`` that ``module`` has now, with what ``change`` makes of its parameters."""
    forward, modules = module.forward, list(module.modules())

    def call(*args: Any, **kwargs: Any) -> Any:
        with replaced_parameters(modules, change):
            return forward(*args, **kwargs)

    return call


class SummedGradients(ParallelStyle):
    """A layer that every rank has whole, but that computes a part of the features: its gradients are added up."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()
        call = _call_with(module, lambda parameter: _gradients_summed(parameter, group))
        module.forward = ReplacedForward(call, module.forward, "tp=1")
        return module


class _LatentKeys(ParallelStyle):
    """The projection to latent keys of DeepSeek's attention. The last ``rope_size`` features pass by the divided layer,
    so ranks add up the gradients of these."""

    def __init__(self, rope_size: int) -> None:
        super().__init__()
        self._rope_size = rope_size

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group, forward = device_mesh.get_group(), module.forward

        def divided(*args: Any, **kwargs: Any) -> Tensor:
            output = forward(*args, **kwargs)
            latent, with_position = output.split([output.shape[-1] - self._rope_size, self._rope_size], dim=-1)
            return torch.cat([latent, _gradients_summed(with_position, group)], dim=-1)

        module.forward = ReplacedForward(divided, forward, "tp=1")
        return module


class _Experts(ParallelStyle):
    """A module that holds the weights of all experts: each rank has a part of every expert, and results are added up.

    ``kinds`` are the styles of its parameters, by name. Weights that hold two layers, one after the other, are divided
    as two (``packed_colwise``).
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        super().__init__()
        self._kinds = kinds

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()
        for name, kind in self._kinds.items():
            parameter = module.get_parameter(name)
            placement = _placement(parameter, kind)
            part = distribute_tensor(parameter.detach(), device_mesh, [placement], src_data_rank=None)
            setattr(module, name, nn.Parameter(part, parameter.requires_grad))
        call = _call_with(
            module, lambda parameter: parameter.to_local() if isinstance(parameter, DTensor) else parameter
        )

        def divided(*args: Any, **kwargs: Any) -> Tensor:
            summed = [_gradients_summed(value, group) for value in args]
            summed_kwargs = {name: _gradients_summed(value, group) for name, value in kwargs.items()}
            output: Tensor = _SumOfTensors.apply(call(*summed, **summed_kwargs), group)  # type: ignore[no-untyped-call]
            return output

        module.forward = ReplacedForward(divided, module.forward, "tp=1")
        return module


def _placement(parameter: Tensor, kind: str) -> Any:
    if kind == PACKED:
        return Shard(0) if parameter.ndim == 1 else _StridedShard(parameter.ndim - 2, split_factor=2)
    return Shard(parameter.ndim - 2 if kind in COLUMNS else parameter.ndim - 1)
