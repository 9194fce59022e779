"""One optimizer step, and one evaluation. Ranks run this code, and the tracer runs it on fake tensors, so there must be
no other copy.

``workloads.training.runtime`` does everything before them (indices, learning rate, random state) and after them
(reports).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_map_only

from scamp.workload.seeds import seed_everything
from workloads.parallel.agreement import begin_phase, finish
from workloads.parallel.exchanging.replicas import begin_last_pass, end_passes
from workloads.parallel.forward_state.snapshot import local_part
from workloads.parallel.forward_state.state import forward_state
from workloads.protocol import Batch, Chain, Outputs, Workload, defines
from workloads.refusals import WrongResult, explain_closure, explain_gradient_in_evaluation
from workloads.training.losses import StepLosses
from workloads.training.metrics import Sums, split_evaluation
from workloads.training.packs.pack import backward, evaluation
from workloads.training.updates.loss_scale import share_overflows
from workloads.training.updates.precision import autocast, low_types
from workloads.training.updates.update import updates_of


def train_step(
    workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: Iterable[Batch], num: int
) -> Tensor:
    """Run forward and backward of ``num`` micro-batches and update the model; returns this rank's mean loss, a scalar.

    In a pipeline the loss is 0 on every stage except the last.

    ``micro_batches`` should make each batch on demand, so that only one is alive at a time; every phase of the step
    asks for them again. The gradients are those of the mean over micro-batches and over ranks (which FSDP2 averages),
    however the batch is divided: losses of ranks with more samples count for more (``ForwardState.weight``). A loss
    that is a sum is divided by the counts of the whole batch, and the same on all ranks.
    """
    updates = updates_of(model)
    if updates.phased is None:
        return phase_step(workload, workload.loss, model, optimizer, micro_batches, num)
    updates.losses.clear()
    turns = updates.turns
    for number in turns:
        phase, updates.phased.turn = updates.phases[number], number
        begin_phase(model, phase.name)
        with forward_state(model).phase(phase.name):
            # The last one is the optimizer that the caller gave: a trace ends the passes there.
            phased = optimizer if number == turns[-1] else updates.phased
            updates.losses[phase.name] = phase_step(workload, phase.loss, model, phased, micro_batches, num)
    begin_phase(model, "")
    return torch.stack(list(updates.losses.values())).sum() if turns else torch.zeros(())


def phase_step(
    workload: Workload,
    loss_of: Callable[[nn.Module, Batch], Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Iterable[Batch],
    num: int,
) -> Tensor:
    """``train_step`` for one loss, which is that of a phase or of all the step."""
    state, updates = forward_state(model), updates_of(model)
    losses = StepLosses(loss_of, updates.loss_factor(num), state.weight, updates.scale_of_sums)
    asks = False
    if isinstance(model, Chain) and model.place is not None:
        from workloads.parallel import pipeline  # imported late, as it takes a second

        pipeline.run_passes(loss_of, model, micro_batches, num, losses.add, partial(autocast, workload, model))
        asks = updates.loss_is_sum is not False
    else:
        for number, batch in enumerate(micro_batches, 1):
            if number == num:
                begin_last_pass(model)
            with state.micro_batch(batch, num):
                with autocast(workload, model):
                    returned = loss_of(model, batch)
                if not state.is_known:
                    updates.low_types |= low_types(returned[0] if isinstance(returned, tuple) else returned)
                losses.factor = updates.loss_factor(num) * updates.part(num)
                loss = losses.add(returned)
                del returned
                backward(model, loss)
            del batch, loss  # otherwise they are still alive while the next batch is made
    end_passes(model)
    finish(model)
    state.end_step()
    divisor = losses.divisor(num, updates.world, asks=asks) * updates.part(num)
    updates.loss_is_sum = losses.is_sum
    if updates.part(num) != 1:
        share_overflows(model.parameters(), updates.num_shares, updates.world)
    if divisor != 1:  # not the loss: users' autograd functions may give gradients that do not depend on its scale
        for parameter in model.parameters():
            if parameter.grad is not None:
                local_part(parameter.grad).div_(divisor)
    with _explained(explain_closure):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    model.zero_grad(set_to_none=True)  # also what no optimizer has: it would grow with each step, and no resume has it
    return losses.mean()


def evaluate(
    workload: Workload,
    model: nn.Module,
    micro_batches: Iterable[tuple[Batch, Tensor]],
    collect: Callable[[Outputs, Tensor], None] | None = None,
) -> Sums:
    """Evaluate the model on micro-batches; returns the sums of its metrics, in a pipeline on the last stage only.

    The model is the same afterwards. Attention is computed as in training: torch's faster layers for evaluations return
    shorter sequences where padding is masked, and take other memory. Each micro-batch comes with a mask of the samples
    that count, shape [n]. They should be made on demand, so that only one is alive at a time. ``collect`` takes the
    outputs of each, with its mask.
    """
    sums = Sums()
    has_metrics = not isinstance(model, Chain) or model.is_last
    with _evaluating(model), evaluation(model):
        for batch, counted in micro_batches:
            evaluated = _evaluation_result(workload, model, batch)
            if has_metrics:
                metrics, outputs = split_evaluation(workload, evaluated)
                sums.add(metrics, counted)
                if collect is not None:
                    collect(outputs, counted)
                del metrics, outputs
            del batch, evaluated  # otherwise they are still alive while the next batch is made
    return sums


def illustrate(workload: Workload, model: nn.Module, step: int, seed: int = 0) -> None:
    """Let the workload show what its model has learned after ``step`` steps, if it wants to.

    All ranks call it, and draw the same random numbers. The model is the same afterwards.
    """
    if not defines(workload, "illustrate"):
        return
    seed_everything((seed, -2), workload)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with _evaluating(model), forward_state(model).unchanged(None), autocast(workload, model), device:
        workload.illustrate(model, step)
    finish(model)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, with averaged weights if there are any, without gradients."""
    model.eval()
    try:
        explained = _explained(explain_gradient_in_evaluation)
        with explained, without_gradients(model), updates_of(model).averaged(model), layers_of_training():
            yield
    finally:
        model.train()  # now, because users' ``train`` may change parameters


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Passes that no backward pass follows."""
    try:
        with torch.no_grad():
            yield
    finally:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # the root keeps gathered parameters after forward, for a backward that never runs


@contextmanager
def _explained(mistake_of: Callable[[Exception], WrongResult | None]) -> Iterator[None]:
    """Raise the mistake of the user that an error shows here, where it is known what runs, in place of the error."""
    try:
        yield
    except Exception as error:
        if (mistake := mistake_of(error)) is not None:
            raise mistake from error
        raise


@contextmanager
def layers_of_training() -> Iterator[None]:
    """Attention by the same operations as in training, also in evaluation mode.

    Evaluations of one process may overlap: the last one to end restores what the first one has found.
    """
    _found.append(torch.backends.mha.get_fastpath_enabled())
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        first, _ = _found[0], _found.pop()
        if not _found:
            torch.backends.mha.set_fastpath_enabled(first)


_found: list[bool] = []  # by each evaluation that runs


def _evaluation_result(workload: Workload, model: nn.Module, batch: Batch) -> Any:
    """The result of the workload's ``evaluate``; in a pipeline an empty dictionary on all stages but the last."""
    with forward_state(model).unchanged(batch):
        if isinstance(model, Chain) and model.place is not None:
            from workloads.parallel import pipeline

            evaluated = pipeline.evaluate_pipeline(workload, model, batch, partial(autocast, workload, model))
        else:
            with autocast(workload, model):
                evaluated = workload.evaluate(model, batch)
    finish(model)
    return evaluated


def to_device(batch: Batch, device: torch.device, *, copy: bool = False) -> Batch:
    """The batch with its tensors on ``device``; tensors that are there already are copied only if ``copy``."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device, copy=copy), batch)
