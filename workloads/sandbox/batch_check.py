"""Finds losses and metrics that depend on how a batch is divided: those that are no means over samples.

A loss may couple the samples of a batch (negatives within the batch, a penalty for uneven experts), be a sum, or be a
mean over something else (tokens that count, weights of classes). Micro-batches and ranks would then train another
curve, and nobody would notice. So the loss of a few samples is compared with the mean loss of their two halves, and the
metrics as well. Both run in double precision, where rounding hides nothing, and before anything is trained; what shows
later, in other samples, or only in gradients, a training finds itself (``workloads.training.guard``).

Models are in training mode, as a loss may be another one there, but for what depends on the batch as documented: norms
over samples, and dropout.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map_only

from estimators.traits import Traits
from scamp.workload.datasets import SetName, is_iterable, opened_dataset
from scamp.workload.seeds import drawn_from, seed_everything
from workloads.batch import BatchRequest
from workloads.parallel.exchanging.experts import experts_of
from workloads.parallel.forward_state.snapshot import (
    ModuleSnapshot,
    Place,
    attributes_of,
    hooks_of,
    may_be_state,
    tensor_at,
)
from workloads.protocol import Batch, Loss, Workload, defines
from workloads.refusals import WorkloadError, in_enough_digits
from workloads.sandbox.joined_halves import JoinedHalves
from workloads.training.data.batch_transform import step_batch
from workloads.training.data.order import SampleOrder, lengths_of
from workloads.training.guard.sample_draws import SampleDraws
from workloads.training.metrics import as_pair, split_evaluation
from workloads.training.outline import model_of, outline_of
from workloads.training.samples import batch_indices
from workloads.training.step import layers_of_training
from workloads.training.updates.phases import phases_of

log = logging.getLogger("scamp.tracing")

MOST_FLOPS = 6e10
"""Most FLOPs of all passes of a try, and of several. A workload that needs more is not checked."""
MOST_PARAMETERS = 50_000_000
NUM_SAMPLES = (16, 8, 4, 2)
"""As many as ``MOST_FLOPS`` allow: few samples may all have the same length or class, which hides a difference."""
MOST_TRIES = 4
"""Tries that must all show no difference, as far as ``MOST_FLOPS`` allows: by chance the halves of one may have equally
many samples of each class."""
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
    is_pair: bool

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else math.nan

    def with_other(self, other: _Ratio) -> _Ratio:
        """That of the samples of both."""
        return _Ratio(self.total + other.total, self.count + other.count, self.is_pair)


def coupling_of(workload: Workload, flops: float = 0.0) -> Traits:
    """Why ranks, or at least micro-batches, may not divide a batch of this workload (see ``why_whole``)."""
    why = why_whole(workload, flops)
    if not why or not experts_of(outline_of(workload)):
        return Traits(couples_samples=why)
    among_ranks = _first_finding(partial(_difference_of_losses, joins=True), workload, "train", flops)
    if among_ranks != "" or workload.indivisible:
        return Traits(couples_samples=why)
    difference = why.partition(", so micro-batches")[0]
    words = "experts of all ranks take the tokens of a micro-batch together, so a step has one micro-batch"
    return Traits(couples_micro_batch=f"{difference}: {words}, {_ADVICE}")


def why_whole(workload: Workload, flops: float = 0.0) -> str:
    """Why ranks and micro-batches may not divide a batch of this workload; empty if they may, or if nobody can tell.

    ``flops`` are those of a forward pass of one sample. Nobody can tell for models that are too large to be run here,
    and for losses that draw random numbers of which it does not show to which sample they belong. What the workload
    itself says (``indivisible``) counts too, as a small term may show nothing in a few samples. A workload that
    ``accepts_parts`` is not asked.
    """
    finding = _first_finding(_difference_of_losses, workload, "train", flops)
    if finding or workload.accepts_parts or not workload.indivisible:
        return finding or ""
    return f"{workload.indivisible}, so micro-batches and ranks might change it. Give the batch one device, {_ADVICE}"


def expect_metrics_of_samples(workload: Workload, flops: float = 0.0) -> None:
    """Raise ``WorkloadError`` if a mean of a metric over some samples is not the mean over their halves.

    It is not raised where nobody can tell (see ``why_whole``).
    """
    if difference := _first_finding(_difference_of_metrics, workload, "eval", flops):
        raise WorkloadError(difference)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A model that is run with samples and their halves, in the precision ``dtype``, one try after another."""

    workload: Workload
    model: nn.Module
    tries: Sequence[Tensor]
    """Indices of the samples of each try."""
    dtype: torch.dtype
    buffers: dict[Place, Tensor]
    parameters: dict[Place, Tensor]
    """Copies of the tensors of the model, which passes may change in place; emptied when one changes no parameter."""

    def batches(self, make: Callable[[Tensor], Batch], indices: Tensor) -> tuple[Batch, Batch, Batch]:
        """All samples and their halves, as ranks make them: each by itself, or parts of one where it is random."""
        middle = len(indices) // 2
        seed_everything(0, self.workload)
        before = drawn_from(self.workload)
        batch = make(indices)
        if drawn_from(self.workload) == before:
            return batch, make(indices[:middle]), make(indices[middle:])
        return batch, _part(batch, slice(middle)), _part(batch, slice(middle, None))

    def value(self, loss: LossOf, batch: Batch) -> tuple[_Ratio, bool]:
        """The loss of a batch, and whether it draws random numbers from a generator that the workload knows."""
        with self._running():
            before = drawn_from(self.workload)
            ratio = _ratio(loss(self.model, self._cast(batch)))
            return ratio, drawn_from(self.workload) != before

    def value_again(self, loss: LossOf, batch: Batch) -> tuple[_Ratio, list[str]]:
        """The loss of a batch that comes a second time, and the attributes of the workload that the first time set."""
        with self._running():
            before = dict(vars(self.workload))
            with self._unchanged():
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

    def differs(self, undivided: _Ratio, first: _Ratio, second: _Ratio) -> bool:
        """Whether a loss or a metric of all samples is not that of the halves together; if nothing counts in all of
        them, or the number is not finite, nobody can tell."""
        of_halves = first.with_other(second)
        if not (undivided.count or of_halves.count) or not math.isfinite(undivided.total):
            return False
        is_close = math.isfinite(of_halves.value) and self.are_close(of_halves.value, undivided.value, abs(first.value))
        return not (undivided.count and is_close)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Seeded generators, and a model and workload that stay as they were; a penalty of gradients needs a graph."""
        seed_everything(0, self.workload)
        attributes, default_dtype = dict(vars(self.workload)), torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with torch.enable_grad(), self._unchanged():
                yield
        finally:
            torch.set_default_dtype(default_dtype)
            vars(self.workload).clear()
            vars(self.workload).update(attributes)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Undo what passes change: parameters, buffers, attributes and hooks of modules.

        Parameters take longer to restore than a pass takes, and are let be where the first pass changes none.
        """
        modules = list(self.model.modules())
        objects = [(module, attributes_of(module, may_be_state), dict(module._buffers)) for module in modules]
        values = {**self.buffers, **self.parameters}
        before = ModuleSnapshot(objects, values, may_be_state, hooks_of(self.model))
        try:
            yield
        finally:
            if all(torch.equal(tensor_at(place), value) for place, value in self.parameters.items()):
                self.parameters.clear()
            before.restore()

    def _cast(self, batch: Batch) -> Batch:
        return tree_map_only(Tensor, partial(_in, dtype=self.dtype, copy=True), batch)


