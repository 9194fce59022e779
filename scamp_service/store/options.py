"""The JSON of the plans that were compared for a trial: written to the study database, read back, shown by the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.model import MIB, Plan, Prediction
from placement.option import Evidence, Option

_STATES_ALONE = ", states alone"


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
        "seconds": option.seconds,
        "communication_share": option.communication_share,
        "relative_device_seconds": option.relative_device_seconds,
    }


def option_of(data: Mapping[str, Any]) -> Option:
    """The option in its JSON; ``option_json`` makes the same JSON of it.

    Its prediction has the reserved MiB, but not what they are for: that is not stored.
    """
    is_traced, at_least = data["traced"], data["at_least"]
    if data["plan_text"].endswith(_STATES_ALONE):
        evidence = Evidence.STATES
    else:
        evidence = (Evidence.AT_LEAST if at_least else Evidence.TRACED) if is_traced else Evidence.UNITS
    reserved_bytes = data["reserved_mib"] * MIB
    # States alone are a lower bound, unless something was learned of the family; how much is not stored.
    learned_bytes = 1 if evidence is Evidence.STATES and not at_least else 0
    return Option(
        Plan.from_json(data["plan"]),
        Prediction(reserved_bytes - learned_bytes, extra_bytes=learned_bytes),
        data["offered_mib"],
        evidence,
        data["seconds"],
        data["communication_share"],
        data["relative_device_seconds"],
    )
