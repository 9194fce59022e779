"""Compares seconds of a step as predicted after a quick and after a full calibration with real ones on this CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from benchmarks.estimating import pace
from benchmarks.estimating.case import Case
from benchmarks.running.process import last_line
from estimators.devices.kind import DeviceKind
from scamp_service.sizing.calibration import DEVICE_KIND, QUICK

TITLE = "Seconds of a step after a quick calibration"
HEADER = ("measured s", "full", "quick", "case")
ABOUT = """\
Processor seconds of one step of a rank with one thread. "Full" and "quick" are predicted over measured seconds: after
`scamp calibrate`, and after the few seconds in which a service measures its machine by itself. Both were made in
this run, before the cases. Workloads with `.py` are files of a user."""


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """All cases, or one small case; ``seed`` is not used."""
    every = [
        Case("convnext.py:Digits", 32, {"depth": 1, "width": 64}),
        Case("convnext.py:Digits", 32, {"depth": 2, "width": 160}),
        Case("shapes.py:Shapes", 8, {"shape": "small"}),
        Case("shapes.py:Shapes", 8, {"shape": "wide layers"}),
        Case("shapes.py:Shapes", 6, {"shape": "many layers"}),
        Case("vit_digits", 64, {"depth": 4, "width": 64}),
        Case("gpt", 4, {"depth": 3, "width": 384, "context": 64}),
        Case("unet", 4, {"width": 8, "side": 128}),
        Case("dlrm", 2048, {"rows": 10_000}, optimizer="sgd"),
        Case("hf_bert", 4, {"depth": 3, "width": 192, "context": 128}),
    ]
    return every[:1] if quick else every


@dataclass(frozen=True, slots=True)
class Result:
    """Measured seconds of one step, and those predicted after each calibration."""

    measured: float
    full: float
    quick: float

    @property
    def ratios(self) -> tuple[float, float]:
        """Predicted over measured seconds, after a full and after a quick calibration."""
        return self.full / self.measured, self.quick / self.measured

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        return [f"{self.measured:.3f}", *(f"{ratio:.2f}" for ratio in self.ratios)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Medians and maxima of absolute errors, and how far the two predictions are apart."""
    full, quick = (
        [100 * abs(ratio - 1) for ratio in ratios] for ratios in zip(*(r.ratios for r in results), strict=True)
    )
    apart = [100 * abs(result.quick / result.full - 1) for result in results]
    return {
        "quick_cases": len(results),
        "full_median_pct": median(full),
        "quick_median_pct": median(quick),
        "full_max_pct": max(full),
        "quick_max_pct": max(quick),
        "quick_full_apart_median_pct": median(apart),
        "quick_full_apart_max_pct": max(apart),
    }


def measure(case: Case, seconds: float) -> Result:
    """The result of one case; ``seconds`` limits its real run. The first call also waits for both calibrations."""
    full = pace.calibration().result()
    quick = calibration()
    real = json.loads(last_line("-m", "benchmarks.estimating.pace", case.to_json(), seconds=seconds))
    return Result(median(real["seconds"]), pace.predict(case, full), pace.predict(case, quick))


@cache
def calibration() -> DeviceKind:
    """The quick calibration of this machine's CPU."""
    command = ["-m", "workloads.calibration.measure", QUICK]
    return DEVICE_KIND.validate_json(last_line(*command, seconds=pace.CALIBRATION_SECONDS))
