"""Trains workloads that use features of the protocol under many plans, and compares each curve with one process.

Each row is one feature under one plan. It trains six steps; the last three resume under another plan. Every loss and
every metric after each step must be that of one process that trains without a break. The predicted peak of a step is
compared with the measured one. Prints a table, and last the figures as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.curves.forks import in_forks
from benchmarks.features.drawn import drawn
from benchmarks.features.feature import ONE, Feature
from benchmarks.features.running import HALF, WHOLE, predicted_peak, train_rank
from benchmarks.features.table import FEATURES
from benchmarks.same_curve import largest_difference
from estimators.model import Plan

SECONDS = 120.0
"""After which a gang is taken to hang."""
QUICK_EVERY = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A feature under a plan, resumed under another one: the largest relative difference from one process, or the words
    of what failed, and the predicted and the measured peak of a step, 0 where they are not known.

    ``resume_error`` is the difference in the first step after the resume.
    """

    feature: Feature
    plan: Plan
    error: float
    failure: str = ""
    predicted_bytes: int = 0
    peak_bytes: int = 0
    resume_error: float = math.inf

    @property
    def is_equal(self) -> bool:
        """Whether the curve is that of one process."""
        return self.error <= self.feature.tolerance

    @property
    def peak_pct(self) -> float:
        """Signed error of the predicted peak in percent of the measured one."""
        return 100 * (self.predicted_bytes - self.peak_bytes) / self.peak_bytes if self.peak_bytes else 0.0


def rows(features: Sequence[Feature], folder: Path) -> Iterator[Row]:
    """Train each feature under each of its plans."""
    for feature in features:
        whole, _ = _trained(feature, ONE, folder / "one", 0, WHOLE)
        shutil.rmtree(folder / "one")
        for plan in feature.plans:
            first, peak_bytes = _trained(feature, plan, folder / "gang", 0, HALF)
            second, _ = _trained(feature, feature.after(plan), folder / "gang", HALF, WHOLE)
            shutil.rmtree(folder / "gang")
            failures = [str(answer) for answer in (whole, first, second) if not isinstance(answer, list)]
            difference = math.inf if failures else largest_difference([*first, *second], whole)
            resumed = math.inf if failures else largest_difference(second[:1], whole[HALF : HALF + 1])
            (predicted,) = in_forks([partial(predicted_peak, feature, plan)], SECONDS)
            predicted_bytes = predicted.get("peak_bytes", 0) if isinstance(predicted, dict) else 0
            yield Row(feature, plan, difference, "; ".join(failures), predicted_bytes, peak_bytes, resumed)


def _trained(feature: Feature, plan: Plan, folder: Path, begin: int, end: int) -> tuple[Any, int]:
    """The values of the reports of rank 0 and the measured peak; the answers of the ranks that failed, and 0."""
    folder.mkdir(exist_ok=True)
    ranks = [partial(train_rank, feature, plan, rank, folder, begin, end) for rank in range(plan.world_size)]
    answers = in_forks(ranks, SECONDS)
    failed = [answer for answer in answers if not isinstance(answer, dict) or "values" not in answer]
    causes = [answer for answer in failed if not isinstance(answer, dict) or "lost" not in answer]
    return (answers[0]["values"], answers[0]["peak_bytes"]) if not failed else (str(causes or failed), 0)


def figures(found: Sequence[Row]) -> dict[str, float]:
    """The figures that the benchmark is judged by; bf16 and fp16, which round more, have errors of their own."""
    resumed = [row for row in found if row.feature.after(row.plan) != row.plan]
    peaks = [abs(row.peak_pct) for row in found if row.predicted_bytes and row.peak_bytes]
    return {
        "features": len({row.feature.name for row in found}),
        "features_checked": len(found),
        "features_equal": sum(row.is_equal for row in found),
        "features_max_error": max((row.error for row in found if row.feature.is_exact), default=0.0),
        "features_max_error_bf16": max((row.error for row in found if not row.feature.is_exact), default=0.0),
        "resume_pairs": len({(row.plan, row.feature.after(row.plan)) for row in resumed}),
        "resume_max_error": max((row.resume_error for row in resumed if row.feature.is_exact), default=0.0),
        "resume_max_error_bf16": max((row.resume_error for row in resumed if not row.feature.is_exact), default=0.0),
        "executed_median_pct": median(peaks) if peaks else 0.0,
        "executed_max_pct": max(peaks, default=0.0),
    }


def main() -> None:
    """Check all features, or those that were chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every fourth feature, each under one plan of two ranks")
    parser.add_argument("--features", default="", metavar="WORDS", help="only features with these words in their name")
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="N combinations of data features instead (0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn combinations (0)")
    options = parser.parse_args()
    every = drawn(options.seed, options.drawn) if options.drawn else FEATURES
    chosen = [feature for feature in every if options.features in feature.name]
    _warm_up()
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="scamp-features-") as folder:
        for feature in map(_quick, chosen[::QUICK_EVERY]) if options.quick else chosen:
            for row in rows([feature], Path(folder)):
                found.append(row)
                words = f"{row.plan} → {feature.after(row.plan)}"
                print(f"{feature.name:32} {words:70} {row.error:.1e} {row.peak_pct:+.2f} % {row.failure}", flush=True)
    print(json.dumps(figures(found)))


def _quick(feature: Feature) -> Feature:
    """The feature under one plan of two ranks, which it is also resumed under."""
    return replace(feature, plans=tuple(plan for plan in feature.plans if plan.world_size == 2)[:1])


def _warm_up() -> None:
    """Import what forks would otherwise import again and again, and trace a model."""
    import workloads.parallel.pipeline
    import workloads.parallel.zero1  # noqa: F401
    from workloads.sandbox.server import warm_up

    warm_up()


if __name__ == "__main__":
    main()
