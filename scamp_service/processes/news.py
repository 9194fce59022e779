"""Lets the controller's next cycle begin as soon as there is something to decide, instead of at fixed times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHORTEST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.1
"""Pauses between two cycles: with news, and without any. Some things, such as silence, are found only by looking."""


class News:
    """Told by the threads that wait for ranks, samplers and traces; heard by the loop of the controller.

    The loop is its only listener. ``monotonic`` returns seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._told = threading.Event()
        self._monotonic = monotonic
        self._heard = monotonic()

    def tell(self) -> None:
        """Let the next cycle begin soon. Any thread may call it."""
        self._told.set()

    def wait(self) -> None:
        """Wait for news since the last call, but no longer than the longest pause.

        Cycles take at most half of the time, whatever they cost, so that ranks on the same machine can train.
        """
        took = self._monotonic() - self._heard
        least = min(LONGEST_PAUSE_SECONDS, max(SHORTEST_PAUSE_SECONDS, took))
        time.sleep(least)
        self._told.wait(LONGEST_PAUSE_SECONDS - least)
        self._told.clear()
        self._heard = self._monotonic()
