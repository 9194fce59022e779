"""The modes of torch in which a model is fake, and when its garbage is collected."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

_keeps_frozen = False


def keep_frozen() -> None:
    """Exempt everything that this process has from garbage collection, for good: it is made for traces."""
    global _keeps_frozen
    gc.collect()
    gc.freeze()
    _keeps_frozen = True


@contextlib.contextmanager
def deferred_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what exists already need not be scanned again between steps
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not _keeps_frozen:
            gc.unfreeze()


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Takes shapes from torch's meta kernels where there are any. ``FakeTensorMode`` itself would first decompose
    operations in Python, which only symbolic shapes need and which takes two to four times as long."""

    def cpp_meta_supports_symint(self, func: Any) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "Meta")


class NoInit(TorchFunctionMode):
    """Skips ``torch.nn.init``: it changes nothing on fake tensors, but takes most of the time of building a model."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
