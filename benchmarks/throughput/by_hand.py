"""The training of a workload as one writes it without ScaMP: a loop over a ``DataLoader``, with torch's DDP or FSDP.

It has what ordinary loops have: a schedule, clipping, autocast, and the loss of each step as a number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from estimators.model import Plan
from workloads.protocol import Workload


def train_by_hand(workload: Workload, plan: Plan, rank: int, steps: int) -> list[float]:
    """Processor time in seconds at the end of each step, of one rank; its process group exists if there are several."""
    torch.manual_seed(0)
    params = workload.params
    model = _spread(workload, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = _batches(workload, plan, rank)
    ends: list[float] = []
    losses: list[float] = []
    for _ in range(steps):
        total = 0.0
        optimizer.zero_grad()
        for number in range(plan.num_micro_batches):
            batch = next(batches)
            is_last = number == plan.num_micro_batches - 1
            with model.no_sync() if isinstance(model, DistributedDataParallel) and not is_last else nullcontext():
                bf16 = params.get("precision") == "bf16"
                with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
                    loss = workload.loss(model, batch) / plan.num_micro_batches
                loss.backward()
            total += loss.item()
        if params.get("clip_norm"):
            nn.utils.clip_grad_norm_(model.parameters(), params["clip_norm"])
        optimizer.step()
        scheduler.step()
        losses.append(total)
        ends.append(time.process_time())
    return ends


def _spread(workload: Workload, plan: Plan) -> nn.Module:
    model = workload.build_model()
    if plan.dp_replicate > 1:
        return DistributedDataParallel(model)
    if plan.dp_shard > 1:
        mesh = dist.init_device_mesh("cpu", (plan.dp_shard,))
        for block in workload.blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def _batches(workload: Workload, plan: Plan, rank: int) -> Iterator[Any]:
    samples = workload.dataset("train")
    ranks = DistributedSampler(samples, plan.world_size, rank) if plan.world_size > 1 else RandomSampler(samples)
    loader = DataLoader(samples, plan.micro_batch, sampler=ranks, num_workers=workload.num_workers, drop_last=True)
    while True:
        yield from loader
