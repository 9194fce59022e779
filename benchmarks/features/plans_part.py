"""Trains models of a user's file under every kind of plan, resumes under the next one, and predicts each peak."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.features import trained
from benchmarks.features.plans import drawn_models, every_kind
from benchmarks.features.trained import HEADER, Case, Result, measure

__all__ = ["ABOUT", "HEADER", "TITLE", "Case", "Result", "cases", "figures", "measure"]

TITLE = "Every kind of plan"
ABOUT = """\
Each row is a model under one plan: degrees, cuts of pipelines, orders of passes, recompute of some blocks. The columns
are those of the features. The last two models are drawn by a seed."""


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """All models and plans; a quick run has the first plan of some groups for one model."""
    if quick:
        return [Case(feature, feature.plans[0]) for feature in every_kind()[::7]]
    return [Case(feature, plan) for feature in (*every_kind(), *drawn_models(seed)) for plan in feature.plans]


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Counts and errors; those of the peaks have names of their own."""
    values = trained.figures(results, "plans")
    peaks = {f"plans_{name}": value for name, value in values.items() if name.startswith("executed")}
    return {name: value for name, value in values.items() if name.startswith("plans")} | peaks
