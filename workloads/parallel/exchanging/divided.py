"""Divides single layers between data-parallel ranks; the rest of the model stays in replicas, shards or stages.

Of an embedding table (DLRM) or a linear layer, as a head with many classes (Whale), a rank has some columns: features
of the output. It computes these for the samples of all ranks. An all-to-all then sends each rank all columns of its own
samples, and the gradients go the same way back; of a bag, the sum, mean or maximum is sent. So a layer takes 1/n of its
memory on each of n ranks, its gradient is never added up over ranks, and all ranks do the same work, however unevenly
indices are spread. Of a layer of experts, a rank has some (``exchanging.experts``).

Every rank must run each of these layers equally often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional

from scamp.workload.experts import Experts
from workloads.parallel.exchanging.exchange import exchanged, gathered_rows, of_all_ranks
from workloads.parallel.exchanging.experts import divide_experts, experts_of
from workloads.parallel.forward_state.replaced import ReplacedForward
from workloads.protocol import Divided
from workloads.refusals import WorkloadError

Table = nn.Embedding | nn.EmbeddingBag
Columns = Table | nn.Linear


def columns_of(model: nn.Module) -> dict[str, Columns]:
    """The layers of which ``model`` lets ranks have some columns, by name; empty if it says nothing.

    Raises ``WorkloadError`` for names without such layers, and for layers that cannot be divided.
    """
    names = getattr(model, "divided", getattr(model, "divided_tables", None))
    if not isinstance(names, Divided):
        return {}
    layers: dict[str, Columns] = {}
    for name in names.names:
        try:
            part = model.get_submodule(name)
        except AttributeError:
            raise WorkloadError(f"`divided` names {name!r}, but the model has no such module") from None
        inside: dict[str, Columns] = {
            f"{name}.{path}" if path else name: module
            for path, module in part.named_modules()
            if isinstance(module, Table) or (isinstance(module, nn.Linear) and not path)
        }
        if not inside:
            raise WorkloadError(
                f"`divided` names {name!r}, which is no nn.Linear, and no nn.Embedding or nn.EmbeddingBag is in it"
            )
        layers |= inside
    holders = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    for name, layer in layers.items():
        if why := _refusal(layer, holders[id(layer.weight)] > 1):
            raise WorkloadError(f"{name} cannot be divided between ranks, {why}: take it out of `divided`")
    return layers


def divisible_layers(model: nn.Module) -> dict[nn.Module, str]:
    """The layers of ``model`` that ranks may divide: those that it names, and experts with a capacity; with names."""
    names = {module: name for name, module in model.named_modules()}
    experts = (layer for layer in experts_of(model) if layer.capacity is not None)
    return {layer: names[layer] for layer in (*columns_of(model).values(), *experts)}


def num_parts(layer: nn.Module) -> int:
    """The number that the ranks which divide a layer must divide."""
    if isinstance(layer, Experts):
        return layer.num
    return layer.out_features if isinstance(layer, nn.Linear) else layer.embedding_dim  # type: ignore[return-value]


def most_ranks(model: nn.Module) -> int:
    """The number that the ranks which divide layers of ``model`` must divide; 1 if it has none."""
    return gcd(*map(num_parts, divisible_layers(model))) or 1


def layers_to_divide(model: nn.Module, num_ranks: int) -> list[nn.Module]:
    """The layers of the whole ``model`` that ``num_ranks`` divide: experts, and what it names.

    Raises ``ValueError`` for a model without such layers, or with some that cannot be divided evenly.
    """
    layers = divisible_layers(model)
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no layers that are divided: give it an attribute `divided`, a scamp.Divided "
            "with the names of embeddings and linear layers, or scamp.Experts with a capacity, or use plans with "
            "divided=false"
        )
    for layer, name in layers.items():
        if num_parts(layer) % num_ranks:
            unit = "experts" if isinstance(layer, Experts) else "columns"
            raise ValueError(
                f"the {num_parts(layer)} {unit} of {name} cannot be divided evenly over {num_ranks} ranks: choose a "
                "number of ranks that divides them"
            )
    return list(layers)


def divide_layers(layers: Iterable[nn.Module], mesh: DeviceMesh) -> set[nn.Parameter]:
    """Divide ``layers`` over the ranks of the one-dimensional ``mesh``, in place, and return their parameters.

    Raises ``ValueError`` for a layer that is divided already.
    """
    divided: set[nn.Parameter] = set()
    for layer in layers:
        if any(isinstance(parameter, DTensor) for parameter in layer.parameters()):
            raise ValueError(
                f"tensor-parallel ranks divide a {type(layer).__name__} that `divided` names as well: use plans with "
                "tp=1, or with divided=false"
            )
        divided |= divide_experts(layer, mesh) if isinstance(layer, Experts) else _divide_columns(layer, mesh)
    return divided


def _divide_columns(layer: Any, mesh: DeviceMesh) -> set[nn.Parameter]:
    is_linear = isinstance(layer, nn.Linear)
    for name, parameter in list(layer.named_parameters(recurse=False)):
        columns = distribute_tensor(parameter.detach(), mesh, [Shard(0 if is_linear else 1)], src_data_rank=None)
        setattr(layer, name, nn.Parameter(columns, requires_grad=parameter.requires_grad))
    compute = _projecting if is_linear else _pooling if isinstance(layer, nn.EmbeddingBag) else _lookup
    layer.forward = ReplacedForward(compute(layer, mesh.get_group()), layer.forward, "divided=false")
    return set(layer.parameters())


def _refusal(layer: Columns, is_shared: bool) -> str:
    """Why a layer cannot be divided; empty if it can."""
    if is_shared:
        return "as another module has the same weight"
    if isinstance(layer, nn.Linear):
        return ""
    if layer.max_norm is not None:
        return "as max_norm needs whole rows"
    return "as scale_grad_by_freq counts the samples of one rank" if layer.scale_grad_by_freq else ""


def _lookup(table: Columns, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    """The table's forward pass: indices of this rank's samples → their whole vectors."""
    assert isinstance(table, nn.Embedding)

    def forward(indices: Tensor) -> Tensor:
        every = of_all_ranks(indices.reshape(-1), (group,))
        columns = functional.embedding(every, _rows(table), table.padding_idx, sparse=table.sparse)
        return _whole(columns, indices.numel(), group).reshape(*indices.shape, -1)

    return forward


def _pooling(table: Columns, group: dist.ProcessGroup) -> Callable[..., Tensor]:
    """The forward pass of a bag: indices of this rank's samples → the sum, mean or maximum of each one's vectors."""
    assert isinstance(table, nn.EmbeddingBag)

    def forward(indices: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        starts = _starts(table, indices, offsets)
        every = of_all_ranks(indices.reshape(-1), (group,))
        # What makes ranks equal is empty bags, and then one with the indices that do so.
        bounds = of_all_ranks(functional.pad(starts, (0, 1), value=indices.numel()), (group,), indices.numel())
        first = torch.arange(group.size(), device=bounds.device)[:, None] * every.shape[1]
        weights = per_sample_weights
        if weights is not None:
            weights = gathered_rows(weights.reshape(-1, 1), group, weight=group.size()).reshape(-1)
        pooled = functional.embedding_bag(
            every.reshape(-1),
            _rows(table),
            (bounds + first).reshape(-1).to(every.dtype),
            mode=table.mode,
            sparse=table.sparse,
            per_sample_weights=weights,
            padding_idx=table.padding_idx,
        )
        return _whole(pooled.view(*bounds.shape, -1), starts.numel(), group)

    return forward


def _starts(table: nn.EmbeddingBag, indices: Tensor, offsets: Tensor | None) -> Tensor:
    """The place of the first index of each bag."""
    if indices.ndim == 2:
        return torch.arange(0, indices.numel(), indices.shape[1], device=indices.device)
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    return offsets[:-1] if table.include_last_offset else offsets


def _projecting(layer: Columns, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    """The forward pass of a linear layer: inputs of this rank's samples → their whole outputs."""

    def forward(inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1])
        every = gathered_rows(rows, group, weight=group.size())
        bias = None if layer.bias is None else _local(layer.bias)
        columns = functional.linear(every, _local(layer.weight), bias)
        return _whole(columns.view(group.size(), -1, columns.shape[1]), len(rows), group).view(*inputs.shape[:-1], -1)

    return forward


