"""Spreads a model over ranks: its stage of a pipeline, tensor parallelism and recompute of its blocks, FSDP2 sharding,
and its optimizer after it.

The tracer calls it as the ranks do. It holds no state and starts nothing: the process group and mesh are the caller's,
real or fake.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from estimators.axes import Spread
from estimators.model import Layout
from workloads.parallel.chain import cut
from workloads.parallel.co_shard import compute_in_parts
from workloads.parallel.recompute import recomputed
from workloads.parallel.spatial import slab, split_space
from workloads.parallel.tensor_parallel import grouped_by_mesh, split_layers, split_sequences
from workloads.protocol import Batch, Place


def apply_plan(model: nn.Module, blocks: Sequence[nn.Module], layout: Layout, mesh: DeviceMesh | None) -> nn.Module:
    """Change ``model`` in place, and return it. ``mesh`` has the dimensions of ``layout.mesh``.

    Parameter names stay as they are. Call it on a model on the meta device (ranks) or of fake tensors (the tracer);
    on a model that holds memory, FSDP2 copies each shard out of it. Raises ``ValueError`` for blocks that cannot be
    divided so.
    """
    if layout.mesh and (mesh is None or mesh.size() != layout.world_size):
        raise ValueError(f"{layout} needs a mesh of {layout.world_size} ranks, got {mesh}")
    if mesh is not None and layout.stage is not None:
        blocks = cut(model, Place(layout.stage, mesh.get_group("pp")))
    if mesh is not None and layout.tp > 1:
        split_layers(blocks, mesh["tp"], sequence=layout.sequence_parallel)
    if mesh is not None and layout.spatial > 1:
        split_space(model, mesh["spatial"])
    if layout.co_shard > 1:
        compute_in_parts(blocks, layout.co_shard)
    if layout.recompute:
        for block in blocks:
            # Inside FSDP's hooks, not around them: the all-gather before backward serves the recomputation too.
            # An attribute of the instance, not a wrapper module: names in checkpoints do not depend on the plan.
            block.forward = recomputed(block.forward, selective=layout.selective)
    if mesh is not None and layout.fsdp_mesh:
        shards = mesh[layout.fsdp_mesh]
        for module in (*blocks, model):
            # By default all but the outermost give back after a forward pass what they have gathered for it.
            fully_shard(module, mesh=shards, reshard_after_forward=None if layout.reshard else False)
    if mesh is not None and layout.sequence_parallel:
        split_sequences(blocks, mesh["tp"])
    return model


def spread_optimizer(optimizer: Optimizer, layout: Layout, mesh: DeviceMesh | None) -> Optimizer:
    """The new ``optimizer`` of a model to which ``layout`` was applied, as its ranks use it."""
    if mesh is not None and layout.zero1:
        from workloads.parallel.zero1 import ZeroOptimizer  # which takes half a second to import

        zero: Optimizer = ZeroOptimizer(optimizer, mesh.get_group("replicate"))
        return zero
    return grouped_by_mesh(optimizer)


def rank_part(model: nn.Module, batch: Batch, spread: Spread, rank: int = 0) -> Batch:
    """The part of each sample of ``batch`` that ``rank`` computes."""
    if spread.spatial > 1:
        return slab(model, batch, spread.coordinate(rank, "spatial"), spread.spatial)
    return batch
