"""One-shot search as a user writes it, and the parts that trials have in it.

A supernet, which has every candidate in its weights, trains first. Candidates are scored with its weights, and the best
of them are then trained alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from scamp_service.study.values import Integer, Strict

SUPERNET = "supernet"
"""The parameter that is true for the supernet. It has no other parameters but those that are fixed."""


class Part(StrEnum):
    """The part of a trial in one-shot search."""

    SUPERNET = "SUPERNET"
    SCORED = "SCORED"  # evaluated once, with the weights that it inherits from the supernet
    ALONE = "ALONE"  # trained from new weights, as in any other study


class OneShot(Strict):
    """Score ``candidates`` with the weights of a supernet that trains ``steps``, and train the ``best`` of them alone.

    ``steps`` are those of all trials by default.
    """

    candidates: Annotated[Integer, Field(ge=1, le=1000)]
    best: Annotated[Integer, Field(ge=1, le=25)] = 3
    steps: Annotated[Integer, Field(ge=1, le=10**9)] | None = None

    @property
    def num_trials(self) -> int:
        """Number of trials in all."""
        return 1 + self.candidates + self.best

    def num_until_wait(self, num_trials: int) -> int:
        """How many more trials there may be after ``num_trials`` before all of them must have ended."""
        ends = (1, 1 + self.candidates, self.num_trials)
        return next((end - num_trials for end in ends if end > num_trials), self.num_trials)

    def waits(self, num_trials: int) -> bool:
        """Whether the next trial depends on all before it: the first candidate, and the first that is trained alone."""
        return num_trials in (1, 1 + self.candidates)


def is_supernet(params: Mapping[str, Any]) -> bool:
    """Whether these are the parameters of the supernet."""
    return params.get(SUPERNET) is True