def _local(parameter: Any) -> Tensor:
    columns: Tensor = parameter.to_local()
    return columns


def _rows(table: Table) -> Tensor:
    """This rank's columns of all rows."""
    if not table.sparse:
        return _local(table.weight)
    columns: Tensor = _SparselyTrained.apply(table.weight)  # type: ignore[no-untyped-call]
    return columns


class _SparselyTrained(torch.autograd.Function):
    """The local part of a DTensor whose gradient has a sparse local part, which torch's autograd cannot accumulate."""

    @staticmethod
    def forward(ctx: Any, weight: DTensor) -> Tensor:
        ctx.weight = weight
        local = weight._local_tensor
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        weight = ctx.weight
        if weight.grad is None:
            weight.grad = DTensor(gradients[0], weight._spec, requires_grad=False)  # type: ignore[no-untyped-call]
        else:
            weight.grad._local_tensor.add_(gradients[0])


def _whole(columns: Tensor, num: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's ``num`` vectors, whole, from its columns of those of all ranks, shape [ranks, most, columns]."""
    # A loss is a mean over the samples of a rank, and that of a step a mean over ranks: gradients count for 1/n.
    parts = exchanged(columns, group, weight=1 / group.size())
    return parts[:, :num].movedim(0, 1).reshape(num, -1)
