"""Trains each feature of the protocol, and each workload of the papers, under each of its plans.

Each is resumed under the next plan, and its peak is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.features import trained
from benchmarks.features.papers import PAPERS
from benchmarks.features.table import FEATURES
from benchmarks.features.trained import HEADER, Case, Result, measure

__all__ = ["ABOUT", "HEADER", "TITLE", "Case", "Result", "cases", "figures", "measure"]

TITLE = "Features of the protocol and workloads of the papers"
ABOUT = """\
Each row is one feature, or one workload of the papers, under one plan. It trains six steps; the last three resume under
another plan from a checkpoint. Every loss and every metric after each report must be that of one process that trains
without a break: *error* is the largest relative difference, *after resume* that of the first report after the resume.
*Of gradients* is the largest difference of the gradients of the first step of a workload, relative to the largest entry
of the same parameter (0: not compared). The last two columns are the measured peak of a step, in tensors of the rank
that has most, and the error of its prediction. Predictions for fp16 are higher than that by the sums in fp32 of torch's
own products of matrices, which are memory but no tensors."""
QUICK_EVERY = 30
_PAPERS = frozenset(workload.name for workload in PAPERS)


def cases(quick: bool, seed: int) -> Sequence[Case]:
    every = [*FEATURES, *PAPERS]
    if not quick:
        return [Case(feature, plan) for feature in every for plan in feature.plans]
    of_two = [(feature, [plan for plan in feature.plans if plan.world_size == 2]) for feature in every[::QUICK_EVERY]]
    return [Case(feature, plans[0]) for feature, plans in of_two if plans]


def figures(results: Sequence[Result]) -> dict[str, float]:
    workloads = [result for result in results if result.feature in _PAPERS]
    together = trained.figures(results, "all")
    return {
        **trained.figures([result for result in results if result.feature not in _PAPERS], "features"),
        **{name: value for name, value in together.items() if not name.startswith("all")},
        "workloads_checked": len(workloads),
        "workloads_max_error": max(
            (max(workload.error, workload.gradient_error) for workload in workloads), default=0.0
        ),
    }
