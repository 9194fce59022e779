"""Traces and trains one idiom under one plan in this process, as trace processes and ranks do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from benchmarks.features.running import TRIAL, Reports
from estimators.model import Candidate, Layout, Plan
from estimators.tracing.tracer import trace
from scamp.workload.hints import Contradiction
from workloads.loading import load_estimable
from workloads.refusals import WorkloadError, explain
from workloads.sandbox.recipe import recipe_of
from workloads.training import runtime
from workloads.training.attempt.job import TrainingJob
from workloads.training.attempt.loop import NonFiniteLoss
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.guard.division import DependsOnDivision
from workloads.training.guard.resuming import ResumesDifferently

BATCH = 8
HALF, WHOLE = 3, 5
"""Steps after which training is resumed from a checkpoint, and those of all training."""


@dataclass(frozen=True, slots=True)
class Idiom:
    """A workload in a file of a user, by its name there."""

    folder: Path
    workload: str

    def __str__(self) -> str:
        return self.workload


class _Killed(BaseException):
    """The process ends here, as if it were killed."""


class _Reports(Reports):
    """Also keeps the step of each report; kills the process in step ``dies_in``."""

    def __init__(self, dies_in: int | None = None) -> None:
        super().__init__()
        self.values_by_step: list[tuple[int, Mapping[str, float]]] = []
        self._steps_left = dies_in

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.values_by_step.append((step, values))

    def should_stop(self) -> bool:
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left == 0:
                raise _Killed
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
    found that it depends on the division of a batch, which it looks for with ``guard``, {"anew": why} if it resumes
    differently; {"error": …} for every other error.
    """
    first = train(idiom, plan, rank, folder, Attempt(WHOLE, until=HALF, guard=guard))
    if "values" not in first:
        return first
    second = train(idiom, plan, rank, folder, Attempt(WHOLE, resume=HALF, guard=guard))
    if "values" not in second:
        return second
    return {"values": [values for _, values in first["values"] + second["values"]]}


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a training of so many ``steps``, which resumes from step ``resume`` if that is not 0.

    It ends after step ``until``, or in step ``dies_in``, counted from its first one, like a process that is killed.
    """

    steps: int
    resume: int = 0
    until: int | None = None
    dies_in: int | None = None
    report_every: int = 1
    guard: bool = True


def train(idiom: Idiom, plan: Plan, rank: int, folder: Path, attempt: Attempt) -> dict[str, Any]:
    """The values of each report, with its step, and the steps of checkpoints; otherwise as ``train_rank``."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    reports = _Reports(attempt.dies_in)
    job = TrainingJob(
        candidate=Candidate(idiom.workload, None, {}),
        code_dir=idiom.folder,
        plan=plan,
        seed=1,
        steps=attempt.steps,
        until=attempt.until,
        report_every=attempt.report_every,
        budget_bytes=None,
        checkpoint_root=folder / "checkpoints",
        trial_id=TRIAL,
        resume=CheckpointName(TRIAL, attempt.resume) if attempt.resume else None,
        metrics=["loss"],
        guard=attempt.guard,
    )
    file = folder / f"store-{attempt.resume}-{attempt.until}-{attempt.dies_in}"
    store = FileStore(str(file), plan.world_size) if plan.world_size > 1 else None
    try:
        runtime.train(job, rank, plan.world_size, store, reports)
    except _Killed:
        pass
    except BaseException as error:
        if isinstance(error, WorkloadError | Contradiction | NonFiniteLoss):
            return {"refused": str(error)}
        if isinstance(error, DependsOnDivision):
            return {"alarm": str(error)}
        if isinstance(error, ResumesDifferently):
            return {"anew": str(error)}
        if runtime.lost_its_peers(error):
            return {"lost": str(error)}
        return {"error": f"{type(error).__name__}: {explain(error, idiom.folder, in_training=True)}"}
    return {"values": reports.values_by_step, "checkpoints": [name.step for name in reports.checkpoints]}
