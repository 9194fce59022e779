"""Trains workloads that use features of the protocol under many plans, and compares each curve with one process.

A row is a feature and a plan: six steps, of which the last three continue from the checkpoint under another plan. Every
loss and every metric after each step must be that of one process that trains without a break. Prints a table, and last
the figures as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.curves.forks import in_forks
from benchmarks.features.feature import ONE, Feature
from benchmarks.features.running import HALF, WHOLE, train_rank
from benchmarks.features.table import FEATURES
from benchmarks.same_curve import largest_difference
from estimators.model import Plan

SECONDS = 120.0
"""After which a gang is taken to hang."""


@dataclass(frozen=True, slots=True)
class Row:
    """A feature under a plan, resumed under another one: the largest relative difference from one process, or the words
    of what failed."""

    feature: Feature
    plan: Plan
    error: float
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether the curve is that of one process."""
        return self.error <= self.feature.tolerance


def rows(features: Sequence[Feature], folder: Path) -> Iterator[Row]:
    """Train each feature under each of its plans."""
    for feature in features:
        whole = _trained(feature, ONE, folder / "one", 0, WHOLE)
        shutil.rmtree(folder / "one")
        for plan in feature.plans:
            first = _trained(feature, plan, folder / "gang", 0, HALF)
            second = _trained(feature, feature.after(plan), folder / "gang", HALF, WHOLE)
            shutil.rmtree(folder / "gang")
            failures = [str(answer) for answer in (whole, first, second) if not isinstance(answer, list)]
            difference = math.inf if failures else largest_difference([*first, *second], whole)
            yield Row(feature, plan, difference, "; ".join(failures))


def _trained(feature: Feature, plan: Plan, folder: Path, begin: int, end: int) -> Any:
    """The values of the reports of rank 0; the answers of all ranks if one has failed."""
    folder.mkdir(exist_ok=True)
    ranks = [partial(train_rank, feature, plan, rank, folder, begin, end) for rank in range(plan.world_size)]
    answers = in_forks(ranks, SECONDS)
    failed = [answer for answer in answers if not isinstance(answer, dict) or "values" not in answer]
    causes = [answer for answer in failed if not isinstance(answer, dict) or "lost" not in answer]
    return (causes or failed) if failed else answers[0]["values"]


def figures(found: Sequence[Row]) -> dict[str, float]:
    """The figures that the benchmark is judged by."""
    return {
        "features": len({row.feature.name for row in found}),
        "features_checked": len(found),
        "features_equal": sum(row.is_equal for row in found),
        "features_max_error": max((row.error for row in found), default=0.0),
    }


def main() -> None:
    """Check all features, or those that were chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the last plan of each feature only, in a minute")
    parser.add_argument("--features", default="", metavar="WORDS", help="only features with these words in their name")
    options = parser.parse_args()
    chosen = [feature for feature in FEATURES if options.features in feature.name]
    _warm_up()
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="scamp-features-") as folder:
        for feature in chosen:
            if options.quick:
                feature = Feature(feature.name, feature.workload, feature.plans[-1:], feature.params, feature.tolerance)
            for row in rows([feature], Path(folder)):
                found.append(row)
                words = f"{row.plan} → {feature.after(row.plan)}"
                print(f"{feature.name:32} {words:70} {row.error:.1e} {row.failure}", flush=True)
    print(json.dumps(figures(found)))


def _warm_up() -> None:
    """Import what forks would otherwise import again and again, and trace a model."""
    import workloads.parallel.pipeline
    import workloads.parallel.zero1  # noqa: F401
    from workloads.sandbox.server import warm_up

    warm_up()


if __name__ == "__main__":
    main()
