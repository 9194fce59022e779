"""The interface of a device that a trace stands for: what training takes there besides the tensors of operations.

All is traced on fake CPU tensors. A trace asks its device for the code paths that operations take, for the memory that
kernels need while they run, and for objects in host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

Workspace = tuple[tuple[int, int], ...]
"""Bytes taken and freed before an output is made, and bytes held while it is made; for each output in order."""
NOTHING = (0, 0)


class Device(Protocol):
    """A kind of device, as a trace knows it."""

    @property
    def holds_objects(self) -> bool:
        """Whether its memory is that of the host, where autograd's objects lie, too."""

    @property
    def unknown_percent(self) -> int:
        """Bytes that its kernels may need beyond a traced peak, in percent of it."""

    def code_paths(self) -> AbstractContextManager[None]:
        """A context in which operations on CPU tensors take the code paths of the device."""

    def workspace(self, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Workspace:
        """The memory that one operation, which returned ``out``, uses internally; empty if nothing is known of it."""
