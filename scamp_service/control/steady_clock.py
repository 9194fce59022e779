"""A clock for the dates from which durations are computed, such as how long an attempt has held its devices."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.1
"""By how much a second of this clock may be longer or shorter than a true one."""


def awake_or_not() -> float:
    """Seconds of a clock that never jumps, and that counts while the computer sleeps where the system has one."""
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class SteadyClock:
    """Seconds since the epoch that never jump.

    It follows the wall clock, but at most ``SHARE`` faster or slower than ``monotonic``. So a wall clock that is wrong
    for a moment changes nothing, one that is set right is followed after a while, and no duration is wrong by more than
    that share.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = awake_or_not) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._now, self._at = wall(), monotonic()

    def __call__(self) -> float:
        """The time now."""
        at = self._monotonic()
        passed, self._at = at - self._at, at
        ahead = self._wall() - (self._now + passed)
        self._now += passed + max(-SHARE * passed, min(SHARE * passed, ahead))
        return self._now
