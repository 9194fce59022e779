"""The seconds that a running trial loses if it is stopped, and continues from its checkpoint on other devices."""

from __future__ import annotations

from scamp_service.control.decide.rules.growth import counts_as
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.model import Attempt, Trial

LEAST_RESTART_SECONDS = 20.0
"""A restart costs at least so much: ranks end, and others start; what the attempt's own start took may be more."""
WORTH_RESTARTS = 3.0
"""A restart must save this many times what it costs."""


def seconds_to_go(s: Snapshot, trial: Trial, attempt: Attempt) -> float:
    """Seconds until a running trial has trained all its steps; 0 where no step was timed."""
    return (s.studies[trial.study_id].budget.length - trial.step) * _seconds_per_step(s, trial, attempt)


def seconds_made_again(s: Snapshot, trial: Trial, attempt: Attempt) -> float:
    """Seconds of what is trained again after a restart.

    This is nothing, as the attempt ends with a checkpoint; but in epochs, which have none within them, those since the
    last checkpoint, and all where there is none yet.
    """
    checkpoint = s.checkpoints.get(trial.id)
    if checkpoint is not None and s.studies[trial.study_id].budget.unit == "step":
        return 0.0
    return (trial.step - (checkpoint.step if checkpoint else 0)) * _seconds_per_step(s, trial, attempt)


def _seconds_per_step(s: Snapshot, trial: Trial, attempt: Attempt) -> float:
    """Seconds of a step as the study counts them: an epoch has more than one optimizer step."""
    if s.studies[trial.study_id].budget.unit == "step" or attempt.started_at is None:
        return (attempt.measured_step_seconds or 0.0) / counts_as(trial, attempt.plan)
    return (s.now - attempt.started_at) / max(1, trial.step)


def restart_seconds(attempt: Attempt) -> float:
    """Seconds that a restart costs: as long as the attempt's own start took, from its placement to its first step."""
    seconds = attempt.started_at - attempt.created_at if attempt.started_at is not None else 0.0
    return max(LEAST_RESTART_SECONDS, seconds)
