"""The training steps and evaluations that an opened model runs in fake mode.

``estimators.tracing.tracer`` puts the logs of several micro-batches together.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from estimators.model import Layout
from estimators.peaks.depth import Passes
from estimators.tracing.block_watch import ENTERING
from estimators.tracing.device import module_bytes
from estimators.tracing.fake_shares import rows_of_all
from estimators.tracing.patches import fixed_draws
from estimators.tracing.recorder import Batch
from estimators.tracing.session.opened import ENDS, OpenedModel
from estimators.tracing.session.recipe import Evaluate, Recipe
from estimators.tracing.session.watched_optimizer import OtherSteps, Step, WatchedOptimizer
from estimators.tracing.sparse import grow
from estimators.tracing.values.assumptions import IN_ILLUSTRATION
from estimators.tracing.values.values import MOST_FIXED
from estimators.work import Work

GET_GRADIENTS = "parameters without a gradient in the traced step get one in others"
_NUM_ACCUMULATED = 2  # micro-batches of a step that accumulates: all after the second repeat it
_NUM_EVALUATED = 2  # micro-batches of an evaluation: FSDP's root, or all of it, stays gathered after the first


def num_passes(layout: Layout) -> int:
    """Micro-batches of a traced step: all in a pipeline, because its schedule decides how many are held at a time."""
    if layout.pp > 1:
        return layout.num_micro_batches
    return _NUM_ACCUMULATED if layout.accumulate else 1


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One traced evaluation. It ``is_cut`` if code that looks at values ended the trace early."""

    passes: Passes
    is_cut: bool = False


