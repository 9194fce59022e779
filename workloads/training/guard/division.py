"""Repeats passes of a step with the batch divided differently, and compares the loss and the gradients.

Losses that compare samples, means over something else than samples, and hooks that change gradients train another curve
under plans that divide a batch. No list of such code is complete, so it is measured, on the training itself. Nothing is
updated, and the model and the workload are the same afterwards. Norms over samples and dropout are left out: they
depend on the division as documented.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from workloads.datasets import is_iterable, opened_dataset
from workloads.parallel.agreement import begin_phase
from workloads.parallel.forward_state.state import forward_state
from workloads.protocol import Batch, defines
from workloads.refusals import in_enough_digits
from workloads.seeds import drawn_from, kept_generators, seed_everything
from workloads.training.attempt.rank import TrainingRank
from workloads.training.checkpoints.kept import KeptState
from workloads.training.guard.dealing import Dealing, dealt
from workloads.training.guard.sketch import sketches
from workloads.training.step import phase_step
from workloads.training.updates.precision import options_of
from workloads.training.updates.update import updates_of

_LEAST_LOSS = 1e-3
"""Loss for which the tolerance is meant: one that is smaller may be the difference of larger numbers."""
_MOST_KEPT = 2**20
"""Bytes of a tensor that the workload holds and that is copied, as its loss may change it in place."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest relative differences that count as rounding: of the loss, and of the gradient of one parameter.

    A parameter's gradient may also differ by ``share`` of that of the whole model.
    """

    loss: float
    gradient: float
    share: float


EXACT = Tolerance(loss=1e-4, gradient=2e-3, share=1e-4)
"""In fp32. Chosen, not measured: see docs/decisions/0021-checked-divisions.md."""
COARSE = Tolerance(loss=2e-2, gradient=1e-1, share=2e-2)
"""Where passes compute in bf16 or fp16. Chosen, not measured."""


class DependsOnDivision(Exception):
    """The loss or the gradients depend on how a batch is divided; the message says where."""


@dataclass(frozen=True, slots=True)
class _Passes:
    """The loss of this rank, and a sketch of the gradient of each parameter.

    ``draws``: the loss draws random numbers; ``keeps``: passes leave something in attributes for later ones.
    """

    loss: Tensor
    gradients: Tensor
    draws: bool
    keeps: bool


class DivisionGuard:
    """Compares two divisions of a batch on one rank of a gang; all ranks call it."""

    def __init__(self, rank: TrainingRank) -> None:
        self._rank = rank
        self._leaves_out_all = False  # all modules are in evaluation mode, as a function may drop out
        low = options_of(rank.workload).precision != "fp32" or any(
            parameter.dtype in (torch.bfloat16, torch.float16) for parameter in rank.model.parameters()
        )
        self._tolerance = COARSE if low else EXACT
        self.gives_up = _why_not(rank)
        """Why nothing can be compared; empty if it can."""

    def check(self, step: int) -> None:
        """Compare with samples of optimizer step ``step``. Raises ``DependsOnDivision`` on every rank."""
        rank = self._rank
        if self.gives_up:
            return
        dealing = dealt(rank.job.plan, rank.number, hash((rank.job.seed, step)))
        updates = updates_of(rank.model)
        phases = [(phase.name, phase.loss) for phase in updates.phases] or [("", rank.workload.loss)]
        for name, loss in phases:
            begin_phase(rank.model, name)
            if difference := self._difference(loss, name, step, dealing):
                raise DependsOnDivision(difference)
        begin_phase(rank.model, "")
        updates.losses.clear()

    def _difference(self, loss: Any, phase: str, step: int, dealing: Dealing) -> str:
        planned = self._passes(loss, step, dealing.planned, dealing.weight)
        if self._rank.any(planned.draws) and not self._leaves_out_all:
            self._leaves_out_all = True
            planned = self._passes(loss, step, dealing.planned, dealing.weight)
        if self._rank.any(planned.draws):
            self.gives_up = "the loss draws random numbers"
            return ""
        other = self._passes(loss, step, dealing.other, dealing.weight)
        words = self._different(planned, other)
        if not words and self._rank.any(planned.keeps):  # which shows in the step after
            ways = (dealing.planned, dealing.other)
            words = self._different(*(self._passes(loss, step, way, dealing.weight, repeats=2) for way in ways))
        of_phase = f" of the phase {phase}" if phase else ""
        return words and f"{words} in step {step + 1}{of_phase} when {dealing.words}"

    def _different(self, planned: _Passes, other: _Passes) -> str:
        """Words for a difference, which all ranks get; empty if there is none."""
        of_gradient = self._different_gradient(planned.gradients, other.gradients)
        of_loss = self._different_loss(planned, other)  # in any case, as all ranks must take part
        return self._first(of_gradient or of_loss)

    def _different_loss(self, planned: _Passes, other: _Passes) -> str:
        rank, plan = self._rank, self._rank.job.plan
        mine = torch.stack([planned.loss.double().cpu(), other.loss.double().cpu()])
        before, after = (rank.sum(mine) * (plan.pp / plan.world_size)).tolist()
        if not abs(after - before) > self._tolerance.loss * max(abs(before), abs(after), _LEAST_LOSS):
            return ""
        first, second = in_enough_digits(before, after)
        return f"the loss changes from {first} to {second}"

    def _different_gradient(self, planned: Tensor, other: Tensor) -> str:
        layout = self._rank.job.plan.layout
        if (layout.zero1 or layout.adasum) and self._rank.mesh is not None:
            for gradients in (planned, other):  # not averaged yet
                dist.all_reduce(gradients)
        difference, size = (planned - other).norm(dim=1), torch.maximum(planned.norm(dim=1), other.norm(dim=1))
        allowed = self._tolerance.gradient * size + self._tolerance.share * size.norm()
        excess = torch.where(allowed > 0, difference / allowed, 0.0)
        if not bool((excess > 1).any()):  # also where a number is not finite, which proves nothing
            return ""
        place = int(excess.argmax())
        name = [name for name, _ in self._rank.model.named_parameters()][place]
        percent = 100 * float(difference[place] / size[place])
        return f"the gradient of {name} changes by {percent:.2g} %"

    def _first(self, words: str) -> str:
        """The words of the first rank that has any."""
        rank = self._rank
        if not rank.any(bool(words)) or rank.mesh is None:
            return words
        listed: list[str] = [""] * rank.job.plan.world_size
        dist.all_gather_object(listed, words)
        return next(filter(None, listed))

    def _passes(self, loss: Any, step: int, parts: Sequence[Tensor], weight: float, repeats: int = 1) -> _Passes:
        """The last passes of micro-batches with the samples at these places of a step, which are repeated."""
        rank = self._rank
        model, probe = rank.model, _Probe(rank.model)
        optimizer = cast(torch.optim.Optimizer, probe)
        with kept_generators(rank.workload), self._unchanged(weight):
            kept = KeptState(rank.workload, model)
            for _ in range(repeats):
                batches = list(rank.feed.parts(step, parts))
                seed_everything((rank.job.seed, step, rank.job.plan.data_rank(rank.number)), rank.workload)
                before = drawn_from(rank.workload)
                on_device = rank.all_on_device(_emptied(batches))
                own_loss = phase_step(rank.workload, loss, model, optimizer, on_device, len(parts))
            draws = drawn_from(rank.workload) != before
            factor = updates_of(model).loss_factor(len(parts))
            keeps = kept.has_changed
        return _Passes(own_loss.detach() * weight, probe.gradients / factor, draws, keeps)

    @contextmanager
    def _unchanged(self, weight: float) -> Iterator[None]:
        """The model without what depends on the division as documented; all is as before at the end."""
        rank, model = self._rank, self._rank.model
        state, kept = forward_state(model), _Kept(rank.workload)
        modes = [(module, module.training) for module in model.modules()]
        dropouts: list[tuple[Any, float]] = [
            (module, module.dropout)
            for module in model.modules()
            if isinstance(module, nn.RNNBase | nn.MultiheadAttention)
        ]
        parameters = [(parameter, parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
        for parameter, _, _ in parameters:  # those that no optimizer has keep their gradients, of all steps
            parameter.grad = None
        former_weight, state.weight = state.weight, weight
        try:
            for module in model.modules():
                module.training = module.training and not self._leaves_out_all and not _is_left_out(module)
            for module, _ in dropouts:
                module.dropout = 0.0
            with state.unchanged(None):
                yield
        finally:
            state.weight = former_weight
            for module, dropout in dropouts:
                module.dropout = dropout
            for module, mode in modes:
                module.training = mode
            for parameter, requires, gradient in parameters:
                parameter.grad = gradient
                parameter.requires_grad_(requires)
            kept.restore()


def _why_not(rank: TrainingRank) -> str:
    """Why the batch of a training is not divided differently; empty if it can be."""
    workload, plan = rank.workload, rank.job.plan
    if not any(layout.divides_batch for layout in plan.layouts):
        return "the plan does not divide a batch"
    if plan.micro_batch == 1:
        return "micro-batches of one sample cannot be divided"
    if workload.accepts_parts:
        return "the workload accepts parts of a batch"
    if defines(workload, "dataset") and is_iterable(opened_dataset(workload, "train")):
        return "its samples can only be read in order"
    return ""


class _Probe:
    """Stands for the optimizer: it sketches the gradients instead of an update."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.gradients = torch.empty(0)

    def step(self) -> None:
        """Keep sketches of the gradients."""
        self.gradients = sketches(self._model.parameters())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        for parameter in self._model.parameters():
            parameter.grad = None


def _emptied(batches: list[Batch]) -> Iterator[Batch]:
    """The batches, each let go of when it is taken."""
    batches.reverse()
    while batches:
        yield batches.pop()


def _is_left_out(module: nn.Module) -> bool:
    return isinstance(module, _NormBase | _DropoutNd) or "running_mean" in module._buffers


class _Kept:
    """The attributes of a workload, with copies of what its loss may change in place."""

    def __init__(self, workload: object) -> None:
        self._workload, self._attributes = workload, dict(vars(workload))
        values = list(self._attributes.values())
        self._lists = [(value, copy.copy(value)) for value in values if isinstance(value, list | dict | set | deque)]
        small = (value for value in values if isinstance(value, Tensor) and value.nbytes <= _MOST_KEPT)
        self._tensors = [(tensor, tensor._version, tensor.detach().clone()) for tensor in small]

    def restore(self) -> None:
        """Bring them back."""
        vars(self._workload).clear()
        vars(self._workload).update(self._attributes)
        for value, before in self._lists:
            value.clear()
            (value.extend if isinstance(value, list | deque) else value.update)(before)
        for tensor, version, earlier in self._tensors:
            if tensor._version != version:
                tensor.data.copy_(earlier)
