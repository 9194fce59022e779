"""Waiting in tests: what an idle machine does in milliseconds may take a busy one minutes, and neither is a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 900.0
"""The limit of every wait: a wait ends as soon as it can, so its limit says only what counts as never."""
T = TypeVar("T")


def until(condition: Callable[[], T | None], condition_name: str) -> T:
    """The first true answer of ``condition``."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = 0.005
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:.0f} s: {condition_name}"
        time.sleep(pause)
        pause = min(0.1, 1.5 * pause)
    return result
