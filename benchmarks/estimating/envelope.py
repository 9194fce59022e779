"""Compares the estimator's shortcuts with direct traces, for random architectures.

Each point is a GPT or a ViT of random depth, width and sequence length, under a random layout. The point's own curve
comes from a trace at one batch, of four of its blocks and of the first step of the whole model. The formulas come only
from examples of other architectures. Both predict the peak at another batch, which is then traced directly.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from estimators.model import MIB, Layout
from estimators.peaks.depth import TRACED_BLOCKS
from estimators.peaks.envelope import Envelope
from estimators.scaling.formula import RANKS, SAMPLES
from estimators.tracing.tracer import trace, trace_peak
from scamp_service.patience import TRACE_SECONDS
from scamp_service.sizing.screen.blueprints import BlueprintFinder, Blueprints, NoBlueprints, depth_of
from scamp_service.sizing.screen.groups import FormulaGroup, Task, columns, layout_kind_of
from scamp_service.sizing.tracing.options import OneBlob, TracedWorkload
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.sizing.tracing.traces import Tracer
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of

TITLE = "Shortcuts"
HEADER = ("direct MiB", "curve", "formula", "curve s", "direct s", "case")
ABOUT = """\
Peaks of random architectures, layouts and batches: predicted minus directly traced, in bytes. "Curve" is a curve that
was traced with another batch and few blocks. "Formula" uses formulas that were found from examples of other
architectures, as in `scamp screen`; "falls back" means that they do not cover this architecture, which would be traced.
Seconds are processor time: for the whole curve, and for the direct trace of one batch. The formulas take microseconds
once they are found."""

EXAMPLES = 600
"""Number of architectures from which the examples are chosen."""
DEGREES = (1, 2, 4, 8)
"""Numbers of ranks for which formulas are found."""


@dataclass(frozen=True, slots=True)
class Point:
    """An architecture and a layout; ``traced_batch`` gives the curve, and ``asked_batch`` is the batch to predict.

    ``degrees`` are the numbers of ranks for which formulas are found.
    """

    workload: str
    params: dict[str, Any]
    layout: Layout
    traced_batch: int
    asked_batch: int
    degrees: tuple[int, ...] = DEGREES

    def __str__(self) -> str:
        params = " ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.workload} {params} {self.layout} batch={self.traced_batch}→{self.asked_batch}"


@dataclass(frozen=True, slots=True)
class Result:
    """Predicted minus traced bytes: None where the curve is not piecewise linear, or where no formula applies."""

    curve_apart: int | None
    formula_apart: int | None
    direct_bytes: int
    curve_seconds: float  # of processor time
    direct_seconds: float  # of processor time, for one batch

    def row(self) -> list[str]:
        apart = ["falls back" if error is None else str(error) for error in (self.curve_apart, self.formula_apart)]
        return [f"{self.direct_bytes / MIB:.0f}", *apart, f"{self.curve_seconds:.2f}", f"{self.direct_seconds:.2f}"]


def cases(quick: bool, seed: int) -> Sequence[Point]:
    source = random.Random(seed)
    every = [draw(source) for _ in range(100)]
    if quick:  # formulas for one rank of one workload take a fifth of the time
        alone = [point for point in every if point.layout.dp_shard == 1 and point.workload == "stdlib_gpt"]
        return [replace(point, degrees=(1,)) for point in alone[:2]]
    return every


def figures(results: Sequence[Result]) -> dict[str, float]:
    apart = [error for result in results for error in (result.curve_apart, result.formula_apart) if error is not None]
    return {
        "envelope_points": len(results),
        "envelope_max_bytes_apart": max(map(abs, apart), default=0),
        "envelope_fallbacks": sum(result.formula_apart is None for result in results),
        "envelope_curve_fallbacks": sum(result.curve_apart is None for result in results),
        "envelope_curve_seconds_mean": sum(result.curve_seconds for result in results) / len(results),
    }


def draw(source: random.Random) -> Point:
    """A random point."""
    workload = source.choice(["stdlib_gpt", "vit_digits"])
    heads = source.choice([1, 2, 4])
    params: dict[str, Any] = {"depth": source.randint(1, 24), "width": heads * source.randint(4, 64), "heads": heads}
    params |= {"context": source.randint(8, 256)} if workload == "stdlib_gpt" else {"patch": source.choice([1, 2, 4])}
    layout = Layout(
        dp_shard=source.choice([1, 1, 2, 4, 8]), recompute=source.random() < 0.5, accumulate=source.random() < 0.3
    )
    return Point(workload, params, layout, source.randint(4, 64), source.randint(2, 512))


def measure(point: Point, seconds: float) -> Result:
    """The result of one point; it runs in this process, where nothing stops a trace, so ``seconds`` is ignored."""
    torch.set_num_threads(1)
    recipe = recipe_of(load_workload(point.workload, None)(dict(point.params)))
    began = time.process_time()
    traced = trace(recipe, point.layout, point.traced_batch)
    between = time.process_time()
    direct = trace_peak(recipe, point.layout, point.asked_batch).fixed_bytes
    ended = time.process_time()
    shortened = traced.equal_blocks or point.params["depth"] <= TRACED_BLOCKS
    curve = traced.curve.peak_bytes(point.asked_batch) if shortened and isinstance(traced.curve, Envelope) else None
    formula = by_formula(point)
    return Result(
        None if curve is None else curve - direct,
        None if formula is None else formula - direct,
        direct,
        between - began,
        ended - between,
    )


def by_formula(point: Point) -> int | None:
    """Peak bytes by the formulas; None if no blueprint covers the architecture."""
    variables = {**point.params, RANKS: point.layout.dp_shard, SAMPLES: point.asked_batch}
    layout_kind = layout_kind_of(point.layout)
    for group, blueprints in _blueprints(point.workload, point.degrees):
        if any(point.params[name] != value for name, value in group.settings.items()) or layout_kind not in blueprints:
            continue
        blueprint = blueprints[layout_kind].of(accumulate=point.layout.accumulate)
        row = columns([variables], [*group.sizes, RANKS, SAMPLES])
        if blueprint.covers(row).all() and blueprint.predicts(row).all():
            return blueprint.costs(row).curve(0).peak_bytes(point.asked_batch)
    return None


@cache
def _blueprints(workload: str, degrees: tuple[int, ...]) -> list[tuple[FormulaGroup, dict[Layout, Blueprints]]]:
    """Blueprints from examples of other architectures, drawn with a different seed than the points."""
    source = random.Random("blueprints")
    drawn = [point for point in (draw(source) for _ in range(EXAMPLES)) if point.workload == workload]
    candidates = {number: point.params for number, point in enumerate(drawn)}
    sharded = (1, 2) if max(degrees) > 1 else (1,)
    layout_kinds = [Layout(dp_shard=shards, recompute=recompute) for shards in sharded for recompute in (False, True)]
    with tempfile.TemporaryDirectory() as folder, TracePool() as pool:
        traced = TracedWorkload(workload, None, Tracer(OneBlob(b""), Path(folder), TRACE_SECONDS), pool)
        finder = BlueprintFinder(traced)
        every = []
        for group, plain in finder.plain(candidates):
            if isinstance(plain, NoBlueprints):
                continue
            members = [candidates[key] for key in group.members]
            shared = (members, [1] * len(members), depth_of(plain), max(degrees))
            tasks = [Task(group, layout_kind, *shared) for layout_kind in layout_kinds]
            answers = zip(layout_kinds, finder.find(tasks), strict=True)
            every.append((group, {kind: answer for kind, answer in answers if isinstance(answer, Blueprints)}))
        return every
