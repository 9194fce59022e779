"""Trains each feature of the protocol under each of its plans, resumes it under the next one, and predicts its peak."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.features import trained
from benchmarks.features.table import FEATURES
from benchmarks.features.trained import HEADER, Case, Result, measure

__all__ = ["ABOUT", "HEADER", "TITLE", "Case", "Result", "cases", "figures", "measure"]

TITLE = "Features of the protocol"
ABOUT = """\
Each row is one feature under one plan. It trains six steps; the last three resume under another plan from a checkpoint.
Every loss and every metric after each step must be that of one process that trains without a break: *error* is the
largest relative difference, *after resume* that of the first step after the resume. The last two columns are the
measured peak of a step, in tensors of the rank that has most, and the error of its prediction."""
QUICK_EVERY = 8


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """All features and plans; a quick run has every eighth feature, each under one plan of two ranks."""
    if not quick:
        return [Case(feature, plan) for feature in FEATURES for plan in feature.plans]
    of_two = [(one, [plan for plan in one.plans if plan.world_size == 2]) for one in FEATURES[::QUICK_EVERY]]
    return [Case(feature, plans[0]) for feature, plans in of_two if plans]


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Counts and errors."""
    return trained.figures(results, "features")
