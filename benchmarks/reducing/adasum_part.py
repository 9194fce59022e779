"""Counts the samples until a loss is reached, with the mean of all gradients and with Adasum, as the batch grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.reducing.gang import trained
from estimators.model import Plan

FILE = Path(__file__).parents[2] / "examples" / "larger_batches.py"
REPLICAS = 4
SAMPLES = 15_000  # ten epochs
TARGET = 0.9
TITLE = "Adasum against the mean"
ABOUT = f"""\
The network of `examples/adasum.yaml` trains on handwritten digits with SGD and momentum, on {REPLICAS} replicas, with
one learning rate for all batches. *Mean* and *Adasum* are the samples until {TARGET:.0%} of the held-out digits are
right: "–" if that is not reached within {SAMPLES} samples, "diverges" if the loss is not finite. *Ratio* is the samples
of Adasum divided by those of the mean."""
HEADER = ("mean", "Adasum", "ratio", "case")


@dataclass(frozen=True)
class Case:
    """Samples of a step, the learning rate, and the most samples of a training."""

    batch: int
    lr: float
    samples: int = SAMPLES

    def __str__(self) -> str:
        return f"batch {self.batch}, lr {self.lr}"


@dataclass(frozen=True, slots=True)
class Result:
    """Samples until the target is reached; 0 if it is not, and -1 if the loss is not finite."""

    mean: int
    adasum: int

    @property
    def ratio(self) -> float:
        """Samples of Adasum over those of the mean; not a number if either has not reached the target."""
        return self.adasum / self.mean if self.mean > 0 and self.adasum > 0 else math.nan

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        ratio = "–" if math.isnan(self.ratio) else f"{self.ratio:.2f}"
        return [*({0: "–", -1: "diverges"}.get(value, str(value)) for value in (self.mean, self.adasum)), ratio]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """Growing batches with three learning rates; a quick run has one."""
    every = [Case(batch, lr) for lr in (0.02, 0.1, 0.5) for batch in (64, 128, 256)]
    return [Case(64, 0.1, SAMPLES // 3)] if quick else every


def measure(case: Case, seconds: float) -> Result:
    """Train with either reduction."""
    return Result(_samples(case, "mean", seconds), _samples(case, "adasum", seconds))


def _samples(case: Case, reduce: str, seconds: float) -> int:
    params: dict[str, Any] = {"batch": case.batch, "lr": case.lr, "reduce": reduce}
    replicas = Plan(case.batch // REPLICAS, dp_replicate=REPLICAS, adasum=True)
    plan = replicas if reduce == "adasum" else Plan(case.batch)  # all plans have the curve of one rank
    steps, every = case.samples // case.batch, max(1, 500 // case.batch)
    values = trained(FILE, "Digits", {**params, "adasum_replicas": REPLICAS}, plan, steps, every, seconds)["values"]
    reached = next((number for number, value in enumerate(values, 1) if value["accuracy"] >= TARGET), None)
    if reached is not None:
        return reached * every * case.batch
    return 0 if len(values) >= steps // every else -1


def figures(results: Sequence[Result]) -> dict[str, float | None]:
    """The median ratio of samples where both reach the target, and how often only one of them does."""
    ratios = [result.ratio for result in results if not math.isnan(result.ratio)]
    return {
        "adasum_samples_ratio": median(ratios) if ratios else None,
        "adasum_pairs": len(ratios),
        "adasum_alone": sum(result.adasum > 0 >= result.mean for result in results),
        "adasum_not": sum(result.mean > 0 >= result.adasum for result in results),
        "adasum_diverges": sum(result.adasum < 0 for result in results),
        "mean_diverges": sum(result.mean < 0 for result in results),
    }
