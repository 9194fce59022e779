"""Limits how often somebody may do something in a minute, by the library limits."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.strategies import RateLimiter


class Limiter:
    """At most ``a_minute`` hits of one key in each minute from its first one. Safe for threads."""

    def __init__(self, a_minute: int) -> None:
        self._a_minute = a_minute

    @cached_property
    def _limited(self) -> tuple[RateLimiter, RateLimitItem]:
        from limits import RateLimitItemPerMinute  # here: it takes a fifth of a second, and most need it never
        from limits.storage import MemoryStorage
        from limits.strategies import FixedWindowRateLimiter

        return FixedWindowRateLimiter(MemoryStorage()), RateLimitItemPerMinute(self._a_minute)

    def wait_seconds(self, key: str) -> float:
        """Seconds until a hit is allowed; 0: it is now. This is no hit."""
        if "_limited" not in self.__dict__:
            return 0.0
        limiter, item = self._limited
        if limiter.test(item, key):
            return 0.0
        return max(0.0, limiter.get_window_stats(item, key).reset_time - time.time())

    def hit(self, key: str) -> float:
        """Count a hit; returns the seconds until it would have been allowed, 0 if it is."""
        limiter, item = self._limited
        if limiter.hit(item, key):
            return 0.0
        return max(0.001, limiter.get_window_stats(item, key).reset_time - time.time())
