"""One feature of the workload protocol: a workload that uses it, and the plans under which it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimators.model import Plan

WORKLOADS = Path(__file__).parent / "workloads"
"""Files of users with the workloads."""
BATCH = 8
"""Samples of an optimizer step, under every plan."""

ONE = Plan(BATCH)
ACCUMULATED = Plan(2, 4)
REPLICAS = Plan(4, dp_replicate=2)
SHARDS = Plan(2, 2, dp_shard=2)
ZERO = Plan(4, dp_replicate=2, zero1=True)
PIPELINE = Plan(2, 4, pp=2)
TENSOR = Plan(4, 2, tp=2)
HYBRID = Plan(4, dp_replicate=2, tp=2)


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature, and the workload in ``folder`` that uses it.

    ``tolerance`` is the largest relative difference of a loss or metric from that under ``reference``, one process by
    default. After half of its steps each training is resumed under the plan after its own in ``plans``. An evaluation
    follows each ``report_every`` steps. With ``gradients`` those of the first step are compared too, if Adam trains.
    """

    name: str
    workload: str
    plans: tuple[Plan, ...]
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tolerance: float = 1e-5
    folder: Path = WORKLOADS
    reference: Plan = ONE
    report_every: int = 1
    gradients: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the feature trains in fp32."""
        return self.tolerance <= 1e-5

    def after(self, plan: Plan) -> Plan:
        """The plan under which a training under ``plan`` is resumed."""
        return self.plans[(self.plans.index(plan) + 1) % len(self.plans)]
