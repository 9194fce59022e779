"""Embedding tables of which every data-parallel rank has some columns, while the rest of the model is whole (DLRM).

A rank looks up its columns for the samples of all ranks. An all-to-all then sends each rank all columns of its own
samples, and the gradients go the same way back; of a bag, the sum, mean or maximum is sent. So a table takes 1/n of its
memory on each of n ranks, its gradient is never added up over ranks, and all ranks do the same work, however unevenly
indices are spread.

Every rank must look up each table equally often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional

from workloads.parallel.exchanging.exchange import exchanged
from workloads.parallel.exchanging.gloo import gather
from workloads.parallel.forward_state.replaced import ReplacedForward
from workloads.protocol import Tables
from workloads.refusals import WorkloadError

Table = nn.Embedding | nn.EmbeddingBag


def tables_of(model: nn.Module) -> dict[str, Table]:
    """The embeddings and bags that ``model`` lets ranks divide, by name; empty if it says nothing.

    Raises ``WorkloadError`` for names without embeddings, and for embeddings that cannot be divided.
    """
    names = getattr(model, "divided_tables", None)
    if not isinstance(names, Tables):
        return {}
    tables: dict[str, Table] = {}
    for name in names.names:
        try:
            part = model.get_submodule(name)
        except AttributeError:
            raise WorkloadError(f"divided_tables names {name!r}, but the model has no such module") from None
        inside = {
            f"{name}.{path}" if path else name: module
            for path, module in part.named_modules()
            if isinstance(module, Table)
        }
        if not inside:
            raise WorkloadError(f"divided_tables names {name!r}, but there is no nn.Embedding or nn.EmbeddingBag in it")
        tables |= inside
    holders = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    for name, table in tables.items():
        if why := _refusal(table, holders[id(table.weight)] > 1):
            raise WorkloadError(f"{name} cannot be divided between ranks, {why}: take it out of divided_tables")
    return tables


def most_ranks(model: nn.Module) -> int:
    """The number that the ranks which divide the tables of ``model`` must divide; 1 if it says nothing."""
    return gcd(*(table.embedding_dim for table in tables_of(model).values())) or 1


def divide_tables(model: nn.Module, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Divide the tables of ``model`` over the ranks of the one-dimensional ``mesh``, in place.

    Returns their parameters. Raises ``ValueError`` for a model without such tables, or with columns that cannot be
    divided evenly.
    """
    tables, num_ranks = tables_of(model), mesh.size()
    if not tables:
        raise ValueError(
            f"{type(model).__name__} does not say which embedding tables are divided: give it an attribute "
            "`divided_tables`, a scamp.Tables, or use plans with tables=false"
        )
    divided: set[nn.Parameter] = set()
    for name, table in tables.items():
        if table.embedding_dim % num_ranks:
            raise ValueError(
                f"the {table.embedding_dim} columns of {name} cannot be divided evenly over {num_ranks} ranks: choose "
                "a number of ranks that divides them"
            )
        weight = table.weight
        columns = distribute_tensor(weight.detach(), mesh, [Shard(1)], src_data_rank=None)
        table.weight = parameter = nn.Parameter(columns, requires_grad=weight.requires_grad)
        look_up = _lookup if isinstance(table, nn.Embedding) else _pooling
        table.forward = ReplacedForward(look_up(table, mesh.get_group()), table.forward, "tables=false")  # type: ignore[method-assign]
        divided.add(parameter)
    return divided


def _refusal(table: Table, is_shared: bool) -> str:
    """Why a table cannot be divided; empty if it can."""
    if is_shared:
        return "as another module has the same weight"
    if table.sparse:
        return "as its gradients are sparse (sparse=True)"
    if table.max_norm is not None:
        return "as max_norm needs whole rows"
    return "as scale_grad_by_freq counts the samples of one rank" if table.scale_grad_by_freq else ""


def _lookup(table: Table, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    """The table's forward pass: indices of this rank's samples → their whole vectors."""

    def forward(indices: Tensor) -> Tensor:
        every = _of_all_ranks(indices.reshape(-1), group)
        columns = functional.embedding(every, _columns(table), table.padding_idx)
        return _whole(columns, indices.numel(), group).reshape(*indices.shape, -1)

    return forward


def _pooling(table: Table, group: dist.ProcessGroup) -> Callable[..., Tensor]:
    """The forward pass of a bag: indices of this rank's samples → the sum, mean or maximum of each one's vectors."""
    assert isinstance(table, nn.EmbeddingBag)

    def forward(indices: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        if per_sample_weights is not None and per_sample_weights.requires_grad:
            raise WorkloadError("weights of an nn.EmbeddingBag that are trained need whole vectors: use tables=false")
        starts = _starts(table, indices, offsets)
        every = _of_all_ranks(indices.reshape(-1), group)
        # What makes ranks equal is empty bags, and then one with the indices that do so.
        bounds = _of_all_ranks(functional.pad(starts, (0, 1), value=indices.numel()), group, fill=indices.numel())
        first = torch.arange(group.size(), device=bounds.device)[:, None] * every.shape[1]
        weights = None if per_sample_weights is None else _of_all_ranks(per_sample_weights.reshape(-1), group)
        pooled = functional.embedding_bag(
            every.reshape(-1),
            _columns(table),
            (bounds + first).reshape(-1).to(every.dtype),
            mode=table.mode,
            per_sample_weights=None if weights is None else weights.reshape(-1),
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


def _columns(table: Table) -> Tensor:
    weight: Any = table.weight
    columns: Tensor = weight.to_local()
    return columns


def _of_all_ranks(numbers: Tensor, group: dist.ProcessGroup, fill: int = 0) -> Tensor:
    """The numbers of all ranks, shape [ranks, most], filled up where a rank has fewer."""
    most = _largest(numbers.numel(), group, numbers)
    padded = functional.pad(numbers, (0, most - numbers.numel()), value=fill) if most > numbers.numel() else numbers
    every = numbers.new_empty(group.size() * most)
    gather(every, padded.contiguous(), group)
    return every.view(-1, most)


def _whole(columns: Tensor, num: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's ``num`` vectors, whole, from its columns of those of all ranks, shape [ranks, most, columns]."""
    # A loss is a mean over the samples of a rank, and that of a step a mean over ranks: gradients count for 1/n.
    parts = exchanged(columns, group, weight=1 / group.size())
    return parts[:, :num].movedim(0, 1).reshape(num, -1)


def _largest(num: int, group: dist.ProcessGroup, like: Tensor) -> int:
    """The largest of the numbers of all ranks, which differ at the end of an evaluation; in a trace there is one."""
    if isinstance(like, FakeTensor):
        return num
    most = torch.tensor(num, device=like.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return int(most)
