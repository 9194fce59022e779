"""Measures how much the caching allocator's replay adds to the peak of tensors, and how long it takes, for a GPT."""

from __future__ import annotations

import argparse
import json
import lzma
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from estimators.model import MIB, Layout
from estimators.peaks.allocator import replay, smallest_capacity
from estimators.peaks.reserved import ReservedCurve
from estimators.tracing.tracer import trace
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of

LAYOUTS = [
    Layout(),
    Layout(dp_shard=8),
    Layout(dp_shard=8, recompute=True),
    Layout(dp_shard=8, recompute=True, accumulate=True),
]
LARGE = {"depth": 24, "width": 2048, "heads": 16, "context": 1024}  # 1.2B parameters
SMALL = {"depth": 6, "width": 256, "heads": 4, "context": 128}
MICRO_BATCH = 8
CAPACITY = 76 * 1024 * MIB

_Result = TypeVar("_Result")


def main() -> None:
    """Print a line for each layout, then the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one layout of a small model")
    print(json.dumps(run(quick=parser.parse_args().quick)))


def run(*, quick: bool) -> dict[str, float]:
    """Print a line for each layout and return the figures: milliseconds of processor time, and percent."""
    recipe = recipe_of(load_workload("stdlib_gpt", None)(SMALL if quick else LARGE))
    figures: dict[str, float] = {}
    for layout in LAYOUTS[:1] if quick else LAYOUTS:
        traced = trace(recipe, layout, 64)
        assert traced.log is not None
        log, streams = traced.log.run(MICRO_BATCH), traced.log.streams(MICRO_BATCH)
        tensors = traced.curve.peak_bytes(MICRO_BATCH)
        once_ms, _ = _timed(partial(replay, log, streams=streams), times=5)
        least_ms, least = _timed(partial(smallest_capacity, log, streams=streams))
        _, expandable = _timed(partial(smallest_capacity, log, streams=streams, expandable=True))
        curve = ReservedCurve(traced.curve, traced.log)
        largest_ms, largest = _timed(partial(curve.largest_batch, CAPACITY))
        print(
            f"{layout!s:>28}: {tensors / MIB:.0f} MiB of tensors, smallest capacity {least / MIB:.0f} "
            f"({least / tensors - 1:+.1%}), expandable {expandable / MIB:.0f}; {len(log)} events, a replay "
            f"{once_ms:.1f} ms, the capacity {least_ms:.0f} ms, {largest} samples in 76 GiB {largest_ms:.0f} ms; "
            f"{len(lzma.compress(json.dumps(asdict(traced.log)).encode(), preset=1))} bytes"
        )
        figures[f"replay_ms_{layout}"] = once_ms
        figures[f"slack_percent_{layout}"] = 100 * (least / tensors - 1)
    return figures


def _timed(function: Callable[[], _Result], times: int = 1) -> tuple[float, _Result]:
    """Processor milliseconds of the fastest of ``times`` runs, and the result."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        result = function()
        taken.append(1e3 * (time.process_time() - began))
    return min(taken), result


if __name__ == "__main__":
    main()
