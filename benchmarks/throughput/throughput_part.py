"""Measures processor time of steps that ScaMP trains, and of loops that are written by hand, alternately."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore

from benchmarks.curves.forks import in_forks
from benchmarks.features.running import Reports
from benchmarks.throughput.by_hand import train_by_hand
from estimators.model import Candidate, Plan
from workloads.loading import load_workload
from workloads.training.attempt.job import TrainingJob
from workloads.training.attempt.loop import MEASURED_STEP
from workloads.training.runtime import train

WORKLOADS = Path(__file__).parent / "workloads"
STEPS = 16
REPEATS = 3
TITLE = "Speed against loops written by hand"
ABOUT = """\
The same model, samples and plan is trained by ScaMP and by a loop that is written by hand, with a `DataLoader`, a
schedule, and torch's DDP or `fully_shard`. Both run in forks of one process, alternately. *By hand* and *ScaMP* are
milliseconds of processor time of a step, summed over ranks: the median of the steps of a run, and of the runs. *Ratio*
is the throughput of ScaMP divided by that of the loop: the median over pairs of runs."""
HEADER = ("by hand", "ScaMP", "ratio", "least", "most", "case")

PLANS = {
    "1 rank": Plan(16),
    "2 micro-batches": Plan(8, 2),
    "2 replicas": Plan(8, dp_replicate=2),
    "FSDP over 2 ranks": Plan(8, dp_shard=2),
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    ", clipped": {"clip_norm": 1.0},
    ", bf16": {"precision": "bf16"},
    ", 2 workers": {"workers": 2},
}


@dataclass(frozen=True)
class Case:
    """A workload, options of its training, and a plan."""

    workload: str
    plan: str
    variant: str
    repeats: int = REPEATS

    def __str__(self) -> str:
        return f"{self.workload}, {self.plan}{self.variant}"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    if quick:
        return [Case("Words", plan, "", 1) for plan in ("1 rank", "2 replicas")]
    every = [Case(name, plan, variant) for name in ("Words", "Pictures") for plan in PLANS for variant in VARIANTS]
    return [case for case in every if case.workload == "Words" or not case.variant]


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of processor time of a step, and the ratio of throughputs of each pair of runs."""

    hand_seconds: float
    scamp_seconds: float
    ratios: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Throughput of ScaMP divided by that of the loop."""
        return median(self.ratios)

    def row(self) -> list[str]:
        times = [f"{1000 * self.hand_seconds:.1f}", f"{1000 * self.scamp_seconds:.1f}"]
        return [*times, f"{self.ratio:.3f}", f"{min(self.ratios):.3f}", f"{max(self.ratios):.3f}"]


def measure(case: Case, seconds: float) -> Result:
    """Train by hand and by ScaMP in turn. Raises ``RuntimeError`` if a rank fails; ``seconds`` limits each run."""
    _warm_up()
    by_hand: list[float] = []
    by_scamp: list[float] = []
    for number in range(case.repeats):
        runs = [(_by_hand, by_hand), (_by_scamp, by_scamp)]
        for run, step_seconds in runs if number % 2 == 0 else reversed(runs):
            step_seconds.append(_step_seconds(case, run, seconds))
    ratios = [hand / scamp for hand, scamp in zip(by_hand, by_scamp, strict=True)]
    return Result(median(by_hand), median(by_scamp), ratios)


def figures(results: Sequence[Result]) -> dict[str, float]:
    ratios = [result.ratio for result in results]
    return {
        "throughput_cases": len(ratios),
        "throughput_ratio_min": min(ratios),
        "throughput_ratio_median": median(ratios),
    }


def _step_seconds(case: Case, run: Any, seconds: float) -> float:
    plan = PLANS[case.plan]
    with tempfile.TemporaryDirectory(prefix="scamp-throughput-") as folder:
        ranks = [partial(run, case, plan, rank, Path(folder)) for rank in range(plan.world_size)]
        answers = in_forks(ranks, seconds)
    for answer in answers:
        if not isinstance(answer, dict) or "ends" not in answer:
            raise RuntimeError(f"{case}: {answers}")
    return sum(_per_step(answer["ends"]) for answer in answers)


def _per_step(ends: Sequence[float]) -> float:
    """The median difference; the first steps warm up, and ScaMP measures the peak of one of them."""
    chosen = ends[MEASURED_STEP + 1 :]
    return median(after - before for before, after in pairwise(chosen))


def _by_hand(case: Case, plan: Plan, rank: int, folder: Path) -> dict[str, Any]:
    if plan.world_size > 1:
        dist.init_process_group(
            "gloo", store=FileStore(str(folder / "store"), plan.world_size), rank=rank, world_size=plan.world_size
        )
    workload = load_workload(f"words.py:{case.workload}", WORKLOADS)(VARIANTS[case.variant])
    return {"ends": train_by_hand(workload, plan, rank, STEPS)}


class _Times(Reports):
    """Notes the processor time of this process when a step ends."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def should_stop(self) -> bool:
        self.ends.append(time.process_time())
        return False


def _by_scamp(case: Case, plan: Plan, rank: int, folder: Path) -> dict[str, Any]:
    reports = _Times()
    job = TrainingJob(
        candidate=Candidate(f"words.py:{case.workload}", None, dict(VARIANTS[case.variant])),
        code_dir=WORKLOADS,
        plan=plan,
        seed=1,
        steps=STEPS,
        report_every=STEPS,
        budget_bytes=None,
        checkpoint_root=folder / "checkpoints",
        trial_id=1,
        resume=None,
        metrics=["loss"],
    )
    store = FileStore(str(folder / "store"), plan.world_size) if plan.world_size > 1 else None
    train(job, rank, plan.world_size, store, reports)
    return {"ends": reports.ends}


@cache
def _warm_up() -> None:
    """Prepare this process as ranks are prepared, so that forks of both kinds have the same settings."""
    from workloads.training.warm_up import prepare_process

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    prepare_process()
