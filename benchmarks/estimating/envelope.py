"""The estimator's shortcuts against direct traces: peaks of batches and depths that were never traced, at random.

Each point is a GPT or a ViT of random depth, width and sequence, under a random layout. Its curve comes from one batch,
four of its blocks and the first step of the whole; it is asked for another batch, which is then traced as it is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from estimators.depth import TRACED_BLOCKS
from estimators.envelope import Envelope
from estimators.model import MIB, Layout
from estimators.trace import trace, trace_peak
from workloads.loading import load_workload
from workloads.profile import recipe_of

TITLE = "Shortcuts"
HEADER = ("direct MiB", "bytes apart", "curve s", "direct s", "case")
ABOUT = """\
Peaks of batches and depths that were never traced, drawn at random, against direct traces of them. Seconds are of one
processor: for the whole curve, and for the one batch."""


@dataclass(frozen=True, slots=True)
class Point:
    workload: str
    params: dict[str, Any]
    layout: Layout
    traced_batch: int
    asked_batch: int

    def __str__(self) -> str:
        params = " ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.workload} {params} {self.layout} batch={self.traced_batch}→{self.asked_batch}"


@dataclass(frozen=True, slots=True)
class Result:
    bytes_apart: int
    direct_bytes: int
    fell_back: bool
    curve_seconds: float  # of processor time
    direct_seconds: float  # the same, for the one batch

    def row(self) -> list[str]:
        seconds = [f"{self.curve_seconds:.2f}", f"{self.direct_seconds:.2f}"]
        apart = "fell back" if self.fell_back else str(self.bytes_apart)
        return [f"{self.direct_bytes / MIB:.0f}", apart, *seconds]


def cases(quick: bool, seed: int) -> Sequence[Point]:
    source = random.Random(seed)
    return [draw(source) for _ in range(3 if quick else 100)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {
        "envelope_points": len(results),
        "envelope_max_bytes_apart": max(abs(result.bytes_apart) for result in results),
        "envelope_fallbacks": sum(result.fell_back for result in results),
        "envelope_curve_seconds_mean": sum(result.curve_seconds for result in results) / len(results),
    }


def draw(source: random.Random) -> Point:
    workload = source.choice(["stdlib_gpt", "vit_digits"])
    heads = source.choice([1, 2, 4])
    params: dict[str, Any] = {"depth": source.randint(1, 24), "width": heads * source.randint(4, 64), "heads": heads}
    params |= {"context": source.randint(8, 256)} if workload == "stdlib_gpt" else {"patch": source.choice([1, 2, 4])}
    layout = Layout(source.choice([1, 1, 2, 4, 8]), source.random() < 0.5, source.random() < 0.3)
    return Point(workload, params, layout, source.randint(4, 64), source.randint(2, 512))


def measure(point: Point, seconds: float) -> Result:
    """In this process, where nothing ends a trace: ``seconds`` are not looked at."""
    torch.set_num_threads(1)
    recipe = recipe_of(load_workload(point.workload, None)(dict(point.params)))
    began = time.process_time()
    traced = trace(recipe, point.layout, point.traced_batch)
    between = time.process_time()
    direct = trace_peak(recipe, point.layout, point.asked_batch).fixed_bytes
    ended = time.process_time()
    shortened = traced.alike or point.params["depth"] <= TRACED_BLOCKS
    fell_back = not (shortened and isinstance(traced.curve, Envelope))
    apart = 0 if not isinstance(traced.curve, Envelope) else traced.curve.peak_bytes(point.asked_batch) - direct
    return Result(apart, direct, fell_back, between - began, ended - between)
