"""Decides after which steps the guard checks a training, so that it sees all that the code does, in little time."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_SHARE = 0.01
"""Largest share of the time of an attempt; the first checks, those of new paths and the last one may take more."""
MOST_PATHS = 6
"""Paths whose first step is checked at once; code that takes more differs from step to step."""


@dataclass(frozen=True, slots=True)
class Path:
    """A sign of what the code of a step did: another one where a term, a part of the model or a schedule began.

    ``nodes`` counts the operations that autograd has recorded, and ``switched_on`` has the attributes of the workload
    that are numbers other than 0.
    """

    nodes: int
    switched_on: frozenset[str]


def path_of(nodes: int, workload: object) -> Path:
    """The path of a step that has just ended."""
    numbers = (bool, int, float)
    return Path(nodes, frozenset(name for name, value in vars(workload).items() if type(value) in numbers and value))


@dataclass(slots=True)
class Pace:
    """The checks of an attempt that began at ``began``: after its second step, as counters that begin with 0 have then
    left it, after the first step of each new path, after its last, and as often as the share of time allows."""

    began: float
    seconds: float = 0.0
    _num_steps: int = 0
    _last_seconds: float | None = None
    _paths: set[Path] = field(default_factory=set)

    def is_due(self, path: Path, now: float) -> bool:
        """Whether a check should follow the step that has just ended."""
        self._num_steps += 1
        is_new = path not in self._paths and len(self._paths) < MOST_PATHS
        self._paths.add(path)
        if self._num_steps <= 2:
            return self._num_steps == 2
        return is_new or self.may_take(self._last_seconds or 0.0, now)

    def may_take(self, seconds: float, now: float) -> bool:
        """Whether something that takes these seconds keeps to the share."""
        return self.seconds + seconds <= MOST_SHARE * (now - self.began)

    def share(self, now: float) -> float:
        """Share of the time so far that checks took."""
        return self.seconds / (now - self.began)

    def take(self, seconds: float) -> None:
        """Count seconds of another kind of check."""
        self.seconds += seconds

    def end_check(self, seconds: float) -> None:
        """Count a check."""
        self.take(seconds)
        self._last_seconds = seconds
