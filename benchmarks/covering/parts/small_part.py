"""Compares predicted peaks of models of many small operations with what steps take, small objects included."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.covering.asked import Asked
from benchmarks.covering.asking import ask
from benchmarks.covering.compared import Compared
from benchmarks.covering.parts import peaks_part
from benchmarks.estimating.measuring import heap
from benchmarks.running.process import last_line
from workloads.training.step import train_step

NUM_DRAWN, NUM_STEPS = 10, 3
TITLE = "Many small operations"
HEADER = ("predicted MiB", "objects MiB", "counted MiB", "error", "case")
ABOUT = f"""\
Peaks of loops of thousands of operations on tensors of a few bytes, in the third step: the first one is watched, which
takes another 50 to 250 bytes an operation. Every allocation from the C library is counted, and Python's own objects are
among them (`PYTHONMALLOC=malloc`): here nodes of autograd and objects of tensors take more than the numbers in them.
"Objects" is the part of the prediction that is not the data of tensors. The last {NUM_DRAWN} cases are random programs,
drawn by the seed."""
_LENGTHS = {
    "multiply": 10_000, "affine": 2_000, "gru_cell": 120, "lstm_cell": 120, "gated": 250, "runge_kutta": 60,
    "sinkhorn": 300, "columns": 150, "attention": 150, "norms": 250, "layer_norm": 700, "function": 800,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result(Compared):
    """Bytes; ``objects`` are part of the prediction."""

    objects: int

    def row(self) -> list[str]:
        return ["", "", "", "refused"] if self.refusal else self.cells((self.predicted, self.objects, self.measured))


def cases(quick: bool, seed: int) -> Sequence[Asked]:
    """A loop over each of ``small.STEPS``, and random programs drawn by ``seed``; or one."""
    every = [Asked("small", {"model": model, "times": times, "batch": 1}) for model, times in _LENGTHS.items()]
    if quick:
        return every[:1]
    source = random.Random(seed)
    for _ in range(NUM_DRAWN):
        params = {"model": str(source.randrange(10**6)), "times": source.choice([100, 200, 300])}
        every.append(Asked("small", {**params, "width": source.choice([4, 8, 16]), "batch": source.choice([1, 2, 4])}))
    return every


def measure(case: Asked, seconds: float) -> Result:
    answer = ask(case)
    counted = 0 if answer.refusal else _counted_peak(case, seconds)
    return Result(answer.predicted + answer.objects, counted, answer.refusal, answer.objects)


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = [abs(result.error_pct) for result in results if not result.refusal]
    values: dict[str, float] = {"small_ops_cases": len(errors), "small_ops_refused": len(results) - len(errors)}
    return {**values, "small_ops_max_pct": max(errors)} if errors else values


notes = peaks_part.notes


def _counted_peak(case: Asked, seconds: float) -> int:
    with heap.counting() as environment:
        variables = {**environment, "PYTHONMALLOC": "malloc"}
        return int(last_line("-m", __name__, case.to_json(), seconds=seconds, **variables))


def run_for_real(case: Asked) -> int:
    """Peak bytes of the last of a few steps, over what the process holds when the model is gone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)

    def peak() -> int:
        workload = case.workload()
        model = workload.build_model()
        optimizer = workload.optimizer(model)
        for _ in range(NUM_STEPS):
            gc.collect()
            heap.forget_peak()
            batches = (workload.train_batch(indices) for indices in (torch.arange(case.batch),))
            train_step(workload, model, optimizer, batches, 1)
        return heap.peak()

    highest = peak()
    gc.collect()
    return highest - heap.held()


if __name__ == "__main__":
    print(run_for_real(Asked.from_json(sys.argv[1])))
