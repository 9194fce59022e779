"""One optimizer step, as every rank runs it and as the tracer replays it on fake tensors: keep it the only copy.

What goes before it (indices, learning rate, random state) and after it (reports) is in ``workloads.training.runtime``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from workloads.protocol import Batch, Chain, Workload


def train_step(
    workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: Iterable[Batch], num: int
) -> Tensor:
    """Forward and backward of ``num`` micro-batches, then the update; returns this rank's mean loss, a scalar.

    In a pipeline it is 0 on all stages but the last.

    ``micro_batches`` should make each batch when it is asked for, so that one is alive at a time. Gradients are those
    of the mean over micro-batches (and over ranks, which FSDP2 averages), whatever the split.
    """
    if isinstance(model, Chain) and model.place is not None:
        from workloads.parallel import pipeline  # which takes a second to import

        losses = pipeline.run_passes(workload, model, micro_batches, num)
    else:
        losses = []
        for batch in micro_batches:
            loss = workload.loss(model, batch) / num
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            del batch, loss  # else they outlive the making of the next batch
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return torch.stack(losses).sum() if losses else torch.zeros(())


def evaluate(workload: Workload, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """The workload's metrics of every sample; in a pipeline on its last stage only."""
    if isinstance(model, Chain) and model.place is not None:
        from workloads.parallel import pipeline

        return pipeline.evaluate(workload, model, batch)
    return workload.evaluate(model, batch)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on ``device``; the same tensors where they are there already."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)