class Session(OpenedModel):
    """An opened model, and the steps and evaluations that run on it."""

    def __init__(
        self, recipe: Recipe, layout: Layout, draw: int = 0, *, itemised: bool = False, batch: int | None = None
    ) -> None:
        """``draw`` seeds the generators of random numbers before each step. ``itemised`` logs each operation as well.

        ``batch`` is that of a step. It decides how many micro-batches sparse gradients add up, as their rows become
        more with each (None: as many as are traced).

        With ``UNEVEN`` the model's own choices, such as experts, are all the same (see ``estimators.tracing.values``).
        """
        super().__init__(recipe, layout, draw, itemised=itemised)
        self._batch = batch
        self.has_sparse_gradients = False
        self.has_drawn = draw in ENDS  # whether random numbers may have decided what a step does
        self._num_steps = 0
        self._evaluate: Evaluate | None = None
        self._begun: list[tuple[int, Work]] = []  # where in the log each micro-batch begins, and the work done by then
        self._without_gradient: set[Tensor] = set()
        self._filled: set[Tensor] = set()  # parameters that only other steps give gradients
        self._stateful: set[Tensor] = set()  # those of them that have no gradient whenever all others have one
        # Micro-batch → block → bytes that the block returns; at -1 those that the first block takes.
        self._outputs: dict[int, dict[int, int]] = {}

    def __exit__(self, *exc_info: Any) -> None:
        del self._without_gradient, self._filled, self._stateful
        self._evaluate = None
        super().__exit__(*exc_info)

    def shorten(self) -> None:
        self._evaluate = None  # with what evaluations of the whole model have kept
        super().shorten()

    def spread(self) -> None:
        self._evaluate = None
        super().spread()

    def grow(self, num: int | None = None) -> list[tuple[Tensor, Tensor]]:
        copied = super().grow(num)
        for parameters in (self._without_gradient, self._stateful):
            parameters |= {new for old, new in copied if old in parameters}
        return copied

    @property
    def assumptions(self) -> list[str]:
        """Assumptions of decisions by values of tensors so far (see ``estimators.tracing.values``)."""
        return [*self._recorder.values.assumptions.described, *sorted(self._assumed)]

    @property
    def makes_choices(self) -> bool:
        """Whether the model decides by values of tensors, or may train other parameters later."""
        return self._recorder.values.assumptions.has_decided or bool(self._assumed)

    @property
    def even_choices(self) -> str:
        """The one of ``assumptions`` that choices by the model are even; empty if it makes none."""
        return self._recorder.values.assumptions.even_choices

    def traced_outputs(self, micro_batch: int) -> list[int]:
        """Bytes that went into the first block, and out of each block that was traced; empty if none was watched."""
        crossing = self._outputs.get(micro_batch)
        return [crossing.get(number, 0) for number in range(ENTERING, max(crossing) + 1)] if crossing else []

    def outputs(self, micro_batch: int) -> list[int]:
        """Bytes that went into the first block, and out of each block; empty if the blocks were not watched."""
        seen = self.traced_outputs(micro_batch)
        return seen[:3] + [seen[2]] * len(self._left_out) + seen[3:] if self._left_out and len(seen) > 3 else seen

    def forget(self) -> None:
        """Drop the gradients that a failed pass has left behind."""
        for parameter in self._model.parameters():
            parameter.grad = None

    def forward_log(self, micro_batch: int) -> Passes:
        """The log of a step up to its first backward pass."""
        num_before, batches = self._begin(micro_batch, 1)
        forward = self._recorder.forward_log(lambda: self._recipe.train_step(self._model, self._optimizer, batches, 1))
        return replace(forward, num_before=num_before)

    def passes(self, micro_batch: int) -> Passes:
        """The passes of a step without its update: its gradients are dropped at the end, and nothing changes."""
        return self._passes(micro_batch, num_passes(self._layout))

    def one_and_two(self, micro_batch: int) -> tuple[Passes, Passes]:
        """The passes of the first of two micro-batches of one step, or of its only one, and those of both."""
        two = self._passes(micro_batch, 2)
        if self._layout.averages_gradients:  # after the last micro-batch
            return self._passes(micro_batch, 1), two
        end, work = self._begun[1]
        marks = [mark for mark in two.marks if mark[0] < end]
        operations = two.operations[: work.num_operations]
        of_one = replace(two, events=two.events[:end], work=work, marks=marks, operations=operations)
        return of_one, two

    def step(self, micro_batch: int) -> Step:
        """A whole step, as ranks run it."""
        return self._step(micro_batch, num_passes(self._layout), update=True)

    def _passes(self, micro_batch: int, num: int) -> Passes:
        num_copied = self._recipe.num_copied(self._model)
        passes = self._step(micro_batch, num, update=False).passes
        if self._recipe.num_copied(self._model) > num_copied:
            passes = self._step(micro_batch, num, update=False).passes
        return passes

    def _step(self, micro_batch: int, num: int, *, update: bool) -> Step:
        num_before, batches = self._begin(micro_batch, num)
        owners = self._owners()
        if update:
            self._begin_step()
        before = self._seeded()

        def other_steps() -> OtherSteps:
            """Random numbers are traced with several draws, and even choices use all that one step can use."""
            assumed = self._recorder.values.assumptions
            if self._recipe.unfreezes or assumed.follows_data:
                return OtherSteps.AS_WELL
            if not (assumed.varies or self.has_drawn or _random_state() != before):
                return OtherSteps.NEVER
            # The other parts of a divided batch, on this rank or on others, use what this part does not.
            return OtherSteps.AS_WELL if self._layout.divides_batch else OtherSteps.INSTEAD

        watched = self._watched(update, other_steps)
        if num > 1:  # an earlier micro-batch may have used them
            watched.fill(self._filled)
        with self._recorder.values.assumptions.of_step(), fixed_draws(ENDS.get(self._draw), MOST_FIXED):
            self._recipe.train_step(self._model, cast(Optimizer, watched), batches, num)
        self.has_drawn |= self._recorder.values.assumptions.has_drawn or _random_state() != before
        self._without_gradient, self._filled = watched.without_gradient, watched.filled
        self._stateful = watched.stateful
        self.has_sparse_gradients |= watched.has_sparse_gradients
        if self._filled or self._stateful:
            self._assumed.add(self._recipe.unfreezes or GET_GRADIENTS)
        return replace(watched.seen, passes=replace(watched.seen.passes, num_before=num_before, owners=owners))

    @property
    def has_evaluation(self) -> bool:
        """Whether the recipe has an evaluation."""
        return self._recipe.make_evaluation is not None

    def held_bytes(self) -> int:
        """Bytes that are alive now."""
        gc.collect()
        return self._recorder.live_bytes

    def evaluation(self, micro_batch: int) -> Evaluated:
        """An evaluation, as far as it goes without the values of tensors. Call it after all steps.

        Raises the error of an evaluation that cannot run under the plan.

        The model has the states that it has between steps, and no gradients.
        """
        assert self._recipe.make_evaluation is not None
        if self._evaluate is None:
            self._evaluate = self._recipe.make_evaluation()
        with _disable_current_modes():
            batch = self._recipe.make_evaluation_batch(micro_batch)
            samples = self._recipe.rank_part(self._model, batch, self._layout)
        self._watch.crossing = {}
        num_before, owners, is_cut = self._begin_log(), self._owners(), False
        self._seeded()
        batches = (self._recorder.copied(samples) for _ in range(_NUM_EVALUATED))
        assumptions = self._recorder.values.assumptions
        with ExitStack() as now:
            now.enter_context(assumptions.of_evaluation())
            try:
                show = self._evaluate(self._model, batches, micro_batch)
                now.enter_context(assumptions.of_evaluation(IN_ILLUSTRATION))
                show()
            except Exception as error:
                if self._recipe.is_of_plan(error):
                    raise
                assumptions.cut(error)
                is_cut = True
        passes = replace(self._recorder.passes, num_before=num_before, owners=owners)
        return Evaluated(passes, is_cut)

    def update(self) -> Step:
        """An optimizer step on gradients that no pass has computed."""
        num_before = self._begin_log()
        self._begin_step()
        for parameter in self._model.parameters():
            if parameter.requires_grad and parameter not in self._without_gradient:
                parameter.grad = torch.empty_like(parameter)
        watched = self._watched(True, lambda: OtherSteps.NEVER)
        watched.stateful = self._stateful
        watched.step()
        watched.zero_grad()
        return replace(watched.seen, passes=replace(watched.seen.passes, num_before=num_before))

    def _watched(self, updates: bool, other_steps: Callable[[], OtherSteps]) -> WatchedOptimizer:
        return WatchedOptimizer(
            self._model, self._optimizer, self._recorder, updates, other_steps, self._recipe.kept_of
        )

    def _begin(self, micro_batch: int, num: int) -> tuple[int, Iterable[Batch]]:
        with _disable_current_modes():
            samples = self._recipe.rank_part(self._model, self._recipe.make_batch(micro_batch), self._layout)
        self._begun.clear()
        self._watch.crossing = self._outputs[micro_batch] = {}
        return self._begin_log(), _Repeated(lambda: self._batches(samples, micro_batch, num))

    def _seeded(self) -> object:
        """Seed all generators; returns the state of those of Python and numpy."""
        torch.manual_seed(self._draw)
        random.seed(self._draw)
        np.random.seed(self._draw)
        return _random_state()

    def _batches(self, samples: Batch, micro_batch: int, num: int) -> Iterator[Batch]:
        for number in range(num):
            if number == _NUM_ACCUMULATED - 1 and self._layout.accumulate and self._batch is not None:
                size = rows_of_all(micro_batch, self._layout.num_shares)
                self._add_up_sparse_gradients(-(-self._batch // size) - 1)
            self._begun.append((len(self._recorder.log), self._recorder.work))
            self._watch.crossing.clear()
            yield self._recorder.copied(samples)

    def _add_up_sparse_gradients(self, num: int) -> None:
        """Make the sparse gradients of one micro-batch those of ``num``. Their rows add up, unlike dense ones."""
        with torch.no_grad():
            for parameter in self._model.parameters():
                gradient = parameter.grad
                if gradient is not None and gradient.is_sparse:
                    grow(gradient._local_tensor if isinstance(gradient, DTensor) else gradient, num)

    def _begin_log(self) -> int:
        """Begin a new log with what is alive now; returns its number of events."""
        gc.collect()
        gc.freeze()
        self._recorder.hold(list(self._model.parameters()), "parameters")
        self._recorder.hold(list(self._model.buffers()), "buffers")
        self._recorder.begin(module_bytes(self._model, self._blocks))
        return len(self._recorder.log)

    def _begin_step(self) -> None:
        self._recipe.begin_step(self._num_steps, self._optimizer)
        self._unfreeze(self._optimizer)
        self._num_steps += 1

    def _owners(self) -> dict[int, int]:
        """The block of each buffer that is alive between steps, by the buffer's number."""
        owners: dict[int, int] = {}
        kept_of = self._recipe.kept_of(self._model)
        for number, block in enumerate(self._blocks):
            states = [self._optimizer.state.get(parameter, {}) for parameter in block.parameters()]
            tensors = (*block.parameters(), *block.buffers())
            kept_tensors = [kept_of[tensor] for tensor in tensors if tensor in kept_of]
            held = [list(block.parameters()), list(block.buffers()), states, kept_tensors]
            owners |= dict.fromkeys(self._recorder.numbers(held), number)
        return owners


@dataclass(frozen=True, slots=True)
class _Repeated:
    """Micro-batches that are made anew each time."""

    make: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.make()


def _random_state() -> object:
    state: Any = np.random.get_state(legacy=False)
    return random.getstate(), state["state"]["pos"], state["state"]["key"].tobytes()
