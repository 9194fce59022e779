"""Trains models of a user's file under every kind of plan, resumes under the next one, and predicts each peak."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.features import trained
from benchmarks.features.feature import BATCH, WORKLOADS
from benchmarks.features.plans import PARTS, drawn_models, every_kind
from benchmarks.features.trained import HEADER, Case, Result, measure
from estimators.model import Layout
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of

__all__ = ["ABOUT", "HEADER", "TITLE", "Case", "Result", "cases", "figures", "measure"]

TITLE = "Every kind of plan"
ABOUT = """\
Each row is a model under one plan: degrees, cuts of pipelines, orders of passes, recompute of some blocks. The columns
are those of the features. The last models are drawn by a seed. *Ends*: data-parallel ranks divide the embeddings and
the head, and blocks are in shards, stages or tensor-parallel parts. The figures *parts_…* are those of the groups in
which parts of a model are divided differently."""


def cases(quick: bool, seed: int) -> Sequence[Case]:
    if quick:
        return [Case(feature, feature.plans[0]) for feature in every_kind()[::7]]
    return [Case(feature, plan) for feature in (*every_kind(), *drawn_models(seed)) for plan in feature.plans]


def figures(results: Sequence[Result]) -> dict[str, float]:
    values = trained.figures(results, "plans")
    peaks = {f"plans_{name}": value for name, value in values.items() if name.startswith("executed")}
    if tables := [result.error for result in results if result.feature.startswith("tables")]:
        peaks |= {"bag_max_error": max(tables), "sparse_rows_ratio": _sparse_rows_ratio()}
    parts = [result for result in results if result.feature.startswith(PARTS)]
    experts = [max(result.error, result.gradient_error) for result in parts if result.feature.startswith("experts")]
    peaks |= {
        "parts_plans": len({(result.feature, result.plan) for result in parts}),
        "parts_max_error": max((result.error for result in parts), default=0.0),
        "parts_max_pct": max((abs(result.peak_pct) for result in parts), default=0.0),
        "experts_max_error": max(experts, default=0.0),
    }
    return {name: value for name, value in values.items() if name.startswith("plans")} | peaks


def _sparse_rows_ratio() -> float:
    """Seconds of a step with sparse gradients of a million rows divided by those with dense ones, taken in turn."""
    steps, seconds = [_step(sparse) for sparse in (True, False)], [list[float](), list[float]()]
    for _ in range(6):
        for step, times in zip(steps, seconds, strict=True):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
    sparse, dense = (median(times[1:]) for times in seconds)
    return sparse / dense


def _step(sparse: bool) -> Callable[[], object]:
    params = {"rows": 10**6, "optimizer": "SGD", "sparse": sparse}
    recipe = recipe_of(load_workload("tables.py:Clicks", WORKLOADS)(params))
    model = recipe.build_model()
    optimizer, batch = recipe.optimizer(model, Layout(), None), recipe.make_batch(BATCH)
    return lambda: recipe.train_step(model, optimizer, [batch], 1)
