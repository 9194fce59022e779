"""Finds losses and metrics that depend on how a batch is divided: those that are no means over samples.

A loss may couple the samples of a batch (negatives within the batch, a penalty for uneven experts), be a sum, or be a
mean over something else (tokens that count, weights of classes). Micro-batches and ranks would then train another
curve, and nobody would notice. So the loss of a few samples is compared with the mean loss of their two halves, and the
metrics as well. Both run in double precision, where rounding hides nothing.

Models are in training mode, as a loss may be another one there, but for what depends on the batch as documented: norms
over samples, and dropout.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map_only

from workloads.parallel.forward_state.snapshot import ModuleSnapshot, attributes_of, may_be_state
from workloads.protocol import Batch, Loss, Workload
from workloads.refusals import WorkloadError
from workloads.seeds import drawn_from, seed_everything
from workloads.training.metrics import as_pair, split_evaluation
from workloads.training.outline import outline_of
from workloads.training.step import layers_of_training
from workloads.training.updates.phases import phases_of

log = logging.getLogger("scamp.tracing")

MOST_FLOPS = 6e10
"""Most FLOPs of all passes of a check. A workload that needs more is not checked."""
MOST_PARAMETERS = 50_000_000
NUM_SAMPLES = (16, 8, 4, 2)
"""As many as ``MOST_FLOPS`` allow: few samples may all have the same length or class, which hides a difference."""
_PASSES = 5
"""Passes of all samples: as a whole, as halves, and a few more times the first half."""
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest relative difference that counts as rounding; in double precision single operations may still be in float."""
_LEAST = 1e-3
"""Loss for which the tolerance is meant: one that is smaller may be the difference of larger numbers."""
_ADVICE = "or set accepts_parts = True"

LossOf = Callable[[nn.Module, Batch], Loss]


@dataclass(frozen=True, slots=True)
class _Ratio:
    """A mean, or a sum and what it is divided by."""

    total: float
    count: float

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else math.nan

    def with_other(self, other: _Ratio) -> float:
        """That of the samples of both."""
        return _Ratio(self.total + other.total, self.count + other.count).value


def why_whole(workload: Workload, flops: float = 0.0) -> str:
    """Why ranks and micro-batches may not divide a batch of this workload; empty if they may, or if nobody can tell.

    ``flops`` are those of a forward pass of one sample. Nobody can tell for models that are too large to be run here,
    and for losses that draw random numbers. A workload that ``accepts_parts`` is not asked.
    """
    return _first_finding(_difference_of_losses, workload, flops, workload.num_train)


def expect_metrics_of_samples(workload: Workload, flops: float = 0.0) -> None:
    """Raise ``WorkloadError`` if a mean of a metric over some samples is not the mean over their halves.

    It is not raised where nobody can tell (see ``why_whole``).
    """
    if difference := _first_finding(_difference_of_metrics, workload, flops, workload.num_eval):
        raise WorkloadError(difference)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A model that is run with ``num`` samples and their halves, in the precision ``dtype``."""

    workload: Workload
    model: nn.Module
    num: int
    dtype: torch.dtype

    def batches(self, make: Callable[[Tensor], Batch]) -> tuple[Batch, Batch, Batch]:
        """All samples and their halves, as ranks make them: each by itself, or parts of one where it is random."""
        indices, middle = torch.arange(self.num), self.num // 2
        seed_everything(0, self.workload)
        before = drawn_from(self.workload)
        batch = make(indices)
        if drawn_from(self.workload) == before:
            return batch, make(indices[:middle]), make(indices[middle:])
        return batch, _part(batch, slice(middle)), _part(batch, slice(middle, None))

    def draws(self, loss: LossOf, batch: Batch) -> bool:
        """Whether a loss draws random numbers from a generator that the workload knows."""
        with self._running():
            before = drawn_from(self.workload)
            loss(self.model, self._cast(batch))
            return drawn_from(self.workload) != before

    def value(self, loss: LossOf, batch: Batch) -> _Ratio:
        """The loss of a batch."""
        with self._running():
            return _ratio(loss(self.model, self._cast(batch)))

    def value_again(self, loss: LossOf, batch: Batch) -> tuple[_Ratio, list[str]]:
        """The loss of a batch that comes a second time, and the attributes of the workload that the first time set."""
        with self._running():
            before = dict(vars(self.workload))
            with _unchanged(self.model):
                loss(self.model, self._cast(batch))
            changed = [name for name, value in vars(self.workload).items() if _is_other(before.get(name), value)]
            seed_everything(0, self.workload)
            return _ratio(loss(self.model, self._cast(batch))), changed

    def metrics(self, batch: Batch) -> dict[str, _Ratio]:
        """The mean of each metric over the samples of a batch; empty if they depend on random numbers."""
        with self._running(), torch.no_grad(), layers_of_training():
            before = drawn_from(self.workload)
            values, _ = split_evaluation(self.workload, self.workload.evaluate(self.model, self._cast(batch)))
            if drawn_from(self.workload) != before:
                return {}
        return {name: _ratio(value) for name, value in values.items()}

    def are_close(self, value: float, other: float, scale: float = 0.0) -> bool:
        """Whether two numbers are equal but for rounding; a number that is not finite proves nothing."""
        return not abs(value - other) > _TOLERANCES[self.dtype] * max(abs(value), abs(other), scale, _LEAST)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Seeded generators, and a model and workload that stay as they were; a penalty of gradients needs a graph."""
        seed_everything(0, self.workload)
        attributes, default_dtype = dict(vars(self.workload)), torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with torch.enable_grad(), _unchanged(self.model):
                yield
        finally:
            torch.set_default_dtype(default_dtype)
            vars(self.workload).clear()
            vars(self.workload).update(attributes)

    def _cast(self, batch: Batch) -> Batch:
        return tree_map_only(
            Tensor,
            lambda tensor: tensor.to(self.dtype, copy=True) if tensor.is_floating_point() else tensor.clone(),
            batch,
        )


