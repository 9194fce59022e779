"""Decides when a trial is sized or run again after a fault of the host, such as a full disk or a lost database.

Such a fault does not count against the trial. It waits, twice as long after each fault in a row, because what is full
or gone now often still is a second later; and it fails in the end, because a fault that stays is to be seen.
"""

from __future__ import annotations

from scamp_service.control.decide.effects import Effect, MoveTrial
from scamp_service.lifecycle import TrialState, WaitsFor
from scamp_service.model import Attempt, Trial, TrialChanges

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 5.0, 300.0
MAX_FAULTS = 20
"""A trial fails after more faults in a row than this, more than an hour later, unless one made a new checkpoint."""


def run_later(now: float, trial: Trial, attempt: Attempt) -> Effect:
    """Queue a trial again whose attempt ended by a fault, to run after a while; or fail it after too many."""
    num_faults = 1 if trial.is_kept(attempt) else trial.num_faults + 1
    return _later(now, trial, TrialState.QUEUED, num_faults, attempt.detail)


def size_later(now: float, trial: Trial, why: str) -> Effect:
    """Let a trial wait whose candidate could not be traced because of the host; or fail it after too many faults."""
    return _later(now, trial, TrialState.WAITING, trial.num_faults + 1, why)


def must_wait(now: float, trial: Trial) -> bool:
    """Whether the time of its next try has not come. A clock that was set back does not count."""
    return now < trial.retry_at <= now + LONGEST_WAIT_SECONDS


def _later(now: float, trial: Trial, to: TrialState, num_faults: int, why: str) -> Effect:
    if num_faults > MAX_FAULTS:
        reason = (
            f"{num_faults} faults of the host in a row without a new checkpoint, most recently: {why}; "
            "mend the host and submit the study again"
        )
        return MoveTrial(trial, TrialState.FAILED, reason, TrialChanges(num_faults=num_faults))
    seconds = wait_seconds(num_faults)
    changes = TrialChanges(num_faults=num_faults, retry_at=now + seconds)
    if to is TrialState.QUEUED:
        changes["requeued_because"] = f"will run again after: {why}"
    return MoveTrial(trial, to, f"waits {seconds:.0f} s after: {why}", changes, waits_for=WaitsFor.RETRY)


def wait_seconds(num_faults: int) -> float:
    """Seconds before the next attempt, after this many faults in a row."""
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (num_faults - 1))
