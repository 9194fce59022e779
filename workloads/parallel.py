"""Spreads a model over ranks: recompute of its blocks, then FSDP2 sharding. The tracer calls it as the ranks do.

It holds no state and starts nothing: the process group and mesh are the caller's, real or fake.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from estimators.model import Layout


def apply_plan(model: nn.Module, blocks: Sequence[nn.Module], layout: Layout, mesh: DeviceMesh | None) -> nn.Module:
    """Change ``model`` in place, and return it. ``mesh`` has one dimension of ``layout.dp_shard`` ranks.

    Parameter names stay as they are. Call it on a model on the meta device (ranks) or of fake tensors (the tracer);
    on a model that holds memory, FSDP2 copies each shard out of it.
    """
    if layout.recompute:
        for block in blocks:
            # Inside FSDP's hooks, not around them: the all-gather before backward serves the recomputation too.
            # An attribute of the instance, not a wrapper module: names in checkpoints do not depend on the plan.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if layout.dp_shard > 1:
        if mesh is None or mesh.size() != layout.dp_shard:
            raise ValueError(f"{layout} needs a mesh of {layout.dp_shard} ranks, got {mesh}")
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model
