"""Rungs for the tests of the stopping rules."""

from __future__ import annotations

from collections.abc import Mapping

from scamp_service.control.stopping.rung import Rung
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives


def rung_of(objective: Objective, values: Mapping[int, float] | None = None) -> Rung:
    """Rung with the values that trials have reported of one objective, by number."""
    return Rung(Objectives((objective,)), {number: (value,) for number, value in (values or {}).items()})
