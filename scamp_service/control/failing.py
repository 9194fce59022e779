"""How often our own code has failed on one study without success in between, and when that is enough to stop it."""

from __future__ import annotations

from dataclasses import dataclass

ERRORS_BEFORE_FAILED = 30
SECONDS_BEFORE_FAILED = 120.0
"""A study is stopped once our own code has failed on it this many times in a row, and for this long: a fault of Ray or
of the host passes meanwhile."""


@dataclass(frozen=True, slots=True)
class Failing:
    """Tries in a row that failed, the first one at ``since`` (monotonic seconds), and how the last one did."""

    since: float
    times: int = 0
    why: str = ""

    def after_failure(self, why: str) -> Failing:
        """Counts one more failure."""
        return Failing(self.since, self.times + 1, why)

    def is_lasting(self, now: float) -> bool:
        """Whether this is more than a fault that passes."""
        return self.times >= ERRORS_BEFORE_FAILED and now - self.since >= SECONDS_BEFORE_FAILED

    def in_words(self, now: float) -> str:
        """The reason that the user sees."""
        how_often = f"{self.times} times in a row within {now - self.since:.0f} s"
        return f"the controller failed on it {how_often}; see its log: {self.why}"[:500]
