"""Compares predicted peaks of the ranks of gangs with what real ranks on gloo allocate.

The models have depthwise, grouped, recurrent and normalising layers, and micro-batches of one to four samples, for which
kernels take other paths than for large ones.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.covering import divided
from benchmarks.estimating import ranks
from benchmarks.estimating.results import Finding
from estimators.model import MIB, Plan
from workloads.function import FunctionWorkload
from workloads.protocol import Workload

MOST_PERCENT = 3
NUM_DRAWN = 10
TITLE = "Peaks of the ranks of gangs"
HEADER = ("predicted MiB", "allocated MiB", "error", "counted MiB", "case")


@dataclass(frozen=True)
class Gang:
    """A model of ``divided.py`` under a plan for several ranks."""

    params: dict[str, Any]
    plan: Plan

    def workload(self) -> Workload:
        """A new workload."""
        return FunctionWorkload(divided.make, self.params)

    def to_json(self) -> str:
        """The case as JSON, for another process."""
        return json.dumps({"params": self.params, "plan": self.plan.to_json()})

    @classmethod
    def from_json(cls, text: str) -> Gang:
        """The case that ``to_json`` wrote."""
        data = json.loads(text)
        return cls(data["params"], Plan.from_json(data["plan"]))

    def __str__(self) -> str:
        model, *others = self.params.items()
        return " ".join([model[1], *(f"{name}={value}" for name, value in others)]) + f": {self.plan}"


if __name__ == "__main__":
    print(json.dumps(ranks.run_for_real(Gang.from_json(sys.argv[1]), int(sys.argv[3]), sys.argv[2], hooked=True)))
