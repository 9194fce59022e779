"""Trains a feature under a plan and resumes it under another one, and compares its curve with that of one process.

The gradients of the first step are compared too, where Adam's moments in the checkpoint after it hold them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from torch import Tensor

from benchmarks.curves.forks import in_forks
from benchmarks.features.feature import Feature
from benchmarks.features.gradients import first_gradients, largest_gradient_difference
from benchmarks.features.running import CHECKPOINTS, HALF, TRIAL, WHOLE, predicted_peak, train_rank
from benchmarks.same_curve import largest_difference
from estimators.model import Plan
from workloads.training.checkpoints.name import CheckpointName

HEADER = ("error", "of gradients", "after resume", "peak, MiB", "peak, error", "resumed under", "case")


@dataclass(frozen=True)
class Case:
    """A feature, and the plan under which it is trained."""

    feature: Feature
    plan: Plan

    def __str__(self) -> str:
        return f"{self.feature.name}, {self.plan}"


@dataclass(frozen=True, slots=True)
class Result:
    """The largest relative difference from one process, also in the first step after the resume; bytes of the peaks.

    A peak of 0 bytes is not known, and neither is a ``gradient_error`` of 0.
    """

    feature: str
    plan: str
    after: str
    error: float
    resume_error: float
    tolerance: float
    predicted_bytes: int
    peak_bytes: int
    gradient_error: float

    @property
    def is_exact(self) -> bool:
        """Whether the feature trains in fp32."""
        return self.tolerance <= 1e-5

    @property
    def peak_pct(self) -> float:
        """Signed error of the predicted peak in percent of the measured one."""
        return 100 * (self.predicted_bytes - self.peak_bytes) / self.peak_bytes if self.peak_bytes else 0.0

    def row(self) -> list[str]:
        errors = [f"{error:.1e}" for error in (self.error, self.gradient_error, self.resume_error)]
        return [*errors, f"{self.peak_bytes / 2**20:.2f}", f"{self.peak_pct:+.2f} %", self.after]


def measure(case: Case, seconds: float) -> Result:
    """Train half of the steps under the case's plan, and the other half under the feature's next plan.

    Raises ``RuntimeError`` with the words of the ranks that failed. ``seconds`` limits each gang.
    """
    _warm_up()
    feature, plan, after = case.feature, case.plan, case.feature.after(case.plan)
    reference, gradients = _in_one_process(feature, seconds)
    with tempfile.TemporaryDirectory(prefix="scamp-features-") as folder:
        first = _trained(feature, plan, Path(folder), 0, HALF, seconds)
        second = _trained(feature, after, Path(folder), HALF, WHOLE, seconds)
    (predicted,) = in_forks([partial(predicted_peak, feature, plan)], seconds)
    return Result(
        feature=feature.name,
        plan=str(plan),
        after=str(after),
        error=largest_difference([*first.values, *second.values], reference.values),
        resume_error=largest_difference(second.values[:1], reference.values[len(first.values) :][:1]),
        tolerance=feature.tolerance,
        predicted_bytes=predicted.get("peak_bytes", 0) if isinstance(predicted, dict) else 0,
        peak_bytes=first.peak_bytes,
        gradient_error=largest_gradient_difference(_first_gradients(feature, plan, seconds), gradients),
    )


def figures(results: Sequence[Result], name: str) -> dict[str, float]:
    exact = [result for result in results if result.is_exact]
    rounded = [result for result in results if not result.is_exact]
    resumed = [result for result in results if result.after != result.plan]
    peaks = [abs(result.peak_pct) for result in results if result.predicted_bytes and result.peak_bytes]
    return {
        name: len({result.feature for result in results}),
        f"{name}_checked": len(results),
        f"{name}_equal": sum(result.error <= result.tolerance for result in results),
        f"{name}_max_error": max((result.error for result in exact), default=0.0),
        f"{name}_max_error_bf16": max((result.error for result in rounded), default=0.0),
        "resume_pairs": len({(result.plan, result.after) for result in resumed}),
        "resume_max_error": max((result.resume_error for result in resumed if result.is_exact), default=0.0),
        "resume_max_error_bf16": max((result.resume_error for result in resumed if not result.is_exact), default=0.0),
        "executed_median_pct": median(peaks) if peaks else 0.0,
        "executed_max_pct": max(peaks, default=0.0),
    }


class _Trained(NamedTuple):
    """The values of the reports of rank 0, and the measured peak."""

    values: list[Any]
    peak_bytes: int


@lru_cache(maxsize=1)
def _in_one_process(feature: Feature, seconds: float) -> tuple[_Trained, Mapping[str, Tensor]]:
    with tempfile.TemporaryDirectory(prefix="scamp-features-") as folder:
        reference = _trained(feature, feature.reference, Path(folder), 0, WHOLE, seconds)
    return reference, _first_gradients(feature, feature.reference, seconds)


def _first_gradients(feature: Feature, plan: Plan, seconds: float) -> Mapping[str, Tensor]:
    """Gradients of the first step, if they are compared.

    Those of later steps differ more, as Adam makes the smallest gradients as large as others.
    """
    if not feature.gradients:
        return {}
    with tempfile.TemporaryDirectory(prefix="scamp-features-") as folder:
        _trained(feature, plan, Path(folder), 0, 1, seconds)
        return first_gradients(CheckpointName(TRIAL, 1).folder(Path(folder) / CHECKPOINTS))


def _trained(feature: Feature, plan: Plan, folder: Path, begin: int, end: int, seconds: float) -> _Trained:
    ranks = [partial(train_rank, feature, plan, rank, folder, begin, end) for rank in range(plan.world_size)]
    answers = in_forks(ranks, seconds)
    failed = [answer for answer in answers if not isinstance(answer, dict) or "values" not in answer]
    causes = [answer for answer in failed if not isinstance(answer, dict) or "lost" not in answer]
    if failed:
        raise RuntimeError(f"{plan}: {causes or failed}")
    return _Trained(answers[0]["values"], answers[0]["peak_bytes"])


@cache
def _warm_up() -> None:
    """Import what forks would otherwise import again and again, and trace a model."""
    from workloads.sandbox.server import warm_up_tracing

    warm_up_tracing()
