"""Short ways to make the values that many tests need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from estimators.model import MIB, Plan, Prediction
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Attempt, Choice, Sized, Trial


def prediction(
    reserved_mib: int = 24, predicted_bytes: int = 20 * MIB, extra_bytes: int = 0, bias_bytes: int = 0
) -> Prediction:
    """One that reserves ``reserved_mib``: whatever is not predicted is margin."""
    margin_bytes = reserved_mib * MIB - predicted_bytes
    return Prediction(predicted_bytes - extra_bytes, 0, extra_bytes, bias_bytes, margin_bytes)


def sized(
    plan: Plan | None = None,
    reserved_mib: int = 24,
    predicted_bytes: int = 20 * MIB,
    extra_bytes: int = 0,
    bias_bytes: int = 0,
    *,
    reason: str = "fits",
    learned_bytes: int = 0,
) -> Sized:
    choice = Choice(plan or Plan(8), prediction(reserved_mib, predicted_bytes, extra_bytes, bias_bytes))
    return Sized("s", choice, reason, learned_bytes)


def changed(row: Any, **changes: Any) -> Any:
    """Returns a ``Sized`` or an ``Attempt`` with other values of its own fields, or of those of its choice."""
    of_choice = {name: changes.pop(name) for name in Choice.__slots__ if name in changes}
    return replace(row, choice=replace(row.choice, **of_choice), **changes)


def new_attempt(
    trial_id: int,
    attempt: int = 1,
    *,
    token: str = "t",
    plan: Plan | None = None,
    devices: tuple[str, ...] = ("n/0",),
    device_kinds: tuple[str, ...] = (),
    reserved_mib: int = 24,
    predicted_bytes: int = 20 * MIB,
    extra_bytes: int = 0,
    bias_bytes: int = 0,
    placement_reason: str = "",
    now: float = 1.0,
) -> Attempt:
    """One that is about to begin."""
    choice = Choice(plan or Plan(8), prediction(reserved_mib, predicted_bytes, extra_bytes, bias_bytes))
    return Attempt(
        trial_id, attempt, token, AttemptState.STARTING, choice, devices, device_kinds, placement_reason, now
    )


def trial(**changes: Any) -> Trial:
    """A running trial; ``plan=None`` for one that has none, numbers of its prediction by their names in the API."""
    numbers: dict[str, Any] = {
        "reserved_mib": 24,
        "predicted_bytes": 20 * MIB,
        "extra_bytes": 0,
        "bias_bytes": 0,
        "learned_bytes": 0,
    }
    plan = changes.pop("plan", Plan(8))
    numbers |= {name: changes.pop(name) for name in numbers if name in changes}
    plan_sized = sized(plan, **numbers) if plan else None
    row = Trial(
        id=1, study_id=1, number=0, state=TrialState.RUNNING, attempt=1, params={}, reason="", structure="",
        sized=plan_sized, measured_bytes=0, measured_step_seconds=None, family="", num_lost=0, num_oom=0, passed_over=0,
        judged_step=0, step=0, value=None, created_at=0.0, started_at=None, finished_at=None,
    )  # fmt: skip
    return replace(row, **changes)


def attempt(**changes: Any) -> Attempt:
    """A running attempt; numbers of its prediction by their names in the API."""
    names = ("reserved_mib", "predicted_bytes", "extra_bytes", "bias_bytes")
    numbers = {name: changes.pop(name) for name in names if name in changes}
    row = new_attempt(1, device_kinds=("virtual",), now=0.0, **numbers)
    return changed(row, **{"state": AttemptState.RUNNING, "started_at": 0.0, **changes})
