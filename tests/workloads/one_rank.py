"""A warm rank for tests: one JSON job a line on stdin, one JSON result a line on stdout. Not a test module."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch.distributed import FileStore

from estimators.model import Candidate, Plan
from workloads.models.vit_digits import VitDigits
from workloads.training.attempt.job import TrainingJob
from workloads.training.checkpoints.name import CheckpointName, Donor
from workloads.training.runtime import train

TRIAL = 1
NUM_EVAL = 50  # which no number of ranks divides; to evaluate on all 360 would take longer than the training


class Collected:
    def __init__(self, stop_after: int | None, *, keeps: bool = False) -> None:
        self.stop_after, self.asked, self.keeps = stop_after, 0, keeps
        self.reports: list[tuple[int, Mapping[str, float]]] = []
        self.checkpoints: list[CheckpointName] = []
        self.peak = 0
        self.times: list[tuple[float, int]] = []
        self.shares: list[float] = []
        self.check_shares: list[float] = []
        self.noise_scales: list[float] = []

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.reports.append((step, values))

    def measured(self, peak_bytes: int) -> None:
        self.peak = max(self.peak, peak_bytes)

    def progressed(self, step: int) -> None:
        pass

    def communicated(self, share: float) -> None:
        self.shares.append(share)

    def learned_noise(self, noise_scale: float) -> None:
        self.noise_scales.append(noise_scale)

    def timed(self, step_seconds: float, num_steps: int, check_share: float) -> None:
        self.times.append((step_seconds, num_steps))
        self.check_shares.append(check_share)

    def checkpoint(self, step: int) -> None:
        self.checkpoints.append(CheckpointName(TRIAL, step))

    def needed_checkpoints(self) -> list[CheckpointName]:
        return self.checkpoints[-1:]

    def should_stop(self) -> bool | Literal["keep"]:
        self.asked += 1
        stops = self.stop_after is not None and self.asked >= self.stop_after
        return "keep" if stops and self.keeps else stops


def run(order: dict[str, Any]) -> dict[str, Any]:
    rank, plan = order["rank"], Plan.from_json(order["plan"])
    job = TrainingJob(
        candidate=Candidate(order["workload"], None, order["params"]),
        code_dir=Path(order["code_dir"]) if order["code_dir"] else None,
        plan=plan,
        seed=order["seed"],
        steps=order["steps"],
        report_every=order["report_every"],
        budget_bytes=order["budget_bytes"],
        checkpoint_root=Path(order["checkpoint_root"]),
        trial_id=TRIAL,
        resume=CheckpointName(TRIAL, order["resume_step"]) if order["resume_step"] else None,
        metrics=[order["metric"]],
        guard=order["guard"],
        attempt=order["attempt"],
        is_mirrored=order["is_mirrored"],
        donor=Donor(CheckpointName(TRIAL, order["donor_step"]), order["donor_params"]) if order["donor_step"] else None,
    )
    store = FileStore(order["store"], plan.world_size) if plan.world_size > 1 else None
    reporter = Collected(order["stop_after"] if rank == order["stopped_rank"] else None, keeps=order["keeps"])
    error: BaseException | None = None
    ended = ""
    try:
        ended = train(job, rank, plan.world_size, store, reporter)
    except Exception as caught:
        error = caught
    return {
        "ended": ended,
        "error": type(error).__name__ if error else "",
        "message": str(error or ""),
        "traceback": "".join(traceback.format_exception(error)) if error else "",
        "measured_bytes": getattr(error, "measured_bytes", 0),
        "reports": reporter.reports,
        "checkpoints": [name.step for name in reporter.checkpoints],
        "peak": reporter.peak,
        "times": reporter.times,
        "shares": reporter.shares,
        "check_shares": reporter.check_shares,
        "asked": reporter.asked,
    }


if __name__ == "__main__":
    VitDigits.num_eval = NUM_EVAL  # type: ignore[assignment, method-assign]
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)
