"""Repeats passes of a step with the batch divided differently, and compares the loss, the gradients and the metrics.

Losses that compare samples, means over something else than samples, and hooks that change gradients train another curve
under plans that divide a batch. No list of such code is complete, so it is measured, on the training itself. Nothing is
updated, and the model and the workload are the same afterwards. Norms over samples and dropout are left out: they
depend on the division as documented.

Both divisions, the planned and the other one, have the same samples (``dealing``), but in micro-batches of other sizes,
or beside others. Gradients are compared by a few numbers of each (``sketch``), and what counts as rounding depends on
the precision (``tolerance``). Differences are words for the user; no words, no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import unwrap
from itertools import cycle
from math import isfinite
from types import FunctionType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from scamp.workload.datasets import is_iterable, opened_dataset
from scamp.workload.seeds import drawn_from, kept_generators, seed_everything
from workloads.parallel.agreement import begin_phase, finish
from workloads.parallel.exchanging.experts import experts_of
from workloads.parallel.forward_state.state import forward_state
from workloads.protocol import Batch, Workload, defines
from workloads.refusals import in_enough_digits
from workloads.training.attempt.evaluation import totals
from workloads.training.attempt.rank import TrainingRank
from workloads.training.checkpoints.kept import Changes
from workloads.training.checkpoints.owners import Snapshot, holding, owners_of
from workloads.training.guard.dealing import Dealing, Division, dealt, dealt_held_out, drawn
from workloads.training.guard.sample_draws import SampleDraws
from workloads.training.guard.sketch import sketches
from workloads.training.guard.tolerance import HALF, LEAST_LOSS, Tolerance, tolerance_of
from workloads.training.metrics import as_pair
from workloads.training.samples import FEW
from workloads.training.step import evaluate, phase_step, without_gradients
from workloads.training.updates.precision import autocast
from workloads.training.updates.update import updates_of
from workloads.unfreezing import names_in, reached

_FLIPPED = 0.125
"""Share of samples in which a metric of whole numbers may change: of a near tie, rounding decides."""
_MOST_NUMBERS = 64
"""Numbers of an attribute that are compared."""
_OF_SIZES = r"(?i)\b(sizes?|shapes?|dimensions?)\b"
"""Errors of torch that other numbers of samples may cause; those about memory or other ranks say nothing of these."""
_MOST_HALVES = 4
"""Orders in which samples come in halves, until one shows what uneven parts have shown."""


class DependsOnDivision(Exception):
    """The loss or the gradients depend on how a batch is divided; the message says where."""


Loss = Callable[[nn.Module, Batch], Any]
Sums = Mapping[str, tuple[float, float]]
"""Name of a loss or metric → its sum over all ranks, and what it is divided by."""


@dataclass(frozen=True, slots=True)
class _Passes:
    """Results of passes: sums of losses or metrics, and a sketch of the gradient of each parameter, if they have any.

    ``draws``: random numbers are drawn; ``keeps``: passes leave something in attributes for later ones; ``left``: the
    numbers in those attributes of the workload that methods between passes read.
    """

    sums: Sums
    gradients: Tensor | None
    draws: bool
    keeps: bool
    left: Mapping[str, Sequence[float]] = field(default_factory=dict)
    drawn: SampleDraws | None = None
    """Random numbers that were drawn for each sample by itself."""


class _OtherDraws(Exception):
    """Micro-batches draw other random numbers for a sample than expected; ``shared`` are draws that all share."""

    def __init__(self, shared: frozenset[object]) -> None:
        super().__init__()
        self.shared = shared


class DivisionGuard:
    """Compares two divisions of a batch on one rank of a gang; all ranks call it."""

    def __init__(self, rank: TrainingRank) -> None:
        self._rank = rank
        self._leaves_out_all = False  # all modules are in evaluation mode, as a function may drop out
        self.why_not_compared = _why_not(rank)
        """Why losses and gradients are not compared; empty if they are."""
        self._gives_up_metrics = _why_not_metrics(rank)
        self._has_compared_metrics = False
        self._read_between = _names_read(rank.workload)
        self._owners: Mapping[str, Any] = {}  # what users' code may keep something in, during a check
        self._snapshot, self._changes = Snapshot({}), Changes({})
        self._shared_draws: frozenset[object] | None = None  # None while random numbers are those of a micro-batch

    @property
    def _tolerance(self) -> Tolerance:
        return tolerance_of(self._rank)

    @property
    def is_idle(self) -> bool:
        """Whether nothing can be compared."""
        return bool(self.why_not_compared and self._gives_up_metrics)

    def check(self, step: int, *, is_last: bool = False) -> None:
        """Compare with samples of optimizer step ``step``. Raises ``DependsOnDivision`` on every rank.

        The last check leaves out metrics that an earlier one has compared, unless only metrics can be compared: the
        loss comes from the same model.
        """
        self._owners = holding(owners_of(self._rank.workload, self._rank.model))
        self._snapshot, self._changes = Snapshot(self._owners), Changes(self._owners)
        try:
            self._check(step, of_metrics=not is_last or bool(self.why_not_compared) or not self._has_compared_metrics)
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, RuntimeError) and not re.search(_OF_SIZES, str(error)):
                raise
            raise DependsOnDivision(
                f"step {step + 1} fails with fewer samples than planned in a pass: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._owners, self._snapshot, self._changes = {}, Snapshot({}), Changes({})  # which hold memory

    def _check(self, step: int, *, of_metrics: bool) -> None:
        rank = self._rank
        if not self.why_not_compared:
            plan = rank.job.plan
            order = partial(drawn, plan.batch, rank.job.seed, step)
            together = bool(experts_of(rank.model))  # they take the tokens of a pass, whose number must stay the same
            deal = partial(dealt, plan, rank.number, has_own=rank.feed.keeps_last, keeps_sizes=together)
            dealing = deal(order())
            updates = updates_of(rank.model)
            phases = [(phase.name, phase.loss) for phase in updates.phases] or [("", rank.workload.loss)]
            for name, loss in phases:
                begin_phase(rank.model, name)
                difference = self._difference(loss, step, dealing)
                if difference and dealing.is_uneven and not plan.shares:
                    # A term that only a backward pass adds has no weight by the number of samples.
                    halves = (deal(order(again), in_halves=True) for again in range(_MOST_HALVES))
                    differences = (self._difference(loss, step, dealing) for dealing in halves)
                    difference = next(filter(None, differences), None)
                if difference:
                    in_phase = f" of the phase {name}" if name else ""
                    raise DependsOnDivision(f"{difference[0]} in step {step + 1}{in_phase} when {difference[1]}")
            begin_phase(rank.model, "")
            updates.losses.clear()
        if not of_metrics or self._gives_up_metrics:
            return
        self._has_compared_metrics = True
        if difference := self._difference_of_metrics(step):
            raise DependsOnDivision(f"{difference[0]} after step {step + 1} when {difference[1]}")

    def _difference(self, loss: Loss, step: int, dealing: Dealing) -> tuple[str, str] | None:
        """Words for a difference and for its cause, which all ranks get; None if there is none."""
        planned = self._passes(loss, step, dealing.planned)
        if self._rank.any(planned.draws) and not self._leaves_out_all:
            self._leaves_out_all = True
            planned = self._passes(loss, step, dealing.planned)
        if self._rank.any(planned.draws):
            return self._difference_with_draws(loss, step, dealing)
        return self._difference_from(planned, loss, step, dealing)

    def _difference_with_draws(self, loss: Loss, step: int, dealing: Dealing) -> tuple[str, str] | None:
        """``_difference`` with random numbers that are those of samples, if it shows which are."""
        try:
            for _ in range(2 if self._rank.job.plan.pp == 1 else 0):
                self._shared_draws = self._shared_draws or frozenset()
                try:
                    planned = self._passes(loss, step, dealing.planned)
                except (LookupError, RuntimeError, TypeError, ValueError):  # an operation draws in its own way
                    break
                try:
                    return self._difference_from(planned, loss, step, dealing)
                except _OtherDraws as error:
                    self._shared_draws = error.shared
        finally:
            self._shared_draws = None
        self.why_not_compared = "the loss draws random numbers"
        return None

    def _difference_from(self, planned: _Passes, loss: Loss, step: int, dealing: Dealing) -> tuple[str, str] | None:
        """``_difference`` from these passes."""
        if planned.drawn is not None and self._rank.any(planned.drawn.draws_backward):
            return "the noise of gradients, which their backward pass draws, changes", dealing.words
        if max(self._rank.job.plan.samples_of_shares) == 1 and self._rank.job.plan.pp == 1:
            return self._difference_of_pair(loss, step, dealing, planned)
        # A sample counts as much in such a dealing as before, so what changes gradients shows in half the loss only.
        passes = self._halved_passes if dealing.shifts else self._passes
        other = passes(loss, step, dealing.other)
        left = _different_left(planned, other, self._tolerance.loss)
        words = self._different(planned, other) or self._rank.first(left)
        if not words and self._rank.any(planned.keeps):  # which shows in the step after
            planned, other = self._passes(loss, step, dealing.planned, 2), passes(loss, step, dealing.other, 2)
            words = self._different(planned, other)
        if not words and self._rank.job.plan.pp > 1:  # in either way, its micro-batches have the same size
            return self._different_half(loss, step, dealing, planned)
        return (words, dealing.words) if words else None

    def _difference_of_pair(self, loss: Loss, step: int, dealing: Dealing, planned: _Passes) -> tuple[str, str] | None:
        """``_difference`` where all micro-batches have one sample.

        In a larger one each sample counts less, so gradients are compared with those of half the loss. Two samples
        together need no more memory than was planned if no gradients are kept.
        """

        if difference := self._different_half(loss, step, dealing, planned):
            return difference
        if not dealing.joins:
            return None
        words = self._different(*(self._forward(loss, step, way.parts) for way in (dealing.planned, dealing.other)))
        return (words, dealing.words) if words else None

    def _different_half(self, loss: Loss, step: int, dealing: Dealing, planned: _Passes) -> tuple[str, str] | None:
        """Words for gradients that are not twice those of half the loss, and for the cause; None if they are."""

        other = self._halved_passes(loss, step, dealing.planned)
        assert planned.gradients is not None and other.gradients is not None
        if words := self._rank.first(self._different_gradient(planned.gradients, other.gradients)):
            return words, "its loss counts half as much, as it does beside another sample"
        return None

    def _halved_passes(self, loss: Loss, step: int, division: Division, repeats: int = 1) -> _Passes:
        """``_passes`` of half the loss, whose results are doubled: the same unless something is not linear in it."""

        @wraps(loss)
        def halved(model: nn.Module, batch: Batch) -> Any:
            returned = loss(model, batch)
            return (returned[0] / 2, returned[1]) if isinstance(returned, tuple) else returned / 2

        passes = self._passes(halved, step, division, repeats)
        sums = {name: (2 * total, count) for name, (total, count) in passes.sums.items()}
        assert passes.gradients is not None
        return replace(passes, sums=sums, gradients=2 * passes.gradients)

    def _difference_of_metrics(self, step: int) -> tuple[str, str] | None:
        rank = self._rank
        dealt_samples = dealt_held_out(rank.job.plan, rank.number, rank.workload.num_eval)
        if dealt_samples is None:
            self._gives_up_metrics = "there are too few held-out samples"
            return None
        num_drawn, dealing = dealt_samples
        indices = drawn(min(rank.workload.num_eval, FEW), rank.job.seed, step)[:num_drawn]
        planned, other = (self._metrics(indices, way.parts) for way in (dealing.planned, dealing.other))
        if rank.any(planned.draws):
            self._gives_up_metrics = "metrics draw random numbers"
            return None
        words = self._different(planned, other)
        return (words, dealing.words) if words else None

    def _different(self, planned: _Passes, other: _Passes) -> str:
        """Words for a difference, which all ranks get; empty if there is none. Raises ``_OtherDraws``."""
        drawn, others = planned.drawn, other.drawn
        if drawn is not None and others is not None and self._rank.any(not drawn.draws_like(others)):
            raise _OtherDraws(drawn.shared_with(others))
        words = _different_sums(planned.sums, other.sums, self._tolerance.loss)
        if planned.gradients is None or other.gradients is None:
            return words
        return self._rank.first(self._different_gradient(planned.gradients, other.gradients) or words)

    def _different_gradient(self, planned: Tensor, other: Tensor) -> str:
        layout = self._rank.job.plan.layout
        if (layout.zero1 or layout.adasum) and self._rank.mesh is not None:
            for gradients in (planned, other):  # not averaged yet
                dist.all_reduce(gradients)
        names = [name for name, _ in self._rank.model.named_parameters()]
        is_lost = ~other.isfinite().all(dim=1)
        if bool(is_lost.any()) and bool(planned.isfinite().all()) and self._tolerance is not HALF:  # which overflows
            return f"the gradient of {names[int(is_lost.int().argmax())]} is no longer finite"
        difference, size = (planned - other).norm(dim=1), torch.maximum(planned.norm(dim=1), other.norm(dim=1))
        allowed = self._tolerance.gradient * size + self._tolerance.share * size.norm()
        excess = torch.where(allowed > 0, difference / allowed, 0.0)
        if not bool((excess > 1).any()):  # also where a planned number is not finite, which proves nothing
            return ""
        place = int(excess.argmax())
        return f"the gradient of {names[place]} changes by {100 * float(difference[place] / size[place]):.2g} %"

    def _passes(self, loss: Loss, step: int, division: Division, repeats: int = 1) -> _Passes:
        """The last passes of micro-batches with the samples at these places of a step, which are repeated."""
        rank = self._rank
        model, plan, probe = rank.model, rank.job.plan, _Probe(rank.model)
        optimizer = cast(torch.optim.Optimizer, probe)
        if not division.is_even:
            loss = _weighted(loss, [len(part) for part in division.parts])
        drawn = self._sample_draws(step, division.parts)
        if drawn is not None:
            loss = drawn.around(loss)
        with kept_generators(rank.workload), self._unchanged(division.weight):
            for _ in range(repeats):
                batches, before = self._begin(step, division.parts)
                with drawn or nullcontext():
                    own_loss = phase_step(rank.workload, loss, model, optimizer, batches, len(division.parts))
            draws = drawn_from(rank.workload) != before
            factor = updates_of(model).loss_factor(len(division.parts))
            changed = [(owner, name, value) for owner, name, value, _ in self._changes.found(self._owners)]
            left = {
                name: _numbers_in(value) for owner, name, value in changed if not owner and name in self._read_between
            }
        own_total = own_loss.detach().double().cpu() * division.weight
        total = rank.sum(own_total)  # in a pipeline only the last stage has a loss
        sums = {"the loss": (float(total) * plan.pp, float(plan.world_size))}
        return _Passes(sums, probe.gradients / factor, draws, bool(changed), left, drawn)

    def _sample_draws(self, step: int, parts: Sequence[Tensor]) -> SampleDraws | None:
        if self._shared_draws is None:
            return None
        rank = self._rank
        return SampleDraws(rank.workload, (rank.job.seed, step), [part.tolist() for part in parts], self._shared_draws)

    def _forward(self, loss: Loss, step: int, parts: Sequence[Tensor]) -> _Passes:
        """The losses of these micro-batches, without gradients; none if the loss itself computes gradients."""
        rank, sums = self._rank, torch.zeros(2, dtype=torch.float64)
        state, drawn = forward_state(rank.model), self._sample_draws(step, parts)
        if drawn is not None:
            loss = drawn.around(loss)
        with kept_generators(rank.workload), self._unchanged(1.0):
            batches, _ = self._begin(step, parts)
            with without_gradients(rank.model), drawn or nullcontext():
                for batch in batches:
                    try:
                        with state.micro_batch(batch, len(parts)), autocast(rank.workload, rank.model):
                            total, count = as_pair(loss(rank.model, batch))
                    except RuntimeError as error:
                        if "require grad" not in str(error):
                            raise
                        return _Passes({}, None, draws=False, keeps=False)
                    sums += torch.stack([total.double().sum().cpu(), count.double().sum().cpu()])
                finish(rank.model)
                state.end_step()
        total, count = rank.sum(sums).tolist()
        return _Passes({"the loss": (total, count)}, None, draws=False, keeps=False, drawn=drawn)

    def _begin(self, step: int, parts: Sequence[Tensor]) -> tuple[Iterable[Batch], object]:
        """The micro-batches of these parts of a step, and a value that changes once their passes draw numbers."""
        rank = self._rank
        batches = list(rank.feed.parts(step, parts))
        seed_everything((rank.job.seed, step, rank.job.plan.data_rank(rank.number)), rank.workload)
        return rank.all_on_device(_emptied(batches)), drawn_from(rank.workload)

    def _metrics(self, indices: Tensor, parts: Sequence[Tensor]) -> _Passes:
        """The metrics of these of the held-out samples ``indices``."""
        rank = self._rank
        with kept_generators(rank.workload), self._unchanged(1.0):
            batches = list(rank.feed.held_out(indices, parts))
            before = drawn_from(rank.workload)
            counted = (torch.ones(len(part), dtype=torch.bool) for part in parts)
            pairs = zip(rank.all_on_device(_emptied(batches)), counted, strict=True)
            sums = totals(rank, evaluate(rank.workload, rank.model, pairs))
            draws = drawn_from(rank.workload) != before
        return _Passes({f"the metric {name}": sums[name] for name in sums}, None, draws, keeps=False)

    @contextmanager
    def _unchanged(self, weight: float) -> Iterator[None]:
        """The model without what depends on the division as documented; all is as before at the end."""
        model = self._rank.model
        state = forward_state(model)
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
                module.training = module.training and not self._leaves_out_all and not is_left_out(module)
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
            if self._snapshot.restore():
                self._changes = Changes(self._owners)


def _different_sums(planned: Sums, other: Sums, tolerance: float) -> str:
    """Words for the first sum that changes by more than rounding; empty if there is none."""
    for name, (total, count) in planned.items():
        other_total, other_count = other.get(name, (0.0, 0.0))
        if not (count and other_count):
            continue
        before, after = total / count, other_total / other_count
        if isfinite(before) and not isfinite(after):
            return f"{name} changes from {before:.4g} to {after}"
        if not abs(after - before) > tolerance * max(abs(before), abs(after), LEAST_LOSS):  # or it is not finite
            continue
        is_of_whole = all(number.is_integer() for number in (total, other_total)) and name != "the loss"
        if is_of_whole and count == other_count and abs(total - other_total) <= max(1.0, _FLIPPED * count):
            continue  # rounding decides a near tie in few samples
        first, second = in_enough_digits(before, after)
        return f"{name} changes from {first} to {second}"
    return ""


def _weighted(loss: Loss, sizes: Sequence[int]) -> Loss:
    """``loss`` whose mean counts by the samples of a micro-batch; those that come one after the other have ``sizes``.

    A sum with its count has that weight already.
    """
    factors = cycle([len(sizes) * size / sum(sizes) for size in sizes])

    @wraps(loss)
    def weighted(model: nn.Module, batch: Batch) -> Any:
        returned, factor = loss(model, batch), next(factors)
        return returned if isinstance(returned, tuple) else returned * factor

    return weighted


def _different_left(planned: _Passes, other: _Passes, tolerance: float) -> str:
    """Words for the first attribute in which passes leave other numbers; empty if there is none."""
    for name, before in planned.left.items():
        after = other.left.get(name, ())
        pairs = list(zip(before, after, strict=False))
        close = (not abs(ours - others) > tolerance * max(abs(ours), abs(others), LEAST_LOSS) for ours, others in pairs)
        if len(before) != len(after) or not all(close):
            return f"self.{name}, which is read between steps, gets another value"
    return ""


def _names_read(workload: Workload) -> frozenset[str]:
    """Names of attributes in the code that is called between the passes of steps."""
    methods = (unwrap(getattr(type(workload), name)) for name in ("on_step", "on_evaluate"))
    functions = [
        each for method in methods if isinstance(method, FunctionType) for each in reached(method, type(workload))
    ]
    return frozenset(name for function in functions for name in names_in(function.__code__))


def _numbers_in(value: object) -> Sequence[float]:
    """The numbers of a value or a list, the last ones of many."""
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, int | float | Tensor)][-_MOST_NUMBERS:]
    tensors = (
        leaf.detach().double().flatten()[-_MOST_NUMBERS:].tolist()
        for leaf in map(torch.as_tensor, leaves)
        if not leaf.is_complex()
    )
    return [number for numbers in tensors for number in numbers][-_MOST_NUMBERS:]


def _why_not(rank: TrainingRank) -> str:
    """Why the loss and its gradients are not compared; empty if they are."""
    workload, plan = rank.workload, rank.job.plan
    if not any(layout.divides_batch for layout in plan.layouts):
        return "the plan does not divide a batch"
    if plan.pp > 1 and plan.micro_batch == 1:
        return "passes of a pipeline have one sample"
    if workload.accepts_parts:
        return "the workload accepts parts of a batch"
    if rank.feed.keeps_last and plan.pp > 1:
        return "a pipeline needs the whole batch, and its samples can only be read in order"
    if rank.feed.keeps_last and workload.num_workers and defines(workload, "collate"):
        return "its samples can only be read in order, by workers that put them together"
    return ""


def _why_not_metrics(rank: TrainingRank) -> str:
    """Why metrics are not compared; empty if they are."""
    workload, plan = rank.workload, rank.job.plan
    if plan.num_shares == 1 and plan.evaluation_micro_batch == plan.batch:
        return "evaluations are divided as on one rank"
    if workload.accepts_parts:
        return "the workload accepts parts of a batch"
    if defines(workload, "dataset") and is_iterable(opened_dataset(workload, "eval")):
        return "held-out samples can only be read in order"
    return ""


class _Probe:
    """Stands for the optimizer: it sketches the gradients instead of an update."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.gradients = torch.empty(0)

    def step(self) -> None:
        """Keep sketches of the gradients."""
        with _disable_current_modes():
            self.gradients = sketches(parameter.grad for parameter in self._model.parameters())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        for parameter in self._model.parameters():
            parameter.grad = None


def _emptied(batches: list[Batch]) -> Iterator[Batch]:
    """The batches, each let go of when it is taken."""
    batches.reverse()
    while batches:
        yield batches.pop()


def is_left_out(module: nn.Module) -> bool:
    """Whether a module is a dropout or a norm over samples."""
    return isinstance(module, _NormBase | _DropoutNd) or "running_mean" in module._buffers
