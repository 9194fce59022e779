"""Compares predicted peaks with the memory that training steps really allocate from the C library.

The true value comes from a separate process in which ``heap.c`` counts every allocation, never from resident size. That
process has one thread, because oneDNN's convolutions take scratch memory for each thread (a U-Net of 53 MiB took
1.2 MiB more with two).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from benchmarks.estimating.case import Case
from benchmarks.estimating.measuring import heap
from benchmarks.estimating.measuring.counted import peak_over_kept, steps
from benchmarks.estimating.measuring.tracker import tracked_peak_bytes
from benchmarks.running.process import last_line
from estimators.model import MIB
from estimators.tracing.tracer import trace
from workloads.sandbox.recipe import recipe_of

TITLE = "Peaks"
HEADER = ("predicted MiB", "counted MiB", "error", "ZeRO states", "weights × 4", "MemTracker", "case")
ABOUT = """\
Peaks of two real steps, in a process where every allocation from the C library is counted, less the memory that
libraries keep when the model is gone. The last columns have the errors of three other estimates: the ZeRO states alone
(parameters, gradients, optimizer), four times the weights, and torch's `MemTracker` on the same fake steps, or why it
fails."""


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """All cases, or one small case; ``seed`` is not used.

    Nearly all take at least 500 MiB: in smaller cases, memory that a process keeps permanently weighs more. Cases in
    bf16 have few tokens, because a CPU without bf16 units is slow.
    """
    if quick:
        return [Case("gpt", 4, {"depth": 4, "width": 256, "context": 256})]
    wide = {"width": 1024}
    short = {**wide, "context": 16}
    return [
        Case("gpt", 8),
        Case("gpt", 12, recompute=True),
        Case("gpt", 8, recompute=True, selective=True),
        Case("gpt", 2, short, arithmetic="amp"),
        Case("gpt", 2, short, arithmetic="bf16"),
        Case("gpt", 2, wide),
        Case("gpt", 2, wide, optimizer="momentum"),
        Case("gpt", 2, wide, optimizer="fused", recompute=True),
        Case("gpt", 2, wide, optimizer="foreach"),
        Case("gpt", 1, {"context": 1024, "depth": 8, "width": 768}),
        Case("vit", 8),
        Case("vit", 24, recompute=True),
        Case("vit", 4, {"width": 768, "heads": 12, "side": 32}, arithmetic="amp"),
        Case("vit", 4, {"width": 768, "heads": 12, "side": 32}, arithmetic="bf16"),
        Case("vit", 2, {"width": 768, "heads": 12}),
        Case("swin", 6),
        Case("swin", 2, {"width": 128}, optimizer="momentum"),
        Case("swin", 2, {"width": 128}, arithmetic="amp"),
        Case("swin", 8, recompute=True),
        Case("swin", 6, recompute=True, selective=True),
        Case("unet", 10),
        Case("unet", 4, {"width": 64}),
        Case("unet", 6, {"width": 48}, optimizer="sgd"),
        Case("unet", 4, {"width": 64, "side": 64}, arithmetic="amp"),
        Case("unet", 10, optimizer="momentum", recompute=True),
        Case("unet3d_blobs", 16, {"side": 32, "width": 16}),
        Case("unet3d_blobs", 1, {"side": 64, "width": 32}),
        Case("dlrm", 1024, {"rows": 400_000}),
        Case("dlrm", 16384, {"rows": 200_000}, optimizer="sgd"),
        Case("dlrm", 8192, {"rows": 200_000}, optimizer="fused"),
        Case("hf_gpt2", 8),
        Case("hf_gpt2", 2, wide),
        Case("hf_gpt2", 2, short, arithmetic="amp"),
        Case("hf_bert", 8),
        Case("hf_bert", 12, recompute=True),
        Case("hf_bert", 2, short, arithmetic="bf16"),
        Case("hf_llama", 8),
        Case("hf_llama", 2, wide, optimizer="momentum"),
        Case("hf_t5", 8),
        Case("hf_t5", 2, short, arithmetic="amp"),
    ]


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes. ``tracker_bytes`` is 0 where the tracker failed; ``tracker_failure`` then says why."""

    predicted: int
    measured: int
    state_bytes: int
    weight_bytes: int
    tracker_bytes: int
    tracker_failure: str

    @property
    def naive_bytes(self) -> int:
        """Bytes of weights, gradients and two optimizer states, all of the weights' size."""
        return 4 * self.weight_bytes

    def error_pct(self, predicted: int | None = None) -> float:
        """Error of ``predicted`` (None: the estimator's) in percent of the measured bytes; negative: too low."""
        return 100 * ((self.predicted if predicted is None else predicted) / self.measured - 1)

    def row(self) -> list[str]:
        sizes = [f"{num_bytes / MIB:.0f}" for num_bytes in (self.predicted, self.measured)]
        errors = [f"{self.error_pct(num_bytes):+.1f} %" for num_bytes in (self.state_bytes, self.naive_bytes)]
        tracker = self.tracker_failure or f"{self.error_pct(self.tracker_bytes):+.2f} %"
        return [*sizes, f"{self.error_pct():+.2f} %", *errors, tracker]


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = [result.error_pct() for result in results]
    sizes = sorted(map(abs, errors))
    tracked = [abs(result.error_pct(result.tracker_bytes)) for result in results if not result.tracker_failure]
    return {
        "cpu_cases": len(results),
        "cpu_median_pct": median(sizes),
        "cpu_p95_pct": sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))],
        "cpu_min_pct": min(errors),
        "zero_median_pct": median(abs(result.error_pct(result.state_bytes)) for result in results),
        "weights4_median_pct": median(abs(result.error_pct(result.naive_bytes)) for result in results),
        "memtracker_cases": len(tracked),
        **({"memtracker_median_pct": median(tracked)} if tracked else {}),
    }


def measure(case: Case, seconds: float) -> Result:
    traced = trace(recipe_of(case.workload()), case.layout, case.batch)
    tracker_bytes, tracker_failure = 0, ""
    try:
        tracker_bytes = tracked_peak_bytes(case)
    except Exception as error:  # any kind: a failure of the tracker is a result
        tracker_failure = f"fails: {type(error).__name__}"
    measured = _counted(case, seconds)
    weight_bytes = traced.num_params * (2 if case.arithmetic == "bf16" else 4)
    predicted = traced.curve.peak_bytes(case.batch)
    return Result(predicted, measured, traced.state_bytes, weight_bytes, tracker_bytes, tracker_failure)


def _counted(case: Case, seconds: float) -> int:
    with heap.counting() as environment:
        return int(last_line("-m", "benchmarks.estimating.truth", case.to_json(), seconds=seconds, **environment))


def run_for_real(case: Case) -> int:
    """Peak bytes of a few steps; see ``peak_over_kept``."""
    # A model of the default size will do to warm up, with the case's number of tokens or pixels: it is less work.
    few = {name: value for name, value in case.params.items() if name in ("context", "side")}
    small = replace(case, batch=2, params=few)
    return peak_over_kept(
        *(partial(steps, variant.workload(), variant.batch, variant.layout) for variant in (small, case))
    )


if __name__ == "__main__":
    print(run_for_real(Case.from_json(sys.argv[1])))
