"""Compares the memory of each rank of a real gang with the prediction from a trace in a single process.

The ranks are processes that communicate over gloo. Each takes a few steps as ``training.runtime`` does, and ``heap.c``
counts every allocation in the last step. torch's profiler cannot do this: it sees only tensors, in one thread.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol, Self

import torch
from torch.distributed import FileStore
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.estimating.measuring import heap
from benchmarks.estimating.zoo import make
from estimators.model import MIB, Plan
from estimators.tracing.tracer import trace
from workloads.function import FunctionWorkload
from workloads.loading import BUILT_INS, load_workload
from workloads.parallel.apply import rank_part, spread_optimizer
from workloads.protocol import Workload
from workloads.sandbox.recipe import recipe_of
from workloads.training.building import build_model
from workloads.training.gang import process_group
from workloads.training.memory.peak import measure_peak
from workloads.training.samples import rank_slices
from workloads.training.step import train_step
from workloads.training.warm_up import warm_up

NUM_STEPS = 3  # the last is measured, as optimizer states and lazily created buffers exist by then


class Divided(Protocol):
    """A case that real ranks can run."""

    @property
    def plan(self) -> Plan: ...

    def workload(self) -> Workload: ...

    def to_json(self) -> str: ...


class Planned:
    """A case with a plan, which another process reads as JSON."""

    plan: Plan

    def to_json(self) -> str:
        return json.dumps({**vars(self), "plan": self.plan.to_json()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        return cls(**{**data, "plan": Plan.from_json(data["plan"])})


@dataclass(frozen=True)
class Case(Planned):
    """A built-in workload, or a model of the zoo, under a plan for several ranks."""

    model: str
    params: dict[str, Any]
    plan: Plan

    def workload(self) -> Workload:
        if self.model in BUILT_INS:
            return load_workload(self.model, None)(self.params)
        return FunctionWorkload(make, {"model": self.model, **self.params})

    def __str__(self) -> str:
        size = " ".join(f"{name}={value}" for name, value in self.params.items())
        return f"{self.model} {size}: {self.plan}"


GPT = {"depth": 4, "width": 512, "context": 64}
VIT = {"depth": 4, "width": 512, "patch": 1}


TITLE = "Peaks of the ranks of a gang"
HEADER = ("predicted MiB", "counted MiB", "error", "case")
ABOUT = """\
Peaks of real ranks on gloo, all of at least 50 MiB. Every allocation from the C library is counted, less the memory
that libraries keep when the model is gone. Each row has the rank with the largest error. With ZeRO-1, which divides
whole parameters, it has the rank with the largest part: others may need far less."""


def cases(quick: bool, seed: int) -> list[Case]:
    every = list(_cases())
    return every[:1] if quick else every


def _cases() -> Iterator[Case]:
    yield Case("stdlib_gpt", GPT, Plan(4, dp_shard=2))
    yield Case("vit_digits", VIT, Plan(2, 2, dp_shard=4))
    yield Case("vit_digits", VIT, Plan(8, 2, dp_shard=2, recompute=True))
    yield Case("gpt", {"depth": 4, "context": 64}, Plan(2, dp_shard=2))
    yield Case("gpt", {"depth": 4, "context": 64}, Plan(1, 2, dp_shard=4, recompute=True))
    yield Case("swin", {"width": 64, "depths": [2, 2]}, Plan(2, dp_shard=2))
    yield Case("unet", {"width": 32, "side": 32}, Plan(2, dp_shard=2))
    yield Case("hf_llama", {"depth": 3, "width": 384, "context": 32}, Plan(2, 2, dp_shard=2))
    yield Case("vit_digits", VIT, Plan(2, 2, dp_shard=2, dp_replicate=2))
    yield Case("stdlib_gpt", GPT, Plan(4, dp_shard=2, dp_replicate=2, recompute=True))
    yield Case("stdlib_gpt", GPT, Plan(8, dp_replicate=2))
    yield Case("stdlib_gpt", GPT, Plan(4, 2, dp_replicate=2, tp=2))
    yield Case("stdlib_gpt", GPT, Plan(4, dp_shard=2, reshard=False))
    yield Case("vit_digits", VIT, Plan(4, 2, dp_shard=4, reshard=False, recompute=True))
    yield Case("stdlib_gpt", GPT, Plan(2, dp_shard=2, dp_replicate=2, reshard=False))
    yield Case("stdlib_gpt", GPT, Plan(8, dp_shard=2, recompute=True, selective=True))
    yield Case("vit_digits", VIT, Plan(8, 2, tp=2, recompute=True, selective=True))
    yield Case("gpt", {"depth": 4, "context": 64}, Plan(4, 2, dp_shard=2, recompute=True, selective=True))
    yield Case("unet", {"width": 32, "side": 32}, Plan(8, dp_shard=2, recompute=True, selective=True))
    yield Case("stdlib_gpt", GPT, Plan(8, tp=2))
    yield Case("stdlib_gpt", GPT, Plan(16, tp=2, recompute=True))
    yield Case("vit_digits", VIT, Plan(4, 2, tp=4))
    yield Case("stdlib_gpt", GPT, Plan(4, dp_shard=2, tp=2))
    yield Case("stdlib_gpt", GPT, Plan(8, tp=2, sequence_parallel=True))
    yield Case("stdlib_gpt", GPT, Plan(8, 2, tp=4, sequence_parallel=True, recompute=True))
    yield Case("vit_digits", VIT, Plan(4, dp_shard=2, tp=2, sequence_parallel=True))
    yield Case("stdlib_gpt", GPT, Plan(2, 4, pp=2))
    yield Case("vit_digits", VIT, Plan(2, 4, pp=2, schedule="gpipe"))
    yield Case("stdlib_gpt", GPT, Plan(4, 6, pp=4))
    yield Case("vit_digits", VIT, Plan(4, 6, pp=4, schedule="gpipe", recompute=True))
    yield Case("stdlib_gpt", GPT, Plan(4, 4, pp=2, tp=2))
    yield Case("stdlib_gpt", GPT, Plan(2, 4, pp=2, dp_shard=2))
    yield Case("vit_digits", VIT, Plan(2, 4, pp=2, dp_shard=2, schedule="gpipe", recompute=True))
    yield Case("stdlib_gpt", GPT, Plan(2, 4, pp=2, dp_replicate=2))
    yield Case("stdlib_gpt", GPT, Plan(4, dp_replicate=2, zero1=True))
    yield Case("vit_digits", VIT, Plan(4, 2, dp_replicate=4, zero1=True, recompute=True))
    yield Case("hf_llama", {"depth": 3, "width": 384, "context": 32}, Plan(2, dp_replicate=2, zero1=True))
    yield Case("unet", {"width": 32, "side": 32}, Plan(2, dp_replicate=2, zero1=True))
    yield Case("unet", {"width": 32, "side": 64}, Plan(2, spatial=2))
    yield Case("unet", {"width": 32, "side": 64}, Plan(2, spatial=4))
    yield Case("unet", {"width": 32, "side": 64}, Plan(2, 2, spatial=2, dp_shard=2, recompute=True))
    yield Case("unet3d_blobs", {"side": 32, "width": 16}, Plan(4, spatial=2))
    yield Case("unet3d_blobs", {"side": 32, "width": 16}, Plan(1, 2, dp_shard=2))
    yield Case("stdlib_gpt", GPT, Plan(16, dp_shard=2, co_shard=4))
    yield Case("vit_digits", VIT, Plan(8, 2, dp_shard=2, co_shard=2, recompute=True))


@dataclass(frozen=True)
class Result:
    """Peak bytes of each rank."""

    predicted: Sequence[int]
    measured: Sequence[int]

    @property
    def errors_pct(self) -> list[float]:
        """Error of each rank, in percent of the measured bytes; negative: predicted too low."""
        pairs = zip(self.predicted, self.measured, strict=True)
        return [100 * (predicted / measured - 1) for predicted, measured in pairs]

    def row(self) -> list[str]:
        worst = max(range(len(self.measured)), key=lambda rank: abs(self.errors_pct[rank]))
        sizes = [f"{num_bytes / MIB:.1f}" for num_bytes in (self.predicted[worst], self.measured[worst])]
        return [*sizes, f"{self.errors_pct[worst]:+.3f} %"]


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = [abs(error) for result in results for error in result.errors_pct]
    return {"ranks_cases": len(results), "ranks_max_pct": max(errors), "ranks_median_pct": median(errors)}


def measure(case: Case, seconds: float) -> Result:
    predicted, counted = predict(case), [int(line) for line in in_ranks(__name__, case, seconds)]
    if case.plan.zero1:  # it divides whole parameters, and the prediction is for the rank with the largest part
        predicted, counted = predicted[:1], [max(counted)]
    return Result(predicted, counted)


def predict(case: Divided) -> list[int]:
    """Predicted peak bytes of each rank."""
    plan, recipe = case.plan, recipe_of(case.workload())
    curves = {layout: trace(recipe, layout, plan.micro_batch).curve for layout in plan.layouts}
    return [curves[plan.layout_of(rank)].peak_bytes(plan.micro_batch) for rank in range(plan.world_size)]


def in_ranks(module: str, case: Divided, seconds: float) -> list[str]:
    """The last line that each rank prints; a rank is a process ``python -m module CASE STORE RANK`` with ``heap.c``.

    Raises ``RuntimeError`` if one fails, ``TimeoutError`` after ``seconds``.
    """
    with tempfile.TemporaryDirectory() as folder, heap.counting() as environment:
        command = [sys.executable, "-m", module, case.to_json(), f"{folder}/store"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        ranks = [
            subprocess.Popen([*command, str(rank)], env=variables, stdout=subprocess.PIPE, text=True)
            for rank in range(case.plan.world_size)
        ]
        deadline = time.monotonic() + seconds
        try:
            while None in (codes := [rank.poll() for rank in ranks]) or any(codes):
                if failed := [code for code in codes if code]:
                    raise RuntimeError(f"a rank ended with exit code {failed[0]}: its error is above")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"took more than {seconds:g} s: allow more time with --seconds")
                time.sleep(0.05)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        return [rank.communicate()[0].splitlines()[-1] for rank in ranks]


def run_for_real(case: Divided, rank: int, store: str, *, hooked: bool = False) -> tuple[int, int]:
    """Peak bytes of this rank: counted by ``heap.c`` in the last step and, if ``hooked``, by torch's allocation hook in
    the step before it. Its peers must run at the same time.
    """
    torch.set_num_threads(1)
    device, plan, workload = torch.device("cpu"), case.plan, case.workload()

    def peaks(mesh: DeviceMesh) -> tuple[int, int]:
        model = build_model(workload, plan, 0, device, mesh)
        optimizer = spread_optimizer(workload.optimizer(model), plan.layout, mesh)
        samples = rank_slices(torch.arange(plan.batch) % workload.num_train, plan, rank)

        def step() -> None:
            batches = (rank_part(model, workload.train_batch(part), plan, rank) for part in samples)
            train_step(workload, model, optimizer, batches, plan.num_micro_batches)

        for _ in range(NUM_STEPS - 1):
            step()
        seen_by_torch = measure_peak(device, model, optimizer, step) if hooked else 0
        heap.forget_peak()
        step()
        return heap.peak(), seen_by_torch

    with process_group(plan, rank, FileStore(store, plan.world_size), device) as mesh:
        assert mesh is not None
        warm_up(device, mesh)
        counted, seen_by_torch = peaks(mesh)
        gc.collect()
        return counted - heap.held(), seen_by_torch


if __name__ == "__main__":
    print(run_for_real(Case.from_json(sys.argv[1]), int(sys.argv[3]), sys.argv[2])[0])
