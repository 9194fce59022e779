"""Compares predicted with measured seconds of a step on this CPU, for models that were not part of the calibration."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import torch

from benchmarks.estimating.case import Case
from benchmarks.running.process import last_line
from estimators.devices.kind import DeviceKind
from estimators.tracing.tracer import trace
from estimators.work import Work
from scamp_service.sizing.calibration import DEVICE_KIND, QUICK
from workloads.calibration.measure import CPU, prepare
from workloads.calibration.probes import Probe, ProcessorTime, steps
from workloads.parallel.apply import apply_plan
from workloads.sandbox.recipe import recipe_of
from workloads.training.step import train_step

CALIBRATION_SECONDS = 600
NUM_STEPS = 5
PROBE_EVERY = 3  # every third of the calibration's own steps is measured again
TITLE = "Seconds of a step"
HEADER = ("predicted s", "drift", "measured s", "error", "scaled", "quick", "case")
ABOUT = """\
Processor seconds of one step of a rank with one thread, predicted after `scamp calibrate`, for models that were not
part of the calibration. "Drift" is how much slower the machine has become since then: the calibration's own steps are
measured again, in turns with those of the case. "Scaled" is the error after drift is taken out of each turn, which a
user cannot do. "Quick" is the error after the few seconds of calibration in which a service measures its machine by
itself. Workloads with `.py` are files of a user."""


def cases(quick: bool, seed: int) -> Sequence[Case]:
    every = [
        Case("gpt", 2, {"depth": 4, "width": 256, "context": 128}),
        Case("gpt", 8, {"depth": 2, "width": 128, "context": 256}),
        Case("gpt", 4, {"depth": 4, "width": 256, "context": 128}, recompute=True),
        Case("gpt", 1, {"depth": 6, "width": 512, "context": 256}, optimizer="momentum"),
        Case("vit", 2, {"depth": 6, "width": 192}),
        Case("vit", 8, {"depth": 3, "width": 96, "heads": 3, "side": 112}),
        Case("vit", 4, {"depth": 6, "width": 192}, optimizer="sgd"),
        Case("swin", 1, {"width": 32, "depths": [2, 2, 2]}),
        Case("swin", 4, {"width": 64, "depths": [2, 2]}),
        Case("unet", 1, {"width": 16, "side": 64}),
        Case("unet", 4, {"width": 8, "side": 128}),
        Case("dlrm", 256, {"rows": 10_000}),
        Case("dlrm", 2048, {"rows": 10_000}, optimizer="sgd"),
        Case("hf_gpt2", 2, {"depth": 4, "width": 256, "context": 128}),
        Case("hf_bert", 4, {"depth": 3, "width": 192, "context": 128}),
        Case("hf_llama", 2, {"depth": 4, "width": 256, "context": 128}),
        Case("gpt", 4, {"depth": 3, "width": 384, "context": 64}),
        Case("vit", 4, {"depth": 4, "width": 288, "side": 96}, recompute=True),
        Case("swin", 2, {"width": 48, "depths": [2, 2]}, optimizer="momentum"),
        Case("unet", 2, {"width": 16, "side": 96}, optimizer="fused"),
        Case("dlrm", 512, {"rows": 20_000}, optimizer="fused"),
        Case("hf_gpt2", 4, {"depth": 2, "width": 384, "context": 64}, optimizer="foreach"),
        Case("hf_bert", 2, {"depth": 4, "width": 256, "context": 128}, recompute=True),
        Case("hf_t5", 2, {"depth": 2, "width": 256, "context": 64}),
        Case("convnext.py:Digits", 32, {"depth": 1, "width": 64}),
        Case("convnext.py:Digits", 32, {"depth": 2, "width": 160}),
        Case("shapes.py:Shapes", 8, {"shape": "small"}),
        Case("shapes.py:Shapes", 8, {"shape": "wide layers"}),
        Case("shapes.py:Shapes", 6, {"shape": "many layers"}),
    ]
    return every[:1] if quick else every


@dataclass(frozen=True, slots=True)
class Result:
    """Predicted and measured seconds of one step.

    ``drift`` is measured over predicted seconds for a few of the calibration's own steps, at the time of the case: the
    change of the machine since the calibration, and the fit's own error. ``steady`` is measured seconds over drift.
    ``quick`` are the seconds predicted after a quick calibration.
    """

    predicted: float
    measured: float
    drift: float
    steady: float
    quick: float

    @property
    def error_pct(self) -> float:
        """Error in percent of the measured seconds; negative: predicted too low."""
        return 100 * (self.predicted / self.measured - 1)

    @property
    def scaled_error_pct(self) -> float:
        """Error in percent, with drift taken out."""
        return 100 * (self.predicted / self.steady - 1)

    def row(self) -> list[str]:
        seconds = [f"{self.predicted:.3f}", f"{self.drift:.2f}", f"{self.measured:.3f}"]
        errors = (self.error_pct, self.scaled_error_pct, 100 * (self.quick / self.measured - 1))
        return [*seconds, *(f"{error:+.1f} %" for error in errors)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = sorted(abs(result.error_pct) for result in results)
    scaled = sorted(abs(result.scaled_error_pct) for result in results)
    quick = [100 * abs(result.quick / result.measured - 1) for result in results]
    return {
        "step_cases": len(results),
        "step_median_pct": median(errors),
        "step_p95_pct": errors[min(len(errors) - 1, int(0.95 * len(errors)))],
        "step_scaled_median_pct": median(scaled),
        "step_scaled_max_pct": scaled[-1],
        "step_drift_min": min(result.drift for result in results),
        "step_drift_max": max(result.drift for result in results),
        "quick_median_pct": median(quick),
        "quick_max_pct": max(quick),
        "quick_full_apart_median_pct": median(100 * abs(result.quick / result.predicted - 1) for result in results),
    }


def measure(case: Case, seconds: float) -> Result:
    """The result of one case; ``seconds`` limits its real run. The first call also waits for both calibrations."""
    kind = calibration().result()
    quick = predict(case, quick_calibration())
    real = json.loads(last_line("-m", "benchmarks.estimating.pace", case.to_json(), seconds=seconds))
    expected = kind.seconds(Work(tuple(real["probe_work"])))
    drifts = [seconds / expected for seconds in real["probe_seconds"]]
    steady = median(seconds / drift for seconds, drift in zip(real["seconds"], drifts, strict=True))
    return Result(predict(case, kind), median(real["seconds"]), median(drifts), steady, quick)


@cache
def calibration() -> Future[DeviceKind]:
    """The calibration of this machine's CPU; the first call starts it in a separate process."""

    def calibrate() -> DeviceKind:
        return DEVICE_KIND.validate_json(last_line("-m", "workloads.calibration.measure", seconds=CALIBRATION_SECONDS))

    return ThreadPoolExecutor(1).submit(calibrate)


