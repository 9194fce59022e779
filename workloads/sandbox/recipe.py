"""Turns a workload into a recipe for the tracer: the same model, plan and step that a rank runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from estimators.model import Divisions, Layout
from estimators.tracing.device import device_for
from estimators.tracing.session.recipe import Evaluate, Recipe
from scamp.workload.datasets import SetName
from workloads.function import FunctionWorkload
from workloads.parallel.apply import apply_plan, rank_part
from workloads.parallel.constraints import with_reduction
from workloads.parallel.divisions import divisions_of
from workloads.parallel.exchanging.divided import divisible_layers
from workloads.parallel.forward_state.state import forward_state
from workloads.parallel.tp_plan.notation import described
from workloads.parallel.traits import traits_of
from workloads.protocol import Batch, Split, Workload, defines
from workloads.refusals import expect_counts, expect_no_scaler, is_of_plan
from workloads.sandbox.drawn_samples import largest_first
from workloads.training.data.batch_transform import step_batch, traced_batch, varies
from workloads.training.outline import model_of
from workloads.training.step import evaluate, illustrate, train_step
from workloads.training.updates.precision import mixed_precision_of, options_of
from workloads.training.updates.update import kept_of, make_optimizer, updates_of
from workloads.unfreezing import unfreezes

_STEPS = 1000  # passed to ``on_step`` and ``scheduler``; the length of a study does not change the structure of a step


def recipe_of(workload: Workload, on_cuda: bool = False) -> Recipe:
    """The tracer's recipe for ``workload``; ``on_cuda`` traces the step as it runs on CUDA.

    Raises ``WorkloadError`` if it has no samples, or scales its loss.
    """
    expect_counts(workload)
    expect_no_scaler(workload)
    precision = mixed_precision_of(workload)
    largest = cache(lambda: largest_first(workload, "train"))

    return Recipe(
        build_model=lambda: described(workload, _model_of(workload)),
        make_batch=_batches(workload, "train", largest),
        blocks=workload.blocks,
        apply_plan=partial(apply_plan, precision=precision),
        optimizer=partial(_optimizer_of, workload),
        begin_step=lambda step, optimizer: workload.on_step(step, _STEPS, optimizer),
        train_step=lambda model, optimizer, batches, num: train_step(workload, model, optimizer, batches, num),
        unfreezes=unfreezes(workload),
        make_evaluation=None if isinstance(workload, FunctionWorkload) else lambda: _evaluation_of(copy(workload)),
        is_of_plan=is_of_plan,
        make_evaluation_batch=_batches(workload, "eval", cache(lambda: largest_first(workload, "eval"))),
        most_parts=_most_parts,
        divisible=lambda model: {each for layer in divisible_layers(model) for each in layer.parameters()},
        divisions=lambda model, blocks: _divisions_of(workload, model, blocks),
        rank_part=rank_part,
        kept_of=kept_of,
        is_uneven=lambda: largest() is not None or varies(workload),
        sent_bytes=precision.sent_bytes if precision is not None else (4, 4),
        device=device_for(on_cuda=on_cuda),
        num_copied=lambda model: forward_state(model).num_copied,
        traits=traits_of,
    )


def _model_of(workload: Workload) -> nn.Module:
    """The workload's model; a copy of one that it has made before, as the tracer changes it."""
    before = list(vars(workload).values())
    model = model_of(workload)
    return deepcopy(model) if any(value is model for value in before) else model


def _optimizer_of(workload: Workload, model: nn.Module, layout: Layout, mesh: DeviceMesh | None) -> Optimizer:
    """The optimizer of a step in which every phase has a turn."""
    optimizer = make_optimizer(workload, model, layout, mesh, _STEPS)
    updates_of(model).has_every_phase = True
    return optimizer


def _evaluation_of(workload: Workload) -> Evaluate:
    """A function that evaluates; ``workload`` may keep fake tensors, so it must be a copy."""

    def run(model: nn.Module, batches: Iterable[Batch], num_samples: int) -> Callable[[], None]:
        counted = torch.ones(num_samples, dtype=torch.bool)
        evaluate(workload, model, ((batch, counted) for batch in batches))
        return lambda: illustrate(workload, model, 0)

    return run


def _batches(workload: Workload, split: SetName, largest: Callable[[], Tensor | None]) -> Callable[[int], Batch]:
    """A function that makes batches of the ``largest`` samples of a set. Those of data sets, slow to read, are kept."""
    make = partial(traced_batch, workload) if split == "train" else workload.eval_batch

    def batch(size: int) -> Batch:
        indices, places = largest(), torch.arange(size)
        num = workload.num_train if split == "train" else workload.num_eval
        return make(places % num if indices is None else indices[places % len(indices)])

    return cache(batch) if defines(workload, "dataset") else batch


def _divisions_of(workload: Workload, model: nn.Module, blocks: Sequence[nn.Module]) -> Divisions:
    divisions = divisions_of(model, blocks, step_batch(workload, torch.arange(1)))
    return replace(divisions, constraints=with_reduction(divisions.constraints, options_of(workload)))


def _most_parts(block: nn.Module) -> int:
    split = getattr(block, "split", None)
    return (split.most_parts or 1) if isinstance(split, Split) else 1
