"""Trains gangs of a study one after another, without a service, and measures the time that each takes.

``python -m benchmarks.living.alone FILE SECONDS`` reads a list of ``Training`` as JSON, and prints a list of ``Cost``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from benchmarks.curves.forks import in_forks
from benchmarks.features.running import Reports
from benchmarks.living.drawn import WORKLOAD
from estimators.model import Candidate, Plan
from workloads.training.attempt.job import TrainingJob
from workloads.training.runtime import train

FOLDER = Path(__file__).parent / "workloads"
TRIAL = 1


@dataclass(frozen=True, slots=True)
class Training:
    """A candidate, how it is trained, and the fields of the plan."""

    params: Mapping[str, Any]
    plan: Mapping[str, Any]
    seed: int
    steps: int
    report_every: int
    workload: str = WORKLOAD

    def planned(self) -> Plan:
        """The plan itself."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.plan.items()
        }
        return Plan(**fields)

    def job(self, folder: Path) -> TrainingJob:
        """The orders for its ranks; checkpoints go to ``folder``."""
        return TrainingJob(
            candidate=Candidate(self.workload, None, dict(self.params)),
            code_dir=FOLDER,
            plan=self.planned(),
            seed=self.seed,
            steps=self.steps,
            report_every=self.report_every,
            budget_bytes=None,
            checkpoint_root=folder,
            trial_id=TRIAL,
            resume=None,
            metrics=["loss"],
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds of each rank, without what it takes to start a process, seconds by the clock of the slowest
    one, and the last held-out loss."""

    rank_seconds: list[float]
    clock_seconds: float
    loss: float


def main() -> None:
    """Train each rank in a fork of this process, which has imported torch."""
    trainings = [Training(**load) for load in json.loads(Path(sys.argv[1]).read_text())]
    print(json.dumps([asdict(cost(training, float(sys.argv[2]))) for training in trainings]))


def cost(training: Training, seconds: float) -> Cost:
    """The cost of one training. Raises ``RuntimeError`` if it takes more than ``seconds``, or fails."""
    with tempfile.TemporaryDirectory(prefix="scamp-alone-") as folder:
        ranks = [partial(train_rank, training, rank, Path(folder)) for rank in range(training.planned().world_size)]
        answers = in_forks(ranks, seconds)
    if any(not isinstance(answer, dict) for answer in answers):
        raise RuntimeError(f"the ranks of {training} ended so: {answers}")
    clock = max(answer["clock_seconds"] for answer in answers)
    return Cost([answer["seconds"] for answer in answers], clock, answers[0]["loss"])


def train_rank(training: Training, rank: int, folder: Path) -> dict[str, float]:
    """Processor seconds of one rank, those by the clock, and the last loss that it reported."""
    torch.set_num_threads(1)
    reports, job = Reports(), training.job(folder)
    world_size = job.plan.world_size
    store = FileStore(str(folder / "store"), world_size) if world_size > 1 else None
    began, began_by_clock = time.process_time(), time.monotonic()
    train(job, rank, world_size, store, reports)
    return {
        "seconds": time.process_time() - began,
        "clock_seconds": time.monotonic() - began_by_clock,
        "loss": reports.values[-1]["loss"] if reports.values else 0.0,
    }


if __name__ == "__main__":
    main()
