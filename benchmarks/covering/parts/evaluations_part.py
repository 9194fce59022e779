"""Compares predicted peaks of evaluations with what real evaluations allocate, in single ranks and in gangs on gloo."""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.distributed import FileStore
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.covering.evaluated import MODELS
from benchmarks.covering.parts.gangs_part import Gang, Result, notes, params_of, with_drawn
from benchmarks.estimating import ranks
from benchmarks.estimating.measuring import heap
from estimators.model import Plan
from estimators.tracing.tracer import trace
from workloads.parallel.apply import rank_part, spread_optimizer
from workloads.protocol import Workload
from workloads.sandbox.recipe import recipe_of
from workloads.training.building import build_model
from workloads.training.gang import process_group
from workloads.training.memory.peak import measure_peak
from workloads.training.samples import evaluation_slices, rank_slices
from workloads.training.step import evaluate, train_step
from workloads.training.warm_up import warm_up

__all__ = ["ABOUT", "HEADER", "TITLE", "Case", "Result", "cases", "figures", "measure", "notes"]

NUM_STEPS = 2  # the first creates the optimizer's states
NUM_DRAWN = 6
TITLE = "Peaks of evaluations"
HEADER = ("predicted MiB", "allocated MiB", "counted MiB", "error", "case")
ABOUT = f"""\
Peaks of evaluations of workloads as users write them, after {NUM_STEPS} training steps: logits over many words or
classes, top-5 and confusion, neighbours in a bank of features, masks at full size, flipped copies, NumPy, texts
generated word by word. "Allocated" is what torch's allocation hook reports, "counted" is every allocation from the C
library, less the memory that libraries keep when the model is gone; the error is the distance to the nearer one, as for
gangs. Each row has the rank with the largest error. The last {NUM_DRAWN} cases are drawn by the seed."""


@dataclass(frozen=True)
class Case(Gang):
    """A workload of ``evaluated.py`` under a plan, whose micro-batch of evaluations is that of the case."""

    def workload(self) -> Workload:
        return MODELS[self.params["model"]](self.params)


def cases(quick: bool, seed: int) -> Sequence[Case]:
    chosen = list(_chosen())
    return chosen[:1] if quick else with_drawn(chosen, draw, NUM_DRAWN, seed)


def _chosen() -> Iterator[Case]:
    yield Case(params_of("topfive", 64), Plan(64))
    yield Case(params_of("text", 128), Plan(16))
    yield Case(params_of("text", 256), Plan(24, evaluation_batch=1))
    yield Case(params_of("classifier", 64, size=64), Plan(32))
    yield Case(params_of("flips", 48, size=48), Plan(24, evaluation_batch=16))
    yield Case(params_of("neighbours", 48, size=48), Plan(16))
    yield Case(params_of("pairs", 64), Plan(96))
    yield Case(params_of("arrays", 128), Plan(32))
    yield Case(params_of("segmentation", 64, size=96), Plan(16, evaluation_batch=8))
    yield Case(params_of("generated", 192, depth=8), Plan(8))
    yield Case(params_of("text", 256), Plan(8, dp_shard=2))
    yield Case(params_of("generated", 192), Plan(6, dp_shard=2, recompute=True))
    yield Case(params_of("segmentation", 96, size=96), Plan(8, dp_replicate=2))
    yield Case(params_of("text", 192), Plan(8, dp_shard=2, reshard=False))


def draw(source: random.Random) -> Case:
    """A random case of one or two ranks."""
    model = source.choice(list(MODELS))
    params = params_of(model, source.choice([64, 96, 128, 192]))
    if model not in ("text", "generated"):
        params["size"] = source.choice([32, 48, 64])
    else:
        params["depth"] = source.choice([3, 5, 9])
    micro_batch = source.randint(4, 40)
    spread: dict[str, Any] = source.choice([{}, {}, {"dp_shard": 2}])
    evaluation_batch = source.choice([0, 1, 2])  # sizes between powers of two are bounds where a peak is not linear
    return Case(params, Plan(micro_batch, evaluation_batch=evaluation_batch, **spread))


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = [abs(error) for result in results for error in result.errors_pct]
    return {
        "evaluation_cases": len(results),
        "evaluation_max_pct": max(errors),
        "evaluation_median_pct": median(errors),
    }


def measure(case: Case, seconds: float) -> Result:
    plan, recipe = case.plan, recipe_of(case.workload())
    curves = {layout: trace(recipe, layout, plan.micro_batch).evaluation for layout in plan.layouts}
    layouts = [plan.layout_of(rank) for rank in range(plan.world_size)]
    peaks = [curve.peak_bytes(plan.evaluation_micro_batch) for curve in map(curves.get, layouts) if curve is not None]
    pairs = [json.loads(line) for line in ranks.in_ranks(__name__, case, seconds)]
    return Result(peaks, [allocated for _, allocated in pairs], [counted for counted, _ in pairs])


def run_for_real(case: Case, rank: int, store: str) -> tuple[int, int]:
    """Peak bytes of this rank in an evaluation, counted by ``heap.c``, and by torch's hook in the one before.

    Its peers, if it has any, must run at the same time.
    """
    torch.set_num_threads(1)
    device, plan, workload = torch.device("cpu"), case.plan, case.workload()

    def peaks(mesh: DeviceMesh | None) -> tuple[int, int]:
        model = build_model(workload, plan, 0, device, mesh)
        optimizer = spread_optimizer(workload.optimizer(model), plan.layout, mesh)
        for _ in range(NUM_STEPS):
            parts = rank_slices(torch.arange(plan.batch) % workload.num_train, plan, rank)
            batches = (rank_part(model, workload.train_batch(part), plan, rank) for part in parts)
            train_step(workload, model, optimizer, batches, plan.num_micro_batches)

        def run() -> None:
            num = 3 * plan.evaluation_micro_batch * plan.num_shares
            slices = evaluation_slices(num, plan, rank)
            batches = ((rank_part(model, workload.eval_batch(part), plan, rank), part < num) for part in slices)
            evaluate(workload, model, batches)

        allocated = measure_peak(device, model, optimizer, run)
        gc.collect()
        heap.forget_peak()
        run()
        return heap.peak(), allocated

    rendezvous = FileStore(store, plan.world_size) if plan.world_size > 1 else None
    with process_group(plan, rank, rendezvous, device) as mesh:
        warm_up(device, mesh)
        counted, allocated = peaks(mesh)
        gc.collect()
        return counted - heap.held(), allocated


if __name__ == "__main__":
    print(json.dumps(run_for_real(Case.from_json(sys.argv[1]), int(sys.argv[3]), sys.argv[2])))
