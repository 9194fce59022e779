"""Seconds of a step on this CPU: foretold from a fake trace, against real ones of models it was not measured on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.estimating.truth import Case
from benchmarks.estimating.zoo import make
from estimators.device_kind import DeviceKind
from estimators.model import Layout
from estimators.work import Work

NUM_STEPS = 5
PROBE_EVERY = 3  # of the calibration's own steps


def cases() -> Iterator[Case]:
    yield Case("gpt", 2, {"depth": 4, "width": 256, "context": 128})
    yield Case("gpt", 8, {"depth": 2, "width": 128, "context": 256})
    yield Case("gpt", 4, {"depth": 4, "width": 256, "context": 128}, recompute=True)
    yield Case("gpt", 1, {"depth": 6, "width": 512, "context": 256}, optimizer="momentum")
    yield Case("vit", 2, {"depth": 6, "width": 192})
    yield Case("vit", 8, {"depth": 3, "width": 96, "heads": 3, "side": 112})
    yield Case("vit", 4, {"depth": 6, "width": 192}, optimizer="sgd")
    yield Case("swin", 1, {"width": 32, "depths": [2, 2, 2]})
    yield Case("swin", 4, {"width": 64, "depths": [2, 2]})
    yield Case("unet", 1, {"width": 16, "side": 64})
    yield Case("unet", 4, {"width": 8, "side": 128})
    yield Case("dlrm", 256, {"rows": 10_000})
    yield Case("dlrm", 2048, {"rows": 10_000}, optimizer="sgd")
    yield Case("hf_gpt2", 2, {"depth": 4, "width": 256, "context": 128})
    yield Case("hf_bert", 4, {"depth": 3, "width": 192, "context": 128})
    yield Case("hf_llama", 2, {"depth": 4, "width": 256, "context": 128})


@dataclass(frozen=True)
class Result:
    """Seconds. ``drift`` is how much longer than foretold a few of the calibration's own steps took just then: the
    machine's change since, and what the fit misses of them."""

    case: Case
    predicted: float
    measured: float
    drift: float

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted / self.measured - 1)

    @property
    def scaled_error_pct(self) -> float:
        return 100 * (self.predicted * self.drift / self.measured - 1)

    def __str__(self) -> str:
        sizes = f"{self.predicted:>7.3f} s {self.drift:>6.2f} {self.measured:>7.3f} s"
        return f"{sizes} {self.error_pct:>+7.1f}% {self.scaled_error_pct:>+7.1f}%   {self.case}"


def run(wanted: Sequence[Case]) -> dict[str, float]:
    """Print every case; returns the figures. ``scaled``: with the drift taken out, as no user can."""
    kind = DeviceKind.from_json(json.loads(_output("-m", "workloads.calibrate")))
    print(f"{kind.name}: {kind.provenance}")
    print(f"{'predicted':>9} {'drift':>6} {'measured':>9} {'error':>8} {'scaled':>8}   case")
    results = []
    for case in wanted:
        real = json.loads(_output("-m", "benchmarks.estimating.pace", case.to_json()))
        drift = real["probe_seconds"] / kind.seconds(Work.from_json(real["probe_work"]))
        results.append(Result(case, predict(case, kind), real["seconds"], drift))
        print(results[-1], flush=True)
    errors = sorted(abs(result.error_pct) for result in results)
    scaled = sorted(abs(result.scaled_error_pct) for result in results)
    return {
        "step_cases": len(results),
        "step_median_pct": median(errors),
        "step_p95_pct": errors[min(len(errors) - 1, int(0.95 * len(errors)))],
        "step_scaled_median_pct": median(scaled),
        "step_scaled_max_pct": scaled[-1],
        "step_drift_min": min(result.drift for result in results),
        "step_drift_max": max(result.drift for result in results),
    }


def predict(case: Case, kind: DeviceKind) -> float:
    from estimators.trace import trace
    from workloads.function import FunctionWorkload
    from workloads.profile import recipe_of

    recipe = recipe_of(FunctionWorkload(make, case.all_params))
    traced = trace(recipe, Layout(recompute=case.recompute), case.batch)
    return kind.seconds(traced.work.step(case.batch, 1))


def run_for_real(case: Case) -> dict[str, Any]:
    """Processor seconds of a step as a rank would take it, and of a few known steps before and after."""
    import torch

    from workloads import calibrate
    from workloads.function import FunctionWorkload
    from workloads.parallel import apply_plan
    from workloads.step import train_step

    calibrate.prepare()
    probes = list(calibrate.steps())[::PROBE_EVERY]
    work, before = Work(), 0.0
    for probe in probes:
        _, one, taken = calibrate.measure(probe)
        work, before = work + one, before + taken
    workload = FunctionWorkload(make, case.all_params)
    model = workload.build_model()
    apply_plan(model, workload.blocks(model), Layout(recompute=case.recompute), None)
    optimizer = workload.optimizer(model)
    batch = workload.train_batch(torch.zeros(case.batch))

    def step() -> None:
        train_step(workload, model, optimizer, [batch], 1)

    taken = median([calibrate.seconds(step) for _ in range(NUM_STEPS + 2)][2:])
    after = sum(calibrate.measure(probe)[2] for probe in probes)
    return {"seconds": taken, "probe_seconds": (before + after) / 2, "probe_work": work.to_json()}


def _output(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    print(json.dumps(run_for_real(Case.from_json(sys.argv[1]))))