def _in(tensor: Tensor, *, dtype: torch.dtype, copy: bool = False) -> Tensor:
    """The tensor with numbers of ``dtype``, or with complex ones of two such numbers; integers stay as they are."""
    if tensor.is_complex():
        dtype = dtype.to_complex()
    elif not tensor.is_floating_point():
        dtype = tensor.dtype
    return tensor.to(dtype, copy=copy)


def _first_finding(
    check: Callable[[_Comparison], str | None], workload: Workload, split: SetName, flops: float
) -> str | None:
    """Words of what ``check`` finds in double precision, or in that of the model where it runs in no other.

    They are empty where nothing is wrong, and None where nobody can tell.
    """
    if workload.accepts_parts:
        return ""
    if sum(parameter.numel() for parameter in outline_of(workload).parameters()) > MOST_PARAMETERS:
        return None
    for dtype in _TOLERANCES:
        try:
            seed_everything(0, workload)
            if tries := _tries(workload, split, flops):
                model: nn.Module = model_of(workload)._apply(partial(_in, dtype=dtype))  # type: ignore[no-untyped-call]
                copies = (_copies(model, kind) for kind in ("_buffers", "_parameters"))
                finding = check(_Comparison(workload, model, tries, dtype, *copies))
                return finding if finding or dtype is torch.float64 else None  # a small term hides in rounding
        except Exception:  # a trace explains it
            log.debug("whether the loss and the metrics are means over samples cannot be found out", exc_info=True)
    return None


