"""Counts for how long something has been so, by a clock that never jumps.

Wall clocks are set back and forth, and those of two hosts differ. So a wall clock is believed at most once: for what a
controller finds when it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class FirstSeen(Generic[_Key]):
    """Remembers when each key was first seen."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives monotonic seconds."""
        self._clock = clock
        self._since: dict[_Key, float] = {}
        self.is_first = True

    def seconds(self, ages: Mapping[_Key, float]) -> dict[_Key, float]:
        """Seconds since each of these keys was first seen, without a look at which it was missing.

        ``ages`` are those by the wall clock. They count at the first look, unless they are negative.
        """
        now = self._clock()
        ages_now = ages if self.is_first else dict.fromkeys(ages, 0.0)
        self._since = {key: self._since.get(key, now - max(0.0, age)) for key, age in ages_now.items()}
        self.is_first = False
        return {key: now - since for key, since in self._since.items()}
