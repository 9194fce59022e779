"""Compares the predicted share of a step in which ranks wait for each other with the measured one, on gloo."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.curves.forks import in_forks
from benchmarks.features.feature import WORKLOADS, Feature
from benchmarks.features.running import reports_of
from benchmarks.planning.gangs_part import ROUNDS, calibration
from estimators.model import Plan
from estimators.trace import profile_of
from estimators.tracing.tracer import trace
from placement.planning.step_seconds import predicted_step
from workloads.loading import load_workload
from workloads.refusals import explain
from workloads.sandbox.recipe import recipe_of

FILE: Path = WORKLOADS / "sequences.py"
STEPS = 20
TITLE = "Share of communication"
ABOUT = """\
Gangs train a user's file on gloo, in forks that share this machine's cores. *Predicted* is the share of a step in
which ranks wait for collectives, messages and, in pipelines, other stages, after `scamp calibrate` in the same run; in
a pipeline it is that of the busiest stage. *Measured* is what the runtime reports for every trial: the median of a
dozen steps of the rank that waits least. *Error* is in percentage points. Other processes on the machine make ranks
wait longer."""
HEADER = ("predicted", "measured", "error", "case")
_SIZES: Mapping[str, Mapping[str, Any]] = {
    "narrow": {"depth": 4, "width": 64, "heads": 4, "length": 32},
    "wide": {"depth": 4, "width": 256, "heads": 4, "length": 32},
}
_PLANS = (
    Plan(16, dp_shard=2),
    Plan(8, 2, dp_shard=2, recompute=True),
    Plan(16, dp_shard=2, reshard=False),
    Plan(16, dp_replicate=2),
    Plan(16, dp_replicate=2, zero1=True),
    Plan(32, tp=2),
    Plan(8, 4, pp=2),
)


@dataclass(frozen=True)
class Case:
    """Sizes of the model, and a plan."""

    size: str
    plan: Plan
    params: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False

    def __str__(self) -> str:
        return f"{self.size}, {self.plan}"


@dataclass(frozen=True, slots=True)
class Result:
    """Shares from 0 to 1."""

    predicted: float
    measured: float

    @property
    def points(self) -> float:
        """Signed error in percentage points."""
        return 100 * (self.predicted - self.measured)

    def row(self) -> list[str]:
        return [f"{self.predicted:.0%}", f"{self.measured:.0%}", f"{self.points:+.1f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    every = [Case(size, plan, params) for size, params in _SIZES.items() for plan in _PLANS]
    return [replace(every[0], quick=True)] if quick else every


def measure(case: Case, seconds: float) -> Result:
    """Train the gang and predict its step. The first call also calibrates."""
    params = {**case.params, "batch": case.plan.batch}
    kind = calibration(1 if case.quick else ROUNDS)
    recipe = recipe_of(load_workload(f"{FILE.name}:Sequences", FILE.parent)(params))
    layouts = dict.fromkeys(case.plan.layouts)
    profile = profile_of({layout: trace(recipe, layout, case.plan.batch) for layout in layouts})
    step = predicted_step(profile, case.plan, kind)
    assert step is not None
    feature = Feature(str(case), f"{FILE.name}:Sequences", (case.plan,), params, folder=FILE.parent)
    with tempfile.TemporaryDirectory(prefix="scamp-gang-") as folder:
        ranks = [
            partial(_waiting_share, feature, case.plan, rank, Path(folder)) for rank in range(case.plan.world_size)
        ]
        shares = in_forks(ranks, seconds)
    if failed := [why for why in shares if isinstance(why, str)]:
        raise RuntimeError(f"{case.plan}: {failed}")
    return Result(step.waiting_share, shares[0][0])


def _waiting_share(feature: Feature, plan: Plan, rank: int, folder: Path) -> list[float] | str:
    """Shares of a step in which the rank that waits least waits, which rank 0 reports; why the training failed."""
    try:
        return reports_of(feature, plan, rank, folder, STEPS, STEPS).shares
    except BaseException as error:
        return explain(error, feature.folder, in_training=True)


def figures(results: Sequence[Result]) -> dict[str, float]:
    points = [abs(result.points) for result in results]
    return {
        "communication_gangs": len(points),
        "communication_median_points": median(points),
        "communication_max_points": max(points),
    }
