"""Trains one rank of a feature's workload, and resumes it under another plan, as ranks do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from benchmarks.features.feature import Feature
from estimators.model import Candidate, Plan
from estimators.trace import Trace
from estimators.tracing.tracer import trace
from scamp.workload.seeds import seed_everything
from workloads.loading import load_workload
from workloads.refusals import explain
from workloads.sandbox.recipe import recipe_of
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.runtime import lost_its_peers, train

HALF, WHOLE = 3, 6
"""Steps after which training is resumed from a checkpoint, and those of all training."""
TRIAL = 1
CHECKPOINTS = "checkpoints"


class Reports:
    """Keeps the values of every report, and the steps of checkpoints."""

    def __init__(self) -> None:
        self.values: list[Mapping[str, float]] = []
        self.checkpoints: list[CheckpointName] = []
        self.peak_bytes = 0
        self.shares: list[float] = []
        self.check_share = 0.0
        self.step_seconds = 0.0

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.values.append(values)

    def measured(self, peak_bytes: int) -> None:
        self.peak_bytes = peak_bytes

    def communicated(self, share: float) -> None:
        self.shares.append(share)

    def timed(self, step_seconds: float, num_steps: int, check_share: float) -> None:
        self.step_seconds, self.check_share = step_seconds, check_share

    def learned_noise(self, noise_scale: float) -> None: ...

    def progressed(self, step: int) -> None: ...

    def checkpoint(self, step: int) -> None:
        self.checkpoints.append(CheckpointName(TRIAL, step))

    def needed_checkpoints(self) -> list[CheckpointName]:
        return self.checkpoints[-1:]

    def should_stop(self) -> bool:
        return False


def reports_of(
    feature: Feature,
    plan: Plan,
    rank: int,
    folder: Path,
    steps: int,
    every: int,
    begin: int = 0,
    end: int | None = None,
) -> Reports:
    """Reports of one rank every few steps, from step ``begin``, which is 0 or that of a checkpoint, to ``end``.

    Raises the error with which the training ends.
    """
    torch.set_num_threads(1)
    reports = Reports()
    job = TrainingJob(
        candidate=Candidate(feature.workload, None, dict(feature.params)),
        code_dir=feature.folder,
        plan=plan,
        seed=1,
        steps=steps,
        until=end,
        report_every=every,
        budget_bytes=None,
        checkpoint_root=folder / CHECKPOINTS,
        trial_id=TRIAL,
        resume=CheckpointName(TRIAL, begin) if begin else None,
        metrics=["train_loss"],
    )
    store = FileStore(str(folder / f"store-{begin}"), plan.world_size) if plan.world_size > 1 else None
    train(job, rank, plan.world_size, store, reports)
    return reports


def predicted_peak(feature: Feature, plan: Plan) -> dict[str, Any]:
    """{"peak_bytes": bytes of tensors at the traced peak of the rank of ``plan`` that needs most}.

    {"error": …} if it cannot be traced.
    """
    try:
        workload = load_workload(feature.workload, feature.folder)(dict(feature.params))
        shares = [plan.of_share(share) for share in range(plan.num_shares)] if plan.divided and plan.shares else [plan]
        ranks = [(layout, share.micro_batch) for share in shares for layout in share.layouts]
        traces = {rank: trace(recipe_of(workload), rank[0], plan.batch) for rank in dict.fromkeys(ranks)}
        return {"peak_bytes": max(_tensor_bytes(traced, samples) for (_, samples), traced in traces.items())}
    except BaseException as error:
        return {"error": explain(error, feature.folder)}


def _tensor_bytes(trace: Trace, micro_batch: int) -> int:
    parts = trace.curve.parts(micro_batch)
    return trace.curve.peak_bytes(micro_batch) - parts.get("slack", 0) - parts.get("objects", 0)


def train_rank(feature: Feature, plan: Plan, rank: int, folder: Path, begin: int, end: int) -> dict[str, Any]:
    """The values of each step's report of one rank, from step ``begin`` to ``end``, and its peak.

    ``begin`` is 0 or that of a checkpoint in ``folder``. {"lost": …} or {"error": …} if it fails.
    """
    seed_everything(os.getpid())  # as processes do that have had unlike jobs before
    try:
        reports = reports_of(feature, plan, rank, folder, WHOLE, feature.report_every, begin, end)
    except BaseException as error:
        if lost_its_peers(error):
            return {"lost": str(error)}
        return {"error": explain(error, feature.folder, in_training=True)}
    return {"values": reports.values, "peak_bytes": reports.peak_bytes}
