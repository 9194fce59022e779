"""A CPU of whose kernels nothing is known: a margin stands for what they need while they run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from estimators.tracing.device.device import Workspace


class UnknownCpu:
    """See ``UNKNOWN_CPU``."""

    holds_objects = True
    unknown_percent = 36
    """Without knowledge of kernels the worst of 174 peaks was 26 % too low (docs/decisions/0026)."""

    def code_paths(self) -> AbstractContextManager[None]:
        """The code paths that torch takes without a change."""
        return nullcontext()

    def workspace(self, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Workspace:
        """Always empty."""
        return ()


UNKNOWN_CPU = UnknownCpu()
"""The device of virtual devices where oneDNN cannot be asked: a stripped torch, or another system than Linux."""
