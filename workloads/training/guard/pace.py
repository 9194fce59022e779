"""Decides after which steps the guard checks a training, so that it takes a small share of its time."""

from __future__ import annotations

from dataclasses import dataclass

MOST_SHARE = 0.02
"""Largest share of the time of an attempt; the first check and the last one may take more."""


@dataclass(slots=True)
class Pace:
    """The checks of an attempt that began at ``began``: after its first step, its last, and some of those between.

    In between it is the first step after an evaluation, and where the number of steps has doubled.
    """

    began: float
    num_steps: int = 0
    seconds: float = 0.0
    _last_seconds: float | None = None
    _is_due: bool = False

    def end_step(self) -> None:
        """Count a step."""
        self.num_steps += 1
        self._is_due |= self.num_steps & (self.num_steps - 1) == 0

    def end_evaluation(self) -> None:
        """Count an evaluation."""
        self._is_due = True

    @property
    def may_be_due(self) -> bool:
        """Whether a check is due if there is time for it."""
        return self._is_due

    def has_time(self, now: float) -> bool:
        """Whether a check as long as the last one keeps to the share; there is always time for the first."""
        if self._last_seconds is None:
            return True
        return self.seconds + self._last_seconds <= MOST_SHARE * (now - self.began)

    def share(self, now: float) -> float:
        """Share of the time so far that checks took."""
        return self.seconds / (now - self.began)

    def end_check(self, seconds: float) -> None:
        """Count a check."""
        self.seconds += seconds
        self._last_seconds, self._is_due = seconds, False
