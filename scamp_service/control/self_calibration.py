"""Decides when a service measures the speed of its machine by itself. Pure: everything that is seen is an argument.

A measurement takes some seconds in which nothing else should run. So it waits until no study is live, and ends at once
when one arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

IDLE_SECONDS = 2.0
"""No study must have been live for so long: users who have just started a service often submit at once."""
BUSY_SECONDS = 600.0
"""Seconds after which a machine is measured even if other processes compute on it."""
LONGEST_SECONDS = 120.0
"""A measurement that takes longer has failed."""
PAUSE_SECONDS = 600.0
"""From a failure to the next try."""
TRIES = 3


class Act(StrEnum):
    """An act of self-calibration."""

    WAIT = "wait"
    START = "start"
    STOP = "stop"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class CalibrationState:
    """The state of a service and of its measurement.

    ``idle_seconds`` count from when the last study ended; they are 0 while one is live. ``is_quiet`` says whether
    other processes leave the cores of the host alone. ``running_seconds`` is None when no measurement runs.
    """

    is_known: bool
    idle_seconds: float
    is_quiet: bool
    running_seconds: float | None
    num_failures: int
    since_failure_seconds: float


def next_act(seen: CalibrationState) -> Act:
    """Decides what to do about the measurement."""
    if seen.running_seconds is not None:
        if not seen.idle_seconds:
            return Act.STOP
        return Act.GIVE_UP if seen.running_seconds > LONGEST_SECONDS else Act.WAIT
    if seen.is_known or seen.idle_seconds < IDLE_SECONDS or seen.num_failures >= TRIES:
        return Act.WAIT
    if seen.num_failures and seen.since_failure_seconds < PAUSE_SECONDS:
        return Act.WAIT
    return Act.START if seen.is_quiet or seen.idle_seconds >= BUSY_SECONDS else Act.WAIT