def _copies(model: nn.Module, kind: str) -> dict[Place, Tensor]:
    return {
        (module, name): tensor.detach().clone()
        for module in model.modules()
        for name, tensor in getattr(module, kind).items()
        if tensor is not None
    }


def _tries(workload: Workload, split: SetName, flops: float) -> list[Tensor]:
    """Indices of the samples of each try, drawn; none if all take too long.

    Data is often stored class by class. Those that are shorter come first: a loss or a metric that depends on how
    samples are padded shows it in one half. Those of training are samples of the first steps: where a batch is put
    together on purpose, as of a few samples of each class, others would show nothing.
    """
    available = workload.num_train if split == "train" else workload.num_eval
    fitting = [num for num in NUM_SAMPLES if num <= available and _PASSES * num * flops <= MOST_FLOPS]
    if not fitting:
        return []
    num = fitting[0]
    num_tries = max(1, min(MOST_TRIES, int(MOST_FLOPS / max(_PASSES * num * flops, 1.0))))
    batch = BatchRequest.of(workload.params).samples or workload.default_batch
    if split == "train":  # in the order of training, which is drawn
        order = SampleOrder(workload, 0)
        return _shortest_first(workload, split, [order.places(step, batch)[:num, 2] for step in range(num_tries)])
    in_order = defines(workload, "dataset") and is_iterable(opened_dataset(workload, split))
    most = min(available // num, num_tries) * num
    drawn = torch.arange(most) if in_order else batch_indices(available, most, 0, 0)
    return _shortest_first(workload, split, [drawn[place : place + num] for place in range(0, most, num)])


def _shortest_first(workload: Workload, split: SetName, tries: Sequence[Tensor]) -> list[Tensor]:
    lengths = lengths_of(workload, split)
    return list(tries) if lengths is None else [indices[lengths[indices].argsort(stable=True)] for indices in tries]


def _difference_of_losses(comparison: _Comparison, joins: bool = False) -> str | None:
    """As ``_first_finding``; with ``joins`` halves are as on two ranks, whose experts know each other."""
    phases = {f"the loss of phase {phase.name}": phase.loss for phase in phases_of(comparison.workload)}
    for name, loss in (phases or {"the loss": comparison.workload.loss}).items():
        for indices in comparison.tries:
            if (words := _difference_of_loss(comparison, name, loss, indices, joins)) != "":
                return words
    return ""


def _difference_of_loss(comparison: _Comparison, name: str, loss: LossOf, indices: Tensor, joins: bool) -> str | None:
    """Words for what is wrong, empty if nothing is; None if random numbers are drawn, so that nobody can tell."""
    batch, *halves = comparison.batches(partial(step_batch, comparison.workload), indices)
    _train(comparison.model)
    first, draws = comparison.value(loss, halves[0])
    if draws:  # such as dropout by a function
        comparison.model.eval()
        first, draws = comparison.value(loss, halves[0])
    again, changed = comparison.value_again(loss, halves[0])
    if not comparison.are_close(first.value, again.value):
        kept = " and ".join(f"self.{attribute}" for attribute in changed) or "something"
        before, after = in_enough_digits(first.value, again.value)
        return (
            f"{name} is {before}, and {after} when it is called again with the same samples: it keeps {kept} between "
            f"calls, which micro-batches and ranks would change. Keep nothing in the workload, {_ADVICE}"
        )
    if draws:
        return _difference_with_draws(comparison, name, loss, indices, [batch, *halves])
    if joins:
        halves_of = JoinedHalves(comparison.model)
        with halves_of.batch():
            undivided, _ = comparison.value(loss, batch)
        with halves_of.half(0):
            first, _ = comparison.value(loss, halves[0])
        with halves_of.half(1):
            second, _ = comparison.value(loss, halves[1])
    else:
        (undivided, _), (second, _) = comparison.value(loss, batch), comparison.value(loss, halves[1])
    return _words(comparison, name, len(indices), undivided, first, second)


def _difference_with_draws(
    comparison: _Comparison, name: str, loss: LossOf, indices: Tensor, batches: Sequence[Batch]
) -> str | None:
    """As ``_difference_of_loss``, from a batch and its halves, with random numbers that are those of samples; None if
    it does not show which are."""
    num, middle, shared = len(indices), len(indices) // 2, frozenset[object]()
    for _ in range(2):
        ratios, drawn = [], []
        for batch, samples in zip(batches, (range(num), range(middle), range(middle, num)), strict=True):
            drawn.append(SampleDraws(comparison.workload, (0,), [samples], shared))
            with drawn[-1]:
                ratios.append(comparison.value(drawn[-1].around(loss), batch)[0])
        if all(draws.draws_like(drawn[0]) for draws in drawn):
            return _words(comparison, name, num, *ratios)
        shared = drawn[0].shared_with(drawn[1])
    return None


def _words(comparison: _Comparison, name: str, num: int, undivided: _Ratio, first: _Ratio, second: _Ratio) -> str:
    """Words for a loss that is not that of the halves together; empty if it is."""
    if not comparison.differs(undivided, first, second):
        return ""
    advice = (
        "The sum and the count must be those of each sample, added up: if they compare samples, give the batch one "
        f"device, {_ADVICE}"
        if undivided.is_pair
        else "If it is divided by tokens or weights, return the sum and what it is divided by; else give the batch one "
        f"device, average within samples first, {_ADVICE}"
    )
    numbers = _numbers(undivided, first, second)
    return f"{name} of {num} samples is {numbers}, so micro-batches and ranks would change it. {advice}"


def _difference_of_metrics(comparison: _Comparison) -> str:
    comparison.model.eval()
    for indices in comparison.tries:
        undivided, first, second = (
            comparison.metrics(batch) for batch in comparison.batches(comparison.workload.eval_batch, indices)
        )
        for name, ratio in undivided.items():
            if comparison.differs(ratio, first[name], second[name]):
                return (
                    f"evaluate gives for {len(indices)} samples the {name} "
                    f"{_numbers(ratio, first[name], second[name])}, so it would depend on the micro-batch of "
                    "an evaluation. Return what each sample has by itself, and compute what compares samples, or is no "
                    f"mean, in metrics() or summarize() from all held-out samples, {_ADVICE}"
                )
    return ""


def _numbers(undivided: _Ratio, first: _Ratio, second: _Ratio) -> str:
    of_halves = first.with_other(second)
    if not (undivided.count and of_halves.count):
        counts = f"{undivided.count:.5g}", f"{of_halves.count:.5g}"
        return f"divided by {counts[0]}, but those of their halves by {counts[1]} in all"
    whole_words, halves_words = in_enough_digits(undivided.value, of_halves.value)
    return f"{whole_words}, but the mean over their halves {halves_words}"


def _ratio(values: Loss) -> _Ratio:
    total, count = as_pair(values)
    is_pair = isinstance(values, tuple)
    return _Ratio(float(total.detach().double().sum()), float(count.double().sum()), is_pair)


def _part(batch: Batch, samples: slice) -> Batch:
    return tree_map_only(Tensor, lambda tensor: tensor[samples], batch)


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
