"""ZeRO-1: every replica has the whole model, but updates only a part of the parameters and has only their states.

fairscale's ``OSS`` divides the parameters, and sends updated ones to the other replicas. Import this module only where
it is needed: fairscale takes half a second to import.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from workloads.parallel.exchanging.gloo import released
from workloads.parallel.optimizers.shared_options import SharedOptions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # fairscale imports parts of torch that are deprecated
    from fairscale.optim.oss import OSS


class ZeroOptimizer(OSS):  # type: ignore[misc]
    """Updates like ``optimizer``, with the mean of the replicas' gradients; ``state`` covers only this rank's part.

    ``optimizer`` must be new; it keeps only this rank's part of the parameters and of the states. What a schedule that
    holds it changes in its groups counts as well.
    """

    def __init__(self, optimizer: Optimizer, group: dist.ProcessGroup) -> None:
        def part(groups: list[dict[str, Any]], **defaults: Any) -> Optimizer:
            optimizer.param_groups = groups
            return optimizer

        self._owners: dict[Tensor, int] = {}  # rank that updates each parameter
        groups = [dict(param_group) for param_group in optimizer.param_groups]
        super().__init__(groups, optim=part, group=group, **optimizer.defaults)
        self.state = self.optim.state
        # Some optimizers make states at once, such as Adagrad.
        for parameter in self.state.keys() - self.own_parameters:
            del self.state[parameter]
        self._trainable = self._requires_grad()
        self.options = SharedOptions(lambda: zip(self.param_groups, self.optim.param_groups, strict=True))
        self._before = list(optimizer._optimizer_step_pre_hooks.values())
        self._after = list(optimizer._optimizer_step_post_hooks.values())
        optimizer._optimizer_step_pre_hooks.clear()
        optimizer._optimizer_step_post_hooks.clear()

    @property
    def own_parameters(self) -> set[Tensor]:
        """The parameters that this rank updates."""
        return {parameter for group in self.optim.param_groups for parameter in group["params"]}

    def partition_parameters(self) -> list[list[dict[str, Any]]]:
        """The parameter groups of each rank.

        Parameters are dealt out from the largest to the smallest, each to the rank that has the least so far. This is
        more even than to deal them out in the model's order. Rank 0 gets the largest part. Those of a group that is
        added later are dealt out likewise, and the others stay where their states are.
        """
        if not self._partition_parameters:
            every = [parameter for group in self.param_groups for parameter in group["params"]]
            parts: list[list[Tensor]] = [[] for _ in range(self.world_size)]
            for parameter, rank in self._owners.items():
                parts[rank].append(parameter)
            added = [parameter for parameter in every if parameter not in self._owners]
            for parameter in sorted(added, key=Tensor.numel, reverse=True):
                min(parts, key=_size).append(parameter)
            if not self._owners:
                parts.sort(key=_size, reverse=True)
            self._owners = owner = {parameter: rank for rank, part in enumerate(parts) for parameter in part}
            for rank in range(self.world_size):
                self._partition_parameters.append([])
                for group in self.param_groups:
                    mine = copy.copy(group)
                    mine["params"] = [parameter for parameter in group["params"] if owner[parameter] == rank]
                    self._partition_parameters[rank].append(mine)
        parted: list[list[dict[str, Any]]] = self._partition_parameters
        return parted

    @torch.no_grad()
    def step(self, closure: None = None, **kwargs: Any) -> None:
        """Update this rank's part with the mean of all replicas' gradients, and receive the other parts.

        Hooks of the user's optimizer see all parameters: before the update with their mean gradients, as clipping needs
        them, and afterwards with their new values.
        """
        if (trainable := self._requires_grad()) != self._trainable:
            self.refresh_trainable()  # only parameters that required gradients at its last call are sent
            self._trainable = trainable
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with ExitStack() as stack:
            for gradient in gradients:
                stack.enter_context(released(gradient))
            sums = [dist.all_reduce(gradient, group=self.group, async_op=True) for gradient in gradients]
            while sums:
                sums.pop(0).wait()
        for gradient in gradients:
            gradient.div_(self.world_size)
        for hook in self._before:
            hook(self, (), {})
        self.options.share()
        super().step(**kwargs)
        for hook in self._after:
            hook(self, (), {})

    def _requires_grad(self) -> list[bool]:
        return [parameter.requires_grad for group in self.param_groups for parameter in group["params"]]


def _size(part: list[Tensor]) -> int:
    return sum(map(Tensor.numel, part))
