"""Compares trials that are paused, promoted under another plan, or copied, with one that trains without a pause."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.curves.forks import in_forks
from benchmarks.features.running import Reports
from estimators.model import Candidate, Plan

FOLDER = Path(__file__).parent / "own_code"
STEPS, EVERY, BATCH = 24, 4, 8
ONE, SHARDED, REPLICAS = Plan(BATCH), Plan(BATCH // 2, dp_shard=2), Plan(BATCH // 2, dp_replicate=2)
ZERO1 = Plan(BATCH // 2, dp_replicate=2, zero1=True)
Stage = tuple[Plan, int, int]
"""A plan, the step at which it ends, and the trial that trains: another one copies the checkpoint before."""
WAYS: Mapping[str, Sequence[Stage]] = {
    "paused twice": [(ONE, 8, 1), (ONE, 16, 1), (ONE, STEPS, 1)],
    "promoted to FSDP": [(ONE, 8, 1), (SHARDED, STEPS, 1)],
    "promoted to replicas, then one rank": [(ONE, 8, 1), (REPLICAS, 16, 1), (ONE, STEPS, 1)],
    "promoted from FSDP to ZeRO-1": [(SHARDED, 12, 1), (ZERO1, STEPS, 1)],
    "copied": [(ONE, 8, 1), (ONE, STEPS, 2)],
    "copied onto FSDP": [(ONE, 8, 1), (SHARDED, STEPS, 2)],
    "copied from FSDP onto one rank, paused": [(SHARDED, 8, 1), (ONE, 16, 2), (ONE, STEPS, 2)],
}


def resuming(ways: Sequence[str] = tuple(WAYS)) -> Mapping[str, Any]:
    """The largest difference of an evaluation from that of the trial without a pause, over these ``WAYS``."""
    plain = _evaluations([(ONE, STEPS, 1)])
    print(f"\n{'trial of a user’s file with a warm-up':42}{'largest difference':>20}")
    worst = 0.0
    for name in ways:
        resumed = _evaluations(WAYS[name])
        assert resumed.keys() == plain.keys(), f"{name}: {resumed}"
        error = max(abs(resumed[step] - plain[step]) for step in plain)
        print(f"{name:42}{error:20.1e}")
        worst = max(worst, error)
    return {"resume_ways": len(ways), "resume_max_error": worst}


def _evaluations(stages: Sequence[Stage]) -> dict[int, float]:
    """Step → evaluation, of all stages after one another."""
    evaluations: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as root:
        before: tuple[int, int] | None = None
        for index, (plan, until, trial) in enumerate(stages):
            store = Path(root) / f"store-{index}"
            calls = [
                partial(_train, plan, rank, Path(root), store, until, trial, before) for rank in range(plan.world_size)
            ]
            answer = in_forks(calls, 120.0)[0]
            assert isinstance(answer, dict), answer
            evaluations |= {int(step): value for step, value in answer.items()}
            before = trial, until
    return evaluations


def _train(
    plan: Plan, rank: int, root: Path, store: Path, until: int, trial: int, before: tuple[int, int] | None
) -> dict[int, float]:
    from torch.distributed import FileStore

    from workloads.training.attempt.job import TrainingJob
    from workloads.training.checkpoints.name import CheckpointName
    from workloads.training.runtime import train

    reports = _Reports()
    job = TrainingJob(
        candidate=Candidate("warm.py:Warm", None, {"lr": 3e-3}), code_dir=FOLDER, plan=plan, seed=1, steps=STEPS,
        report_every=EVERY, budget_bytes=None, checkpoint_root=root / "checkpoints", trial_id=trial,
        resume=CheckpointName(*before) if before else None, metrics=["nll"], until=until,
    )  # fmt: skip
    train(job, rank, plan.world_size, FileStore(str(store), plan.world_size) if plan.world_size > 1 else None, reports)
    return reports.evaluations


class _Reports(Reports):
    """Keeps every evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluations: dict[int, float] = {}

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.evaluations[step] = values["nll"]
