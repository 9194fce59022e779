"""Several optimizers: they take turns in every step, each for a loss of its own, or update together for one loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.protocol import Phase, Workload
from workloads.refusals import WrongResult, expect_optimizer, kinds_of
from workloads.training.reported import TRAIN_LOSS


def phases_of(workload: Workload) -> Sequence[Phase]:
    """The phases of the workload; empty if it has a single loss. Raises ``WrongResult`` for what cannot be used."""
    phases = list(workload.phases())
    for phase in phases:
        if not isinstance(phase, Phase):
            raise WrongResult(
                workload.phases, f"returns {kinds_of(phase)} instead of a phase", "return a list of Phase"
            )
        if isinstance(phase.every, bool) or not isinstance(phase.every, int) or phase.every < 1:
            raise WrongResult(
                workload.phases, f"gives phase {phase.name!r} every={phase.every!r}", "count steps, from 1 on"
            )
        if isinstance(phase.first, bool) or not isinstance(phase.first, int) or phase.first < 0:
            raise WrongResult(
                workload.phases, f"gives phase {phase.name!r} first={phase.first!r}", "count steps, from 0 on"
            )
        if phase.clip_norm is not None and not phase.clip_norm > 0:
            raise WrongResult(
                workload.phases,
                f"gives phase {phase.name!r} clip_norm={phase.clip_norm!r}",
                "give a number above 0, or None",
            )
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise WrongResult(
            workload.phases, f"names its phases {', '.join(map(repr, names))}", "give each a name of its own, one word"
        )
    if "train" in names:
        raise WrongResult(
            workload.phases, f"names a phase 'train', whose loss would be called {TRAIN_LOSS}", "give it another name"
        )
    return phases


def optimizer_of(phase: Phase, model: nn.Module) -> Optimizer:
    """A new optimizer of the phase. Raises ``WrongResult`` if it trains nothing."""
    try:
        optimizer = expect_optimizer(phase.optimizer(model), phase.optimizer)
    except ValueError as error:
        if "empty parameter list" not in str(error):
            raise
        raise _trains_nothing(phase) from None
    if not any(parameter.requires_grad for parameter in _parameters(optimizer)):
        raise _trains_nothing(phase)
    return optimizer


class JointOptimizer(Optimizer):
    """Several optimizers of different parameters as one, which updates with all of them."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(_groups(optimizers), {})
        self._optimizers = optimizers
        for optimizer in optimizers:
            self.state.update(optimizer.state)
            optimizer.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters."""
        for optimizer in self._optimizers:
            optimizer.step()


class PhasedOptimizer(JointOptimizer):
    """The optimizers of all phases as one, which updates with that of the phase whose ``turn`` it is."""

    def __init__(self, phases: Sequence[Phase], optimizers: Sequence[Optimizer], model: nn.Module) -> None:
        """Raises ``WrongResult`` if two of the optimizers train the same parameter."""
        functions = [(f"phase {phase.name!r}", phase.optimizer) for phase in phases]
        expect_own_parameters(functions, optimizers, model)
        super().__init__(optimizers)
        self.turn = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters of the phase whose turn it is."""
        self._optimizers[self.turn].step()


def expect_own_parameters(
    functions: Sequence[tuple[str, Callable[..., Any]]], optimizers: Sequence[Optimizer], model: nn.Module
) -> None:
    """Raise ``WrongResult`` if two of the optimizers train the same parameter.

    ``functions`` are words for each optimizer, and the function that has made it.
    """
    owners: dict[Tensor, str] = {}
    for (words, function), optimizer in zip(functions, optimizers, strict=True):
        for parameter in _parameters(optimizer):
            if (other := owners.setdefault(parameter, words)) != words:
                names = (name for name, other_parameter in model.named_parameters() if other_parameter is parameter)
                raise WrongResult(
                    function,
                    f"{other} and {words} both train {next(names, 'a parameter')}",
                    "give each parameter to one of them",
                )


def _groups(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """All groups, first the workload's own: checkpoints count these (see ``tensor_parallel.grouped_by_mesh``)."""
    groups: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for optimizer in optimizers:
        num_before = len(groups)
        for group in optimizer.param_groups:
            if "part_of" in group:
                group["part_of"] += num_before
                parts.append(group)
            else:
                groups.append(group)
    return [*groups, *parts]


def _trains_nothing(phase: Phase) -> WrongResult:
    return WrongResult(
        phase.optimizer,
        f"phase {phase.name!r} trains no parameter",
        "give its optimizer parameters of the model that require gradients",
    )


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
