"""Builds a workload's model, also on the meta device: the shapes of its parameters and buffers, without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workloads.protocol import Workload
from workloads.refusals import WrongResult, expect_model


def model_of(workload: Workload) -> nn.Module:
    """The workload's model.

    Raises ``WrongResult`` if ``build_model`` returns none, or leaves a module with tensors outside of it: no plan
    spreads that one, and no checkpoint has it.
    """
    before = dict(vars(workload))
    model = expect_model(workload.build_model(), workload.build_model)
    inside = {id(tensor) for tensor in _tensors(model)}
    for name, value in vars(workload).items():
        if value is before.get(name):
            continue
        for module in tree_leaves(value):
            if isinstance(module, nn.Module) and any(id(tensor) not in inside for tensor in _tensors(module)):
                raise WrongResult(
                    workload.build_model,
                    f"makes {type(module).__name__}, self.{name} of the workload, which is no part of the model that "
                    "it returns",
                    "make it a submodule of the model, so that it is spread and in the checkpoints; what stays frozen "
                    "gets requires_grad_(False)",
                )
    return model


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def outline_of(workload: Workload) -> nn.Module:
    """The workload's model on the meta device, also if ``build_model`` moves it, as by ``.to("cpu")``."""
    with torch.device("meta"), _StaysOnMeta():  # type: ignore[no-untyped-call]
        return workload.build_model()


class _StaysOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps tensors of the meta device there. They cannot be copied to another device, as they have no values."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is not None and args and isinstance(args[0], Tensor) and args[0].is_meta:
            kwargs = {**kwargs, "device": torch.device("meta")}
        return func(*args, **kwargs)
