"""A trial as trackers show it, a run, and how a tracker is written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scamp.export import trial_row

MOST_CHARACTERS = 5000
"""Characters of one text; trackers limit them."""


class Tracker(Protocol):
    """A place to which runs are written.

    ``write`` may be called with any run at any time, also by a process that starts after another one was killed: it
    writes only what the tracker does not have yet. ``errors`` are those of the tracker's own library.
    """

    errors: tuple[type[Exception], ...]

    def write(self, run: Run) -> None:
        """Write what is new of a run."""

    def close(self) -> None:
        """Write what is still to be written."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics that a trial has reported at a step; those that are not finite are NaN."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """A trial of a study, both as the API returns them, with the address of its page on the dashboard.

    ``evaluations`` returns those after a step, and ``attempts`` the trial's attempts as the API returns them.
    """

    study: Mapping[str, Any]
    trial: Mapping[str, Any]
    page: str
    evaluations: Callable[[int], Sequence[Evaluation]]
    attempts: Callable[[], Sequence[Mapping[str, Any]]]

    @property
    def number(self) -> int:
        """Number of the trial in its study."""
        return int(self.trial["number"])

    @property
    def finished_at(self) -> float | None:
        """Time at which the trial ended; None while it has not."""
        finished_at: float | None = self.trial["finished_at"]
        return finished_at

    @property
    def has_failed(self) -> bool:
        """Whether the trial has ended without a result."""
        return self.trial["state"] in ("FAILED", "INFEASIBLE")

    @property
    def params(self) -> dict[str, str | int | float | bool]:
        """The parameters by name, those of blocks as ``layers.0.width``; lists are JSON."""
        params = ((name, value) for name, value in trial_row(self.trial).items() if name.startswith("params."))
        return {
            name.removeprefix("params."): value if isinstance(value, str | int | float) else json.dumps(value)
            for name, value in params
        }

    @property
    def facts(self) -> dict[str, str]:
        """State, reason and plan in words, and the page of the trial."""
        facts = {
            "state": self.trial["state"],
            "reason": self.trial["reason"],
            "plan": self.trial["plan_text"],
            "page": self.page,
        }
        return {name: text[:MOST_CHARACTERS] for name, text in facts.items() if text}


def key_of(study: Mapping[str, Any]) -> str:
    """Text that no other study has, nor one of another service: its number and when it was created (UTC)."""
    return f"{study['id']}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(study['created_at']))}"
