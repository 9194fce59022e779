"""Protocol of the stopping rules, and the verdicts that they return.

A rule is made from the study's spec and is pure. It gets only what the database knows, so a controller that was started
again judges as the one before it would have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scamp_service.control.stopping.rung import Rung
from scamp_service.model import Trial


@dataclass(frozen=True, slots=True)
class Continue:
    """The trial keeps training. The user reads the ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The trial ends now and never continues. The user reads the ``reason``."""

    reason: str


Verdict = Continue | Stop
"""Whoever carries out verdicts must handle every member, so mypy names the places that a new kind of verdict needs."""


class Rule(Protocol):
    """Judges the trials of one study. Two rules made from the same spec are equal."""

    @property
    def rungs(self) -> Sequence[int]:
        """Steps at which trials are judged, ascending: each is a report before the last step of the study."""
        ...

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung]) -> Verdict:
        """The verdict on ``trial`` at the step ``rung``, which is among ``rungs``. It may have trained further since.

        ``reported`` has for each of ``rungs`` the objective of every trial that has reported there, among them this
        one's at ``rung``. The verdict depends on these values alone and not on their order of arrival.
        """
        ...


def due_rungs(rule: Rule, trial: Trial) -> Sequence[int]:
    """Rungs that the trial has reached and at which it was not judged yet, ascending."""
    rungs = rule.rungs
    return rungs[bisect_right(rungs, trial.judged_step) : bisect_right(rungs, trial.step)]
