"""Builds a rank's part of a model with the initial weights that a single process draws, whatever the plan.

A sharded model is never whole on a device: rank 0 draws it in host memory, the only copy in the gang, and sends it
tensor by tensor; every rank keeps its shard of each. The other ranks build it on the meta device, which has no memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves

from estimators.model import Plan
from scamp.workload.seeds import seed_everything
from workloads.parallel.agreement import agree
from workloads.parallel.aliases import parameter_attributes, set_parameter_attributes
from workloads.parallel.apply import apply_plan
from workloads.parallel.exchanging.gloo import AllGather, ReduceScatter
from workloads.parallel.tp_plan.notation import described
from workloads.protocol import Workload
from workloads.training.outline import model_of, outline_of
from workloads.training.updates.precision import mixed_precision_of


def build_model(
    workload: Workload,
    plan: Plan,
    seed: int,
    device: torch.device,
    mesh: DeviceMesh | None,
    fill: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """The model under the plan, in training mode, with the initial weights that a single process draws from ``seed``.

    The first rank lets ``fill`` change them while its model is whole and in host memory.
    """
    model = _built(workload, plan, seed, device, mesh, fill)
    # What was drawn for all ranks may refer to itself, as parametrized modules do, and no training has room for it.
    gc.collect()
    return model


def _built(
    workload: Workload,
    plan: Plan,
    seed: int,
    device: torch.device,
    mesh: DeviceMesh | None,
    fill: Callable[[nn.Module], None] | None,
) -> nn.Module:
    seed_everything(seed)
    if mesh is None:
        model = _draw(workload, fill).to(device)
        return apply_plan(model, workload.blocks(model), plan.layout, None, mixed_precision_of(workload))
    drawn = _draw(workload, fill) if mesh.get_rank() == 0 else None
    seed_everything(seed)  # for what the model draws that is not a tensor
    model = _without_memory(workload, seed)
    _send_attributes(model, drawn)
    sent = _values(drawn, model) if drawn is not None else {}
    outline = dict(_tensors(model))
    attributes = parameter_attributes(model)
    shared = _shared_tensors(model)
    apply_plan(model, workload.blocks(model), plan.layout_of(mesh.get_rank()), mesh, mixed_precision_of(workload))
    if device.type == "cpu":
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(AllGather())  # type: ignore[arg-type]
                module.set_custom_reduce_scatter(ReduceScatter())  # type: ignore[arg-type]
    agree(model, plan.layout_of(mesh.get_rank()), mesh)
    model.to_empty(device=device)
    held = dict(_tensors(model, every_name=True))
    for name, first in shared.items():  # to_empty gives each name its own tensor, so tie them again
        owner, _, attribute = name.rpartition(".")
        if name in held and first in held:  # otherwise it belongs to another stage
            setattr(model.get_submodule(owner), attribute, held[first])
    set_parameter_attributes(model, attributes)
    with torch.no_grad():
        for name, like in outline.items():
            full = sent.pop(name).detach() if sent else torch.empty(like.shape, dtype=like.dtype)
            full = full.to(device).contiguous()  # ranks exchange plain memory, whatever the strides
            dist.broadcast(full, src=0)
            tensor = held.get(name)
            if tensor is None:  # it belongs to another stage
                continue
            if isinstance(tensor, DTensor):
                part = distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
                tensor.to_local().copy_(part.to_local())
            else:
                tensor.copy_(full)
    return model


def _draw(workload: Workload, fill: Callable[[nn.Module], None] | None) -> nn.Module:
    model = described(workload, model_of(workload)).train()
    if fill is not None:
        fill(model)
    return model


def _values(drawn: nn.Module, model: nn.Module) -> dict[str, Tensor]:
    """The tensors of ``drawn``. Those that ``model`` has too are copies, as it will get new memory: a workload may
    return a model that it has made before."""
    shared = {id(tensor) for _, tensor in _tensors(model)}
    return {name: tensor.detach().clone() if id(tensor) in shared else tensor for name, tensor in _tensors(drawn)}


def _without_memory(workload: Workload, seed: int) -> nn.Module:
    """The model on the meta device."""
    try:
        return described(workload, outline_of(workload)).train()
    except (RuntimeError, NotImplementedError):  # it computes with numbers of its own, which meta tensors do not have
        seed_everything(seed)
        return described(workload, workload.build_model().to("meta")).train()


def _send_attributes(model: nn.Module, drawn: nn.Module | None) -> None:
    """Give ``model`` the tensors that modules of rank 0's ``drawn`` hold as plain attributes, or in lists of these."""
    attributes = [
        (name, attribute)
        for name, module in model.named_modules()
        for attribute, value in module.__dict__.items()
        if attribute not in ("_parameters", "_buffers", "_modules")
        and any(isinstance(leaf, Tensor) and leaf.is_meta and leaf.grad_fn is None for leaf in tree_leaves(value))
    ]
    if not attributes:
        return
    values: list[Any] = [
        [drawn.get_submodule(name).__dict__[attribute] for name, attribute in attributes] if drawn else []
    ]
    dist.broadcast_object_list(values, src=0)
    for (name, attribute), value in zip(attributes, values[0], strict=True):
        model.get_submodule(name).__dict__[attribute] = value


def _tensors(model: nn.Module, *, every_name: bool = False) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=not every_name)
    yield from model.named_buffers(remove_duplicate=not every_name)


def _shared_tensors(model: nn.Module) -> dict[str, str]:
    """Each further name of a parameter or buffer → its first name."""
    first: dict[int, str] = {}
    names = _tensors(model, every_name=True)
    return {name: seen for name, tensor in names if (seen := first.setdefault(id(tensor), name)) != name}
