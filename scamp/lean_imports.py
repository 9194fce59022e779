"""Imports that take less time: without an optional part that is not used, and without garbage collections."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(module: str) -> Iterator[None]:
    """Let the module look as if it were not installed, unless it has been imported before."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


@contextmanager
def uncollected() -> Iterator[None]:
    """Import, or warm up, without garbage collections, which would take a fifth of the time: all of it stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
