"""Updates each rank's own part of the parameters as plain tensors, for optimizers that treat each number on its own.

Each operation on a DTensor costs about 0.1 ms before it starts, and AdamW makes a dozen of them for each parameter.
Such optimizers need nothing from other ranks, so they get the local tensors for the time of the step. Before and after
it, for hooks, checkpoints and everything else, parameters and states are DTensors.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, SparseAdam

from scamp.workload.split_sgd import SplitSGD

_EACH_NUMBER = (SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, Adadelta, RMSprop, ASGD, SparseAdam, SplitSGD)
"""Optimizers whose update of a number depends on its own gradients and states alone."""


def step_on_local_parts(optimizer: Optimizer) -> Optimizer:
    """Have ``optimizer`` update local tensors from now on, if it can; hooks that it has already see DTensors."""
    if type(optimizer) in _EACH_NUMBER:
        local = _LocalParts()
        optimizer.register_step_pre_hook(local.begin)
        last = optimizer.register_step_post_hook(local.end)
        hooks: Any = optimizer._optimizer_step_post_hooks
        hooks.move_to_end(last.id, last=False)
    return optimizer


class _LocalParts:
    """The parameters and the states of an optimizer while it has local tensors in their place."""

    def __init__(self) -> None:
        self._params: list[list[Tensor]] = []
        self._state: Any = {}

    def begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Give the optimizer the local tensors."""
        self._params, self._state = [group["params"] for group in optimizer.param_groups], optimizer.state
        local_state: defaultdict[Tensor, Any] = defaultdict(dict)
        for group in optimizer.param_groups:
            group["params"] = [self._local(parameter, local_state) for parameter in group["params"]]
        optimizer.state = local_state

    def end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Give it the parameters and their states back, with what the step has made."""
        local_state: Any = optimizer.state
        for group, parameters in zip(optimizer.param_groups, self._params, strict=True):
            for parameter, local in zip(parameters, group["params"], strict=True):
                if parameter is not local:
                    local.grad = None
                if local in local_state:
                    _keep(parameter, self._state[parameter], local_state[local])
            group["params"] = parameters
        optimizer.state = self._state
        self._params, self._state = [], {}

    def _local(self, parameter: Tensor, local_state: dict[Tensor, Any]) -> Tensor:
        local: Tensor = _part(parameter)
        if isinstance(parameter, DTensor) and (gradient := parameter.grad) is not None:
            assert isinstance(gradient, DTensor)
            if gradient.placements != parameter.placements:
                gradient = gradient.redistribute(placements=parameter.placements)
            local.grad = gradient._local_tensor
        if parameter in self._state:
            local_state[local] = {name: _part(value) for name, value in self._state[parameter].items()}
        return local


def _part(value: Any) -> Any:
    return value._local_tensor if isinstance(value, DTensor) else value


def _keep(parameter: Tensor, state: dict[str, Any], local: dict[str, Any]) -> None:
    """Put what the step has made of a parameter's state into ``state``; new tensors of its shape are DTensors there."""
    for name, value in local.items():
        if _part(state.get(name)) is value:
            continue
        if isinstance(value, Tensor) and isinstance(parameter, DTensor) and value.shape == _part(parameter).shape:
            mesh, placements, shape = parameter.device_mesh, parameter.placements, parameter.shape
            stride = parameter.stride()
            value = DTensor.from_local(value, mesh, placements, run_check=False, shape=shape, stride=stride)
        state[name] = value