@cache
def quick_calibration() -> DeviceKind:
    """The quick calibration of this machine's CPU."""
    command = ["-m", "workloads.calibration.measure", QUICK]
    return DEVICE_KIND.validate_json(last_line(*command, seconds=CALIBRATION_SECONDS))


def predict(case: Case, kind: DeviceKind) -> float:
    """Predicted seconds of one step."""
    return kind.seconds(trace(recipe_of(case.workload()), case.layout, case.batch).work.step(case.batch, 1))


def run_for_real(case: Case) -> dict[str, Any]:
    """Processor seconds of steps under a rank's conditions, and of some calibration steps in turns with them."""
    prepare()
    clock = ProcessorTime()
    probes = [Probe(step, clock) for step in list(steps(CPU))[::PROBE_EVERY]]
    workload = case.workload()
    model = workload.build_model()
    apply_plan(model, workload.blocks(model), case.layout, None)
    optimizer = workload.optimizer(model)
    batch = workload.train_batch(torch.arange(case.batch) % workload.num_train)

    def step() -> None:
        train_step(workload, model, optimizer, [batch], 1)

    for _ in range(2):
        step()
    turns = []
    for _ in range(NUM_STEPS):
        seconds = clock.seconds(step)
        for probe in probes:
            probe.measure()
        turns.append((seconds, sum(probe.rounds[-1] for probe in probes)))
    taken, taken_by_probes = zip(*turns, strict=True)
    work = sum((probe.work for probe in probes), Work())
    return {"seconds": taken, "probe_seconds": taken_by_probes, "probe_work": work.amounts}


if __name__ == "__main__":
    print(json.dumps(run_for_real(Case.from_json(sys.argv[1]))))
