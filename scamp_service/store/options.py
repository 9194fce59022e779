"""The JSON of the plans that were compared for a trial: written to the study database, read back, shown by the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.model import Plan, Prediction
from placement.option import Evidence, Option


def option_json(option: Option, chosen: Plan | None) -> dict[str, Any]:
    """JSON of one option of a trial whose plan is ``chosen``."""
    return {
        "plan": option.plan.to_json(),
        "plan_text": option.words,
        "num_ranks": option.plan.world_size,
        "chosen": option.plan == chosen,
        "fits": option.fits,
        "reserved_mib": option.prediction.reserved_mib,
        "offered_mib": option.offered_mib,
        "at_least": option.is_bound,
        "traced": option.is_traced,
        "evidence": option.evidence.value,
        "seconds": option.seconds,
        "communication_share": option.communication_share,
        "relative_device_seconds": option.relative_device_seconds,
        "prediction": option.prediction.to_json(),
    }


def option_of(data: Mapping[str, Any]) -> Option:
    """The option in its JSON; ``option_json`` makes the same JSON of it."""
    return Option(
        Plan.from_json(data["plan"]),
        Prediction.from_json(data["prediction"]),
        data["offered_mib"],
        Evidence(data["evidence"]),
        data["seconds"],
        data["communication_share"],
        data["relative_device_seconds"],
    )