def _first_finding(check: Callable[[_Comparison], str], workload: Workload, flops: float, available: int) -> str:
    """Words of what ``check`` finds in double precision, or in that of the model where it runs in no other."""
    fitting = [num for num in NUM_SAMPLES if num <= available and _PASSES * num * flops <= MOST_FLOPS]
    num_parameters = sum(parameter.numel() for parameter in outline_of(workload).parameters())
    if workload.accepts_parts or not fitting or num_parameters > MOST_PARAMETERS:
        return ""
    for dtype in _TOLERANCES:
        try:
            seed_everything(0, workload)
            return check(_Comparison(workload, workload.build_model().to(dtype), fitting[0], dtype))
        except Exception:  # a trace explains it
            log.debug("whether the loss and the metrics are means over samples cannot be found out", exc_info=True)
    return ""


def _difference_of_losses(comparison: _Comparison) -> str:
    phases = {f"the loss of phase {phase.name}": phase.loss for phase in phases_of(comparison.workload)}
    batch, *halves = comparison.batches(comparison.workload.train_batch)
    for name, loss in (phases or {"the loss": comparison.workload.loss}).items():
        _train(comparison.model)
        if comparison.draws(loss, halves[0]):  # such as dropout by a function
            comparison.model.eval()
        if difference := _difference_of_loss(comparison, name, loss, batch, halves):
            return difference
    return ""


def _difference_of_loss(comparison: _Comparison, name: str, loss: LossOf, batch: Batch, halves: Sequence[Batch]) -> str:
    first = comparison.value(loss, halves[0])
    again, changed = comparison.value_again(loss, halves[0])
    if not comparison.are_close(first.value, again.value):
        kept = " and ".join(f"self.{attribute}" for attribute in changed) or "something"
        return (
            f"{name} is {first.value:.5g}, and {again.value:.5g} when it is called again with the same samples: it "
            f"keeps {kept} between calls, which micro-batches and ranks would change. Keep nothing in the workload, "
            f"{_ADVICE}"
        )
    if comparison.draws(loss, halves[0]):
        return ""  # these numbers depend on the division, too
    of_all = comparison.value(loss, batch)
    mean = first.with_other(comparison.value(loss, halves[1]))
    if comparison.are_close(mean, of_all.value, abs(first.value)):
        return ""
    return (
        f"{name} of {comparison.num} samples is {of_all.value:.5g}, but the mean over their halves {mean:.5g}, so "
        "micro-batches and ranks would change it. If it is divided by tokens or weights, return the sum and what it is "
        f"divided by; else give the batch one device, average within samples first, {_ADVICE}"
    )


def _difference_of_metrics(comparison: _Comparison) -> str:
    comparison.model.eval()
    undivided, first, second = (
        comparison.metrics(batch) for batch in comparison.batches(comparison.workload.eval_batch)
    )
    for name, ratio in undivided.items():
        mean = first[name].with_other(second[name])
        if not comparison.are_close(mean, ratio.value, abs(first[name].value)):
            return (
                f"evaluate gives {name} {ratio.value:.5g} for {comparison.num} samples, but {mean:.5g} as the mean "
                "over their halves, so it would depend on the micro-batch of an evaluation. Return what each sample "
                "has by itself, and compute what compares samples, or is no mean, in metrics() or summarize() from all "
                f"held-out samples, {_ADVICE}"
            )
    return ""


def _ratio(values: Loss) -> _Ratio:
    total, count = as_pair(values)
    return _Ratio(float(total.detach().double().sum()), float(count.double().sum()))


def _part(batch: Batch, samples: slice) -> Batch:
    return tree_map_only(Tensor, lambda tensor: tensor[samples], batch)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Undo what passes change: parameters, buffers, and attributes of modules."""
    tensors = {
        (module, name): tensor.detach().clone()
        for module in model.modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }
    objects = [(module, attributes_of(module, may_be_state), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        ModuleSnapshot(objects, tensors, may_be_state).restore()


def _is_other(before: object, after: object) -> bool:
    """Whether an attribute has another value, apart from generators, which are seeded."""
    return after is not before and any(isinstance(leaf, Tensor | int | float) for leaf in tree_leaves(after))


def _train(model: nn.Module) -> None:
    """Training mode, but for norms over samples and dropout."""
    model.train()
    for module in model.modules():
        if isinstance(module, _NormBase | _DropoutNd) or "running_mean" in module._buffers:
            module.eval()
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            module.dropout = 0.0
