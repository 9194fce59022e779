"""Flattens trials and attempts to plain fields, as the API and the command line show them."""

from __future__ import annotations

from typing import Any

from estimators.model import Plan, Prediction
from scamp_service.model import Attempt, Trial
from scamp_service.study.objectives import Objectives


def trial_fields(trial: Trial, objectives: Objectives | None = None) -> dict[str, Any]:
    """The fields of a trial, with those of its plan and its prediction.

    ``values`` has its value of each of the study's ``objectives``, None for one that is not known or not finite.
    """
    fields = {name: getattr(trial, name) for name in trial.__slots__ if name not in ("sized", "parent_id")}
    return fields | {
        **prediction_fields(trial.prediction),
        **plan_fields(trial.plan),
        "values": objectives.each_of(trial) if objectives else [trial.value],
        "plan_reason": trial.sized.reason if trial.sized else "",
        "learned_bytes": trial.sized.learned_bytes if trial.sized else 0,
        "reserved_mib": trial.prediction.reserved_mib,
        "predicted_step_seconds": trial.predicted_step_seconds,
        "predicted_communication_share": trial.sized.communication_share if trial.sized else None,
        "flops_per_sample": trial.sized.flops_per_sample if trial.sized else None,
        "num_params": trial.sized.num_params if trial.sized else 0,
        "step_factor": trial.sized.step_factor if trial.sized else 1.0,
        "healed": trial.is_healed,
    }


def attempt_fields(attempt: Attempt) -> dict[str, Any]:
    """The fields of an attempt, without the fencing token, which is a secret of the ranks."""
    fields = {name: getattr(attempt, name) for name in attempt.__slots__ if name not in ("token", "prediction")}
    return fields | {
        **prediction_fields(attempt.prediction),
        **plan_fields(attempt.plan),
        "mib_per_rank": attempt.mib_per_rank,
    }


def plan_fields(plan: Plan | None) -> dict[str, Any]:
    """A plan in words and numbers, so that no client has to format it; None, "" or 0 while there is no plan."""
    return {
        "plan": plan.to_json() if plan else None,
        "plan_text": str(plan or ""),
        "plan_short": plan.short if plan else "",
        "num_ranks": plan.world_size if plan else 0,
        "batch": plan.batch if plan else 0,
    }


def prediction_fields(prediction: Prediction) -> dict[str, int]:
    """Predicted bytes of one rank. Compare ``expected_bytes`` with a measured peak."""
    return {
        "predicted_bytes": prediction.predicted_bytes,
        "extra_bytes": prediction.extra_bytes,
        "bias_bytes": prediction.bias_bytes,
        "evaluation_bytes": prediction.evaluation_bytes,
        "expected_bytes": prediction.expected_bytes,
    }
