"""Says when a study ends before its last trial: its budget is used up, a target is reached, or little is left to gain.

A study that is to continue later must not have reached any of its limits either (``store.parts.requests``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scamp_service.lifecycle import TrialState
from scamp_service.model import Trial
from scamp_service.study.objectives import Values
from scamp_service.study.spec import StudySpec

Scores = Mapping[int, tuple[TrialState, Values]]
"""Number of a trial → its state, and its value of each objective."""


@dataclass(frozen=True, slots=True)
class Used:
    """How far a study is, as far as its spec has limits on it.

    ``device_hours`` is 0 in a study without that limit. ``regret_bound`` is None while no bound is known. In a study
    with targets, ``leaders`` are its best trials if it has one objective, and ``scores`` are the state and values of
    each trial with values if it has several.
    """

    seconds: float
    device_hours: float = 0.0
    regret_bound: float | None = None
    leaders: Sequence[Trial] = ()
    scores: Scores = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reached:
    """A limit that a study has reached: why this ends it, and how a user may let it continue."""

    why: str
    remedy: str


_UNFINISHED = (TrialState.RUNNING, TrialState.PAUSED)


def limit_reached(spec: StudySpec, used: Used) -> Reached | None:
    """The limit of the study's budget that ends it; None if it may continue."""
    budget, bound = spec.budget, used.regret_bound
    if spec.targets and (why := _target_reached(spec, used)):
        return Reached(why, "name a target that no trial has reached, or drop the target")
    if budget.terminator is not None and bound is not None and bound <= budget.terminator.regret:
        why = f"no candidate is likely to be better by more than {bound:.4g} (budget.terminator)"
        return Reached(why, "drop the terminator")
    if budget.seconds is not None and used.seconds >= budget.seconds:
        why = f"the study has used up its {budget.seconds:g} s (budget.seconds)"
        return Reached(why, f"it has run for {used.seconds:.0f} s so far: name more, or drop seconds")
    if budget.device_hours is not None and used.device_hours >= budget.device_hours:
        why = f"the study has used up its {budget.device_hours:g} device-hours (budget.device_hours)"
        return Reached(why, f"it has used {used.device_hours:.4g} so far: name more, or drop device_hours")
    return None


def _target_reached(spec: StudySpec, used: Used) -> str:
    """Which trial has reached the targets of all objectives that have one; empty if none has."""
    targets, objectives = spec.targets, spec.every_objective
    if not objectives.has_several:
        (target,) = targets.values()
        for leader in used.leaders:
            if spec.repeats > 1 and leader.state is not TrialState.COMPLETED:
                continue  # its value is not the mean yet
            if leader.value is not None and not spec.objective.is_better(target, than=leader.value):
                return f"trial {leader.number} has reached the target of {target:g}, with {leader.value:.6g}"
        return ""
    for number, (state, values) in sorted(used.scores.items()):
        reached = all(
            objective.metric not in targets or not objective.is_better(targets[objective.metric], than=value)
            for objective, value in zip(objectives.items, values, strict=True)
        )
        if reached and (state is TrialState.COMPLETED or (state in _UNFINISHED and spec.repeats == 1)):
            return f"trial {number} has reached all targets, with ({objectives.shown(values)})"
    return ""
