"""From a workload to a recipe that the tracer can follow: the same model, plan and step as a rank would run."""

from __future__ import annotations

import torch

from estimators.tracing.session import Recipe
from workloads.parallel.apply import apply_plan, rank_part, spread_optimizer
from workloads.protocol import Split, Workload
from workloads.training.step import train_step

_STEPS = 1000  # what ``on_step`` is told; the steps of the study are no part of the structure


def recipe_of(workload: Workload, on_cuda: bool = False) -> Recipe:
    return Recipe(
        build_model=workload.build_model,
        make_batch=lambda size: workload.train_batch(torch.arange(size) % workload.num_train),
        blocks=workload.blocks,
        apply_plan=apply_plan,
        optimizer=lambda model, layout, mesh: spread_optimizer(workload.optimizer(model), layout, mesh),
        begin_step=lambda step, optimizer: workload.on_step(step, _STEPS, optimizer),
        train_step=lambda model, optimizer, batches, num: train_step(workload, model, optimizer, batches, num),
        most_parts=_most_parts,
        rank_part=rank_part,
        on_cuda=on_cuda,
    )


def _most_parts(block: torch.nn.Module) -> int:
    split = getattr(block, "split", None)
    return split.most_parts if isinstance(split, Split) else 1
