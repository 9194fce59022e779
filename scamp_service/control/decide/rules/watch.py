"""Decides when a gang that lives but makes no progress is given up: its devices would be held for ever."""

from __future__ import annotations

from scamp_service.control.executor import GangStatus
from scamp_service.model import Attempt
from scamp_service.study.budget import Budget

FIRST_SECONDS = 900.0
"""Patience before the first steps are timed: the workload may load its data, and the first step may compile kernels."""
LEAST_SECONDS = 300.0
"""Patience afterwards, if steps are short: evaluations and checkpoints take longer than a step."""
STEPS = 50
"""Patience is at least the time of this many steps."""


def why_stalled(budget: Budget, attempt: Attempt, gang: GangStatus) -> str:
    """Why a gang is given up, with what its ranks do; empty as long as there is hope."""
    patience = patience_seconds(budget, attempt)
    if gang.quiet_seconds <= patience:
        return ""
    whereabouts = (
        f"a step took {attempt.measured_step_seconds:.3g} s" if attempt.measured_step_seconds else "no step is timed"
    )
    limit = (
        "budget.stall_seconds"
        if budget.stall_seconds is not None
        else f"{whereabouts}; set budget.stall_seconds for more"
    )
    return f"made no progress for {patience:.0f} s ({limit}): {gang.doing or 'its ranks do not say what they do'}"


def patience_seconds(budget: Budget, attempt: Attempt) -> float:
    """Seconds without progress after which the attempt is given up: the study's own, or learned from its steps."""
    if budget.stall_seconds is not None:
        return budget.stall_seconds
    if attempt.measured_step_seconds:
        return max(LEAST_SECONDS, STEPS * attempt.measured_step_seconds)
    return max(FIRST_SECONDS, STEPS * (attempt.choice.step_seconds or 0.0))
