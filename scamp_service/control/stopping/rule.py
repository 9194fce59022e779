"""Protocol of the stopping rules, and the verdicts that they return.

A rule is made from the study's spec and is pure. It gets only what the database knows, so a controller that was started
again judges as the one before it would have.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scamp_service.control.stopping.rung import Rung
from scamp_service.model import Trial


@dataclass(frozen=True, slots=True)
class Continue:
    """The trial keeps training; a paused one continues from its checkpoint. The user reads the ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """The trial waits without devices, and is judged again as others report. The user reads the ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The trial ends now, with what it has reached: more steps would gain nothing. The user reads the ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The trial ends now and never continues. The user reads the ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exploit:
    """The trial ends, and a copy of one of the ``donors`` continues in its place, with changed parameters.

    ``donors`` are numbers of trials; the first that is paused is copied as it is. If none is, the trial continues.
    """

    reason: str
    donors: tuple[int, ...]


Verdict = Continue | Pause | Complete | Exploit | Stop
"""Code that carries out verdicts handles every member, so mypy names the places that a new kind of verdict needs."""


class StoppingRule(Protocol):
    """Judges the trials of one study. Two rules made from the same spec are equal."""

    @property
    def rungs(self) -> Sequence[int]:
        """Steps at which trials are judged, ascending: each is a report before the last step of the study."""
        ...

    def pauses_at(self, number: int) -> Sequence[int]:
        """The ``rungs`` at which trial ``number`` is paused, with a checkpoint, until it is judged."""
        ...

    def judge(self, trial: Trial, rung: int, reported: Mapping[int, Rung], *, is_last: bool) -> Verdict:
        """The verdict on ``trial`` at the step ``rung``, which is among ``rungs``. It may have trained further since.

        ``reported`` has for each of ``rungs`` the objective of every trial that has reported there, among them this
        one's at ``rung``. ``is_last`` says that no other trial of the study will report unless a paused one continues;
        then the verdict is not ``Pause``. The verdict depends on these values alone and not on their order of arrival.
        """
        ...


def due_rungs(rule: StoppingRule, trial: Trial) -> Sequence[int]:
    """Rungs that the trial has reached and at which it was not judged yet, ascending; none of one that no rule
    judges."""
    if not trial.is_judged:
        return ()
    rungs = rule.rungs
    return rungs[bisect_right(rungs, trial.judged_step) : bisect_right(rungs, trial.step)]


def next_pause(rule: StoppingRule, trial: Trial) -> int | None:
    """Step at which the trial's next attempt is to pause it; None if it trains to the end."""
    pauses = rule.pauses_at(trial.number) if trial.is_judged else ()
    place = bisect_right(pauses, trial.judged_step)
    return pauses[place] if place < len(pauses) else None


def broken_value(values: Sequence[float], step: int, rung: int, unit: str) -> Stop:
    """Stops a trial of whose objectives one is not finite, which therefore compares with no other."""
    value = next(value for value in values if not math.isfinite(value))
    advice = "if evaluate cannot compute it so early, raise stopping.min_steps"
    was = was_at(step, rung, unit)
    return Stop(
        f"stopped at {unit} {step}: the objective {was[0]} {value}{was[1]}, which compares with no other; {advice}"
    )


def was_at(step: int, rung: int, unit: str) -> tuple[str, str]:
    """The verb and the step for what a trial that is at ``step`` has reported at ``rung``.

    ``unit`` names what the study counts: ``step`` or ``epoch``.
    """
    return ("is", "") if step == rung else ("was", f" at {unit} {rung}")
