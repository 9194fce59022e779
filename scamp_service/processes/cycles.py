"""Runs the cycles of a controller process, and continues after one that has failed: ranks train meanwhile.

It decides how long to pause after a failure, and which failures are worth a line in a log that nobody rotates.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from scamp_service.control.leadership import LeaderElection
from scamp_service.errors import Refused, Unavailable

log = logging.getLogger("scamp.local")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
"""Pause after a cycle that failed. It doubles with each one, until a cycle succeeds."""
LOGGED_AGAIN_SECONDS = 60.0
"""How long an error that stays the same is only counted."""


class Cycles:
    """Runs at most one cycle per call of ``run``. ``clock`` is monotonic."""

    def __init__(self, election: LeaderElection, clock: Callable[[], float] = time.monotonic) -> None:
        self._election, self._clock = election, clock
        self._has_led = False
        self._pause = 0.0
        self._resumes_at = clock()
        self._error, self._logged_at, self._times = "", clock(), 0

    def run(self) -> None:
        """Run one cycle, unless the last one failed a moment ago. Never waits.

        Raises ``Refused``, and every error of a process that has never led: nothing depends on it yet.
        """
        if self._clock() < self._resumes_at:
            return
        try:
            self._election.tick()
            self._pause = 0.0
        except Exception as error:
            # An error in the first cycle counts as a later one: the ranks that were found would end with this process.
            if isinstance(error, Refused) or not (self._has_led or self._election.leads):
                raise
            self._pause = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * self._pause))
            self._resumes_at = self._clock() + self._pause
            self._log(error)
        self._has_led = self._has_led or self._election.leads

    def _log(self, error: Exception) -> None:
        words, now = f"{type(error).__name__}: {error}", self._clock()
        if words != self._error:
            self._error, self._times = words, 0
        elif now < self._logged_at + LOGGED_AGAIN_SECONDS:
            self._times += 1
            return
        again = f" (it happened {self._times + 1} times since the last such line)" if self._times else ""
        self._logged_at, self._times = now, 0
        if isinstance(error, Unavailable):
            log.warning("%s; will try again%s", error, again)
        else:
            log.error("the controller failed in a cycle; it continues%s", again, exc_info=error)
