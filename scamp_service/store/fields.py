"""Flattens trials and attempts to plain fields, as the API and the command line show them."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Any

from estimators.model import Plan, Prediction
from scamp_service.model import Attempt, Choice, Trial
from scamp_service.study.objectives import Objectives

_OF_TRIAL = tuple(name for name in Trial.__slots__ if name not in ("sized", "parent_id"))
_OF_ATTEMPT = tuple(name for name in Attempt.__slots__ if name not in ("token", "choice"))
_values_of_trial, _values_of_attempt = attrgetter(*_OF_TRIAL), attrgetter(*_OF_ATTEMPT)


def trial_fields(trial: Trial, objectives: Objectives | None = None) -> dict[str, Any]:
    """The fields of a trial, with those of its plan and its prediction.

    ``values`` has its value of each of the study's ``objectives``, None for one that is not known or not finite.
    """
    fields, sized = dict(zip(_OF_TRIAL, _values_of_trial(trial), strict=True)), trial.sized
    fields.update(choice_fields(sized.choice if sized else None))  # in place: a new dictionary takes a while
    fields.update(
        values=objectives.each_of(trial) if objectives else [trial.value],
        plan_reason=sized.why if sized else "",
        learned_bytes=sized.learned_bytes if sized else 0,
        reserved_mib=trial.prediction.reserved_mib,
        flops_per_sample=sized.flops_per_sample if sized else None,
        num_params=sized.num_params if sized else 0,
        healed=trial.is_healed,
        deviations=trial.deviations,
    )
    return fields


def attempt_fields(attempt: Attempt) -> dict[str, Any]:
    """The fields of an attempt, without the fencing token, which is a secret of the ranks."""
    fields = dict(zip(_OF_ATTEMPT, _values_of_attempt(attempt), strict=True))
    return fields | choice_fields(attempt.choice) | {"mib_per_rank": attempt.mib_per_rank}


def choice_fields(choice: Choice | None) -> dict[str, Any]:
    """A plan in words and numbers, so that no client has to format it, with its predicted cost.

    Compare ``expected_bytes`` with a measured peak. While there is no plan, fields are None, "", 0 or, for a factor, 1.
    """
    plan, prediction = (choice.plan, choice.prediction) if choice else (None, Prediction())
    return {
        **_plan_fields(plan),
        "predicted_bytes": prediction.predicted_bytes,
        "extra_bytes": prediction.extra_bytes,
        "bias_bytes": prediction.bias_bytes,
        "evaluation_bytes": prediction.evaluation_bytes,
        "expected_bytes": prediction.expected_bytes,
        "predicted_step_seconds": choice.step_seconds if choice else None,
        "step_factor": choice.step_factor if choice else 1.0,
        "predicted_communication_share": choice.communication_share if choice else None,
    }


@lru_cache(maxsize=4096)
def _plan_fields(plan: Plan | None) -> dict[str, Any]:
    """The fields of a plan, which many trials share."""
    return {
        "plan": plan.to_json() if plan else None,
        "plan_text": str(plan or ""),
        "plan_short": plan.short if plan else "",
        "num_ranks": plan.world_size if plan else 0,
        "batch": plan.batch if plan else 0,
    }
