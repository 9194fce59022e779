"""Compares peaks that are predicted with knowledge of a CPU's kernels with those that are predicted without it.

Nothing runs for real: ``truth`` and ``benchmarks.coverage`` say how far the former are from what steps allocate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.covering.asked import Asked
from benchmarks.covering.parts import peaks_part
from benchmarks.estimating import truth
from benchmarks.estimating.case import Case
from estimators.model import MIB, Layout
from estimators.tracing.device import CPU, UNKNOWN_CPU, Device
from estimators.tracing.tracer import trace
from workloads.sandbox.recipe import recipe_of

TITLE = "Peaks without knowledge of kernels"
HEADER = ("known MiB", "unknown MiB", "error", "with margin", "case")
ABOUT = f"""\
Peaks of tensors with the memory that a CPU's kernels are known to need, and without it, as they are predicted where
oneDNN cannot be asked. There {UNKNOWN_CPU.unknown_percent} % are added, with which the last error is."""


def cases(quick: bool, seed: int) -> Sequence[Case | Asked]:
    """The cases of ``truth``, and those of ``benchmarks.coverage`` that it compares with real steps."""
    if quick:
        return [Case("unet", 2, {"width": 16, "side": 32})]
    return [*truth.cases(quick, seed), *peaks_part.cases(quick, seed)]


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes."""

    on_cpu: int
    on_unknown_cpu: int

    @property
    def error_pct(self) -> float:
        """The error without knowledge, in percent; negative: too low."""
        return 100 * (self.on_unknown_cpu / self.on_cpu - 1)

    @property
    def with_margin_pct(self) -> float:
        """The error with what is added in place of knowledge."""
        return (100 + self.error_pct) * (1 + UNKNOWN_CPU.unknown_percent / 100) - 100

    def row(self) -> list[str]:
        sizes = [f"{num_bytes / MIB:.1f}" for num_bytes in (self.on_cpu, self.on_unknown_cpu)]
        return [*sizes, f"{self.error_pct:+.2f} %", f"{self.with_margin_pct:+.2f} %"]


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = [result.error_pct for result in results]
    added = [result.on_unknown_cpu * UNKNOWN_CPU.unknown_percent / 100 / MIB for result in results]
    return {
        "unknown_cases": len(results),
        "unknown_differ": sum(abs(error) >= 0.1 for error in errors),
        "unknown_min_pct": min(errors),
        "unknown_needed_pct": max(100 * (result.on_cpu / result.on_unknown_cpu - 1) for result in results),
        "unknown_added_mib": median(added),
    }


def measure(case: Case | Asked, seconds: float) -> Result:
    return Result(*(_peak_bytes(case, device) for device in (CPU, UNKNOWN_CPU)))


def _peak_bytes(case: Case | Asked, device: Device) -> int:
    recipe, layout = recipe_of(case.workload()), case.layout if isinstance(case, Case) else Layout()
    return trace(replace(recipe, device=device), layout, case.batch).curve.peak_bytes(case.batch)
