"""What training steps really take from the C library, against what a trace of them has foretold.

The truth comes from a process of its own, in which ``heap.c`` counts every allocation; never from its resident size.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.estimating.zoo import make
from estimators.model import MIB, Layout

SOURCE = Path(__file__).with_name("heap.c")
NUM_STEPS = 2  # the first makes the optimizer's states


@dataclass(frozen=True)
class Case:
    """One model, how it is trained, and the samples of a micro-batch."""

    model: str
    batch: int
    params: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    optimizer: str = "adamw"
    recompute: bool = False

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        return cls(**json.loads(text))

    def __str__(self) -> str:
        size = " ".join(f"{name}={value}" for name, value in self.params.items())
        more = [word for word in (self.precision, self.optimizer) if word not in ("fp32", "adamw")]
        return " ".join(filter(None, [self.model, size, f"batch={self.batch}", *more, "recompute" * self.recompute]))

    @property
    def all_params(self) -> dict[str, Any]:
        return {"model": self.model, "precision": self.precision, "optimizer": self.optimizer, **self.params}


def cases() -> Iterator[Case]:
    """All of at least 500 MiB; in bf16, where a CPU without such units is slow, of few tokens."""
    wide = {"width": 1024}
    short = {**wide, "context": 16}
    yield Case("gpt", 8)
    yield Case("gpt", 12, recompute=True)
    yield Case("gpt", 2, short, precision="amp")
    yield Case("gpt", 2, short, precision="bf16")
    yield Case("gpt", 2, wide)
    yield Case("gpt", 2, wide, optimizer="momentum")
    yield Case("gpt", 2, wide, optimizer="fused", recompute=True)
    yield Case("gpt", 2, wide, optimizer="foreach")
    yield Case("gpt", 1, {"context": 1024, "depth": 8, "width": 768})
    yield Case("vit", 8)
    yield Case("vit", 24, recompute=True)
    yield Case("vit", 4, {"width": 768, "heads": 12, "side": 32}, precision="amp")
    yield Case("vit", 4, {"width": 768, "heads": 12, "side": 32}, precision="bf16")
    yield Case("vit", 2, {"width": 768, "heads": 12})
    yield Case("swin", 6)
    yield Case("swin", 2, {"width": 128}, optimizer="momentum")
    yield Case("swin", 2, {"width": 128}, precision="amp")
    yield Case("swin", 8, recompute=True)
    yield Case("unet", 10)
    yield Case("unet", 4, {"width": 64})
    yield Case("unet", 6, {"width": 48}, optimizer="sgd")
    yield Case("unet", 4, {"width": 64, "side": 64}, precision="amp")
    yield Case("unet", 10, optimizer="momentum", recompute=True)
    yield Case("dlrm", 1024, {"rows": 400_000})
    yield Case("dlrm", 16384, {"rows": 200_000}, optimizer="sgd")
    yield Case("dlrm", 8192, {"rows": 200_000}, optimizer="fused")
    yield Case("hf_gpt2", 8)
    yield Case("hf_gpt2", 2, wide)
    yield Case("hf_gpt2", 2, short, precision="amp")
    yield Case("hf_bert", 8)
    yield Case("hf_bert", 12, recompute=True)
    yield Case("hf_bert", 2, short, precision="bf16")
    yield Case("hf_llama", 8)
    yield Case("hf_llama", 2, wide, optimizer="momentum")
    yield Case("hf_t5", 8)
    yield Case("hf_t5", 2, short, precision="amp")


@dataclass(frozen=True)
class Result:
    case: Case
    predicted: int  # bytes
    measured: int
    state_bytes: int
    weight_bytes: int

    @property
    def naive_bytes(self) -> int:
        """Weights, gradients and two states of an optimizer, all of the weights' size."""
        return 4 * self.weight_bytes

    def error_pct(self, predicted: int | None = None) -> float:
        return 100 * ((self.predicted if predicted is None else predicted) / self.measured - 1)

    def __str__(self) -> str:
        others = [self.error_pct(num_bytes) for num_bytes in (self.state_bytes, self.naive_bytes)]
        sizes = f"{self.predicted / MIB:>5.0f} MiB {self.measured / MIB:>5.0f} MiB {self.error_pct():>+7.2f}%"
        return f"{sizes} {others[0]:>+7.1f}% {others[1]:>+7.1f}%   {self.case}"


def run(wanted: Sequence[Case]) -> dict[str, float]:
    """Print every case; returns the figures. Beside them: ZeRO's states alone, and weights × 4 (naive)."""
    print(f"{'predicted':>9} {'measured':>9} {'error':>8} {'states':>8} {'naive':>8}   case")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "heap.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        for case in wanted:
            results.append(measure(case, library))
            print(results[-1], flush=True)
    errors = [result.error_pct() for result in results]
    sizes = sorted(map(abs, errors))
    print("The worst:", *sorted(results, key=lambda result: abs(result.error_pct()))[-3:], sep="\n")
    return {
        "cpu_cases": len(results),
        "cpu_median_pct": median(sizes),
        "cpu_p95_pct": sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))],
        "cpu_min_pct": min(errors),
        "cpu_states_median_pct": median(abs(result.error_pct(result.state_bytes)) for result in results),
        "cpu_naive_median_pct": median(abs(result.error_pct(result.naive_bytes)) for result in results),
    }


def measure(case: Case, library: Path) -> Result:
    from estimators.trace import trace
    from workloads.function import FunctionWorkload
    from workloads.profile import recipe_of

    recipe = recipe_of(FunctionWorkload(make, case.all_params))
    traced = trace(recipe, Layout(recompute=case.recompute), case.batch)
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.estimating.truth", case.to_json()]
    truth = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    measured = int(truth.stdout.split()[-1])
    weight_bytes = traced.num_params * (2 if case.precision == "bf16" else 4)
    return Result(case, traced.curve.peak_bytes(case.batch), measured, traced.state_bytes, weight_bytes)


def run_for_real(case: Case) -> int:
    """Bytes: the most that a few steps have held at once, over what the process held before the model was built."""
    import torch

    from workloads.function import FunctionWorkload
    from workloads.parallel import apply_plan
    from workloads.step import train_step

    heap = ctypes.CDLL(None)
    heap.heap_held.restype = heap.heap_peak.restype = ctypes.c_long
    torch.set_num_threads(1)

    def steps(batch: int, params: dict[str, Any]) -> None:
        workload = FunctionWorkload(make, params)
        model = workload.build_model()
        apply_plan(model, workload.blocks(model), Layout(recompute=case.recompute), None)
        optimizer = workload.optimizer(model)
        heap.heap_reset()  # the weights are there; what initialising them took does not count
        for _ in range(NUM_STEPS):
            train_step(workload, model, optimizer, [workload.train_batch(torch.zeros(batch))], 1)

    tiny = {name: value for name, value in case.all_params.items() if name not in case.params}
    steps(2, tiny)  # what the first use of each operation keeps for good is not the model's
    gc.collect()
    before: int = heap.heap_held()
    steps(case.batch, case.all_params)
    peak: int = heap.heap_peak()
    return peak - before


if __name__ == "__main__":
    print(run_for_real(Case.from_json(sys.argv[1])))
