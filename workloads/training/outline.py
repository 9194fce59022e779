"""Builds a model on the meta device: the shapes of its parameters and buffers, without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from workloads.protocol import Workload


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
