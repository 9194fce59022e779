"""The JSON of the plans that were compared for a trial: written to the study database, read back, shown by the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.model import MIB, Plan, Prediction
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
    }


def option_of(data: Mapping[str, Any]) -> Option:
    """The option in its JSON; ``option_json`` makes the same JSON of it.

    Its prediction has the reserved MiB, but not what they are for: that is not stored.
    """
    evidence = Evidence(data["evidence"])
    reserved_bytes = data["reserved_mib"] * MIB
    # These are lower bounds, unless something was learned of the family; how much is not stored.
    is_learned = evidence in (Evidence.AT_LEAST, Evidence.STATES) and not data["at_least"]
    learned_bytes = 1 if is_learned else 0
    return Option(
        Plan.from_json(data["plan"]),
        Prediction(reserved_bytes - learned_bytes, extra_bytes=learned_bytes),
        data["offered_mib"],
        evidence,
        data["seconds"],
        data["communication_share"],
        data["relative_device_seconds"],
    )
