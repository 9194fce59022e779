"""Traces and trains one idiom under one plan in this process, as trace processes and ranks do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from estimators.model import Candidate, Layout, Plan
from estimators.tracing.tracer import trace
from workloads.hints import Contradiction
from workloads.loading import load_estimable
from workloads.refusals import WorkloadError, explain
from workloads.sandbox.recipe import recipe_of
from workloads.training.attempt.job import TrainingJob
from workloads.training.attempt.loop import NonFiniteLoss
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.guard.division import DependsOnDivision
from workloads.training.runtime import lost_its_peers, train

BATCH = 8
HALF, WHOLE = 3, 5
"""Steps after which training is resumed from a checkpoint, and those of all training."""
TRIAL = 1


@dataclass(frozen=True, slots=True)
class Idiom:
    """A workload in a file of a user, by its name there."""

    folder: Path
    workload: str

    def __str__(self) -> str:
        return self.workload


class _Reports:
    """Keeps the values of every report, and the steps of checkpoints."""

    def __init__(self) -> None:
        self.values: list[Mapping[str, float]] = []
        self.checkpoints: list[CheckpointName] = []

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.values.append(values)

    def measured(self, peak_bytes: int) -> None: ...

    def communicated(self, share: float) -> None: ...

    def timed(self, step_seconds: float, num_steps: int, check_share: float) -> None: ...

    def learned_noise(self, noise_scale: float) -> None: ...

    def progressed(self, step: int) -> None: ...

    def checkpoint(self, step: int) -> None:
        self.checkpoints.append(CheckpointName(TRIAL, step))

    def needed_checkpoints(self) -> list[CheckpointName]:
        return self.checkpoints[-1:]

    def should_stop(self) -> bool:
        return False


def trace_layout(idiom: Idiom, layout: Layout) -> dict[str, Any]:
    """{"divisions": …} of a trace; {"refused": why} if the layout cannot be traced."""
    try:
        workload = load_estimable(idiom.workload, idiom.folder)({})
        return {"divisions": asdict(trace(recipe_of(workload), layout, BATCH).divisions)}
    except BaseException as error:
        return {"refused": explain(error, idiom.folder)}


def train_rank(idiom: Idiom, plan: Plan, rank: int, folder: Path, guard: bool = True) -> dict[str, Any]:
    """The values of each step's report, with those after a resume, of one rank of a gang.

    {"refused": why} if the runtime says in words what is wrong with the workload, {"alarm": why} if the training has
    found that it depends on the division of a batch, which it looks for with ``guard``; {"error": …} for every other
    error.
    """
    return train_until(idiom, plan, rank, folder, (HALF, WHOLE), guard)


def train_until(
    idiom: Idiom, plan: Plan, rank: int, folder: Path, ends: Sequence[int], guard: bool = True
) -> dict[str, Any]:
    """Train as ``train_rank`` does, in attempts that end after each of these numbers of steps."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    reports = _Reports()
    try:
        for begin, end in pairwise((0, *ends)):
            job = TrainingJob(
                candidate=Candidate(idiom.workload, None, {}),
                code_dir=idiom.folder,
                plan=plan,
                seed=1,
                steps=ends[-1],
                until=end,
                report_every=1,
                budget_bytes=None,
                checkpoint_root=folder / "checkpoints",
                trial_id=TRIAL,
                resume=CheckpointName(TRIAL, begin) if begin else None,
                metrics=["loss"],
                guard=guard,
            )
            store = FileStore(str(folder / f"store-{begin}"), plan.world_size) if plan.world_size > 1 else None
            train(job, rank, plan.world_size, store, reports)
    except BaseException as error:
        if isinstance(error, WorkloadError | Contradiction | NonFiniteLoss):
            return {"refused": str(error)}
        if isinstance(error, DependsOnDivision):
            return {"alarm": str(error)}
        if lost_its_peers(error):
            return {"lost": str(error)}
        return {"error": f"{type(error).__name__}: {explain(error, idiom.folder, in_training=True)}"}
    return {"values": reports.values}
