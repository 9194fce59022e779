"""Counts for how long something has been so, by a clock that never jumps.

Wall clocks are set back and forth, and those of two hosts differ. A new controller begins to count anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class FirstSeen(Generic[_Key]):
    """Remembers when each key was first seen."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives monotonic seconds."""
        self._clock = clock
        self._since: dict[_Key, float] = {}

    def seconds(self, keys: Iterable[_Key]) -> dict[_Key, float]:
        """Seconds since each of these keys was first seen, without a look at which it was missing."""
        now = self._clock()
        self._since = {key: self._since.get(key, now) for key in keys}
        return {key: now - since for key, since in self._since.items()}
