"""Trains combinations of data features that a seed has drawn, each under two plans that it has drawn as well."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.features import trained
from benchmarks.features.drawn import drawn
from benchmarks.features.trained import HEADER, Case, Result, measure

__all__ = ["ABOUT", "HEADER", "TITLE", "Case", "Result", "cases", "figures", "measure"]

TITLE = "Drawn combinations"
ABOUT = """\
A seed draws ways to give data and to measure (data sets, streams, batches by index, orders, augmentation, workers,
sizes of an epoch) and two plans for each. The columns are those of the features."""
NUM_DRAWN = 12


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """Combinations under each of their plans; in a quick run there are none."""
    if quick:
        return []
    return [Case(feature, plan) for feature in drawn(seed, NUM_DRAWN) for plan in dict.fromkeys(feature.plans)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    values = trained.figures(results, "drawn")
    return {name: value for name, value in values.items() if name.startswith("drawn")}
