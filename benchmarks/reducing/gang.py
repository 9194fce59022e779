"""Trains a user's workload as a gang of forks, and returns what rank 0 reports."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from benchmarks.curves.forks import in_forks
from benchmarks.features.running import Reports
from estimators.model import Candidate, Plan
from workloads.refusals import explain
from workloads.training.attempt.job import TrainingJob
from workloads.training.attempt.loop import NonFiniteLoss
from workloads.training.runtime import train


def trained(
    file: Path, name: str, params: Mapping[str, Any], plan: Plan, steps: int, every: int, seconds: float
) -> dict[str, Any]:
    """``values`` of all reports and ``shares`` of waiting; ``values`` end early where the loss is not finite.

    Raises ``RuntimeError`` with the words of the ranks that failed.
    """
    with tempfile.TemporaryDirectory(prefix="scamp-gang-") as folder:
        ranks = [
            partial(_train, file, name, params, plan, steps, every, rank, Path(folder))
            for rank in range(plan.world_size)
        ]
        answers = in_forks(ranks, seconds)
    failed = [answer for answer in answers if not isinstance(answer, dict) or "error" in answer]
    if failed:
        raise RuntimeError(f"{plan}: {failed}")
    first: dict[str, Any] = answers[0]
    return first


def _train(
    file: Path, name: str, params: Mapping[str, Any], plan: Plan, steps: int, every: int, rank: int, folder: Path
) -> dict[str, Any]:
    torch.set_num_threads(1)
    reports = Reports()
    job = TrainingJob(
        candidate=Candidate(f"{file.name}:{name}", None, dict(params)),
        code_dir=file.parent,
        plan=plan,
        seed=1,
        steps=steps,
        report_every=every,
        budget_bytes=None,
        checkpoint_root=folder / "checkpoints",
        trial_id=1,
        resume=None,
        metrics=[],
    )
    try:
        store = FileStore(str(folder / "store"), plan.world_size) if plan.world_size > 1 else None
        train(job, rank, plan.world_size, store, reports)
    except NonFiniteLoss:
        pass  # all ranks see the same loss
    except BaseException as error:
        return {"error": explain(error, file.parent, in_training=True)}
    return {"values": reports.values, "shares": reports.shares}
