"""An optimizer that notes where the passes of a step end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from estimators.peaks.depth import Passes
from estimators.peaks.envelope import EventLog
from estimators.tracing.recorder import Recorder
from estimators.work import Work

_NOTHING = Passes((), (), Work())


class OtherSteps(Enum):
    """How other steps use the parameters that a traced step leaves without a gradient."""

    NEVER = auto()
    INSTEAD = auto()
    """In place of parameters that the traced step uses: all have optimizer states in the end, but no gradients."""
    AS_WELL = auto()
    """Together with them: all have gradients at once."""


@dataclass(frozen=True, slots=True)
class Step:
    """One traced step: its forward and backward passes, and the update after them.

    ``num_alive`` is the number of buffers alive before the update.
    """

    passes: Passes
    update: Passes
    num_alive: int = 0

    @property
    def state_events(self) -> EventLog:
        """The events of the buffers that the optimizer makes, numbered from 0."""
        first = self.num_alive
        return tuple((buffer - first, size) for buffer, size in self.update.events if buffer >= first)


class WatchedOptimizer:
    """Stands in for the optimizer in ``train_step``: splits the log where the passes end, and may skip the update.

    Parameters of the optimizer that only ``other_steps`` use are ``filled`` with gradients, so that they have optimizer
    states as after a step that has used them. ``stateful`` ones get these gradients after the update, which is traced
    without them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        recorder: Recorder,
        updates: bool,
        other_steps: Callable[[], OtherSteps],
        kept_of: Callable[[nn.Module], Mapping[Tensor, Sequence[Tensor]]],
    ) -> None:
        self._kept_of = kept_of
        self._model, self._optimizer, self._recorder, self._updates = model, optimizer, recorder, updates
        self._other_steps = other_steps
        self.seen = Step(_NOTHING, _NOTHING)
        self.without_gradient: set[Tensor] = set()
        self.filled: set[Tensor] = set()
        self.stateful: set[Tensor] = set()
        self.has_sparse_gradients = False

    def fill(self, parameters: Iterable[Tensor]) -> None:
        """Give these parameters gradients, those that have one excepted."""
        if isinstance(self._optimizer, torch.optim.SparseAdam):
            return  # it takes sparse gradients only
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
                self.filled.add(parameter)

    def step(self) -> None:
        recorder, parameters = self._recorder, list(self._model.parameters())
        if any(parameter.grad is None and parameter.requires_grad for parameter in parameters):
            unused = {tensor for tensor in held_by(self._optimizer) if tensor.requires_grad and tensor.grad is None}
            match self._other_steps():
                case OtherSteps.AS_WELL:
                    self.fill(unused)
                case OtherSteps.INSTEAD:
                    self.stateful |= unused
        recorder.categorise([parameter.grad for parameter in parameters], "gradients")
        self.has_sparse_gradients = any(tensor.grad is not None and tensor.grad.is_sparse for tensor in parameters)
        self.without_gradient = {parameter for parameter in parameters if parameter.grad is None}
        passes = recorder.passes
        recorder.begin()
        num_alive, num_before = len(recorder.categories), len(recorder.log)
        if self._updates:
            self._optimizer.step()
            recorder.categorise([self._optimizer.state, list(self._kept_of(self._model).values())], "optimizer")
        self.seen = Step(passes, replace(recorder.passes, num_before=num_before), num_alive)
        if self._updates and self.stateful:
            self._make_states()

    def _make_states(self) -> None:
        """Update the ``stateful`` parameters alone, so that they have optimizer states; the step does not show it."""
        self._optimizer.zero_grad()
        self.fill(self.stateful)
        self._optimizer.step()
        self._recorder.categorise([self._optimizer.state, list(self._kept_of(self._model).values())], "optimizer")

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)


def held_by(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters that the optimizer holds."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
