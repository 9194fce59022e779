"""How fast trials of one step in a user's file follow each other: launches, turnaround of devices, and Ray Tune."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

from benchmarks.living.alone import Training
from benchmarks.living.drawn import NUM_DEVICES
from benchmarks.living.service import Ran, serving
from benchmarks.living.study_part import in_process
from scamp_service.model import Attempt

TITLE = "Trials of one step"
HEADER = ("launch ms", "p95 ms", "turnaround ms", "p95 ms", "trials/s", "growth", "trials", "case")
WORKLOAD = "tiny.py:Tiny"
ABOUT = f"""\
Trials that train a linear regression of a user's file for one step, on {NUM_DEVICES} virtual devices with one gang
each, in a service that has started; the first trials on each device do not count. *Launch*: from the decision of the
controller until all ranks begin to train, the median. *Turnaround*: from the last metric of a trial until the next
one trains on the same device, with its checkpoint, its outcome, the decision and the launch. Ray Tune trains the
same step in function trainables with one CPU each, on as many slots as there are devices."""
BATCH = 8  # of the workload
WARM_UP = 2
"""Trials on each device that do not count."""


@dataclass(frozen=True)
class Case:
    """Trials of several ranks; in Ray Tune of one rank."""

    system: str
    num_ranks: int
    num_trials: int

    def __str__(self) -> str:
        return f"{self.system}, {'1 rank' if self.num_ranks == 1 else f'gangs of {self.num_ranks}'}"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    if quick:
        return [Case("ScaMP", 1, 20)]
    return [Case("ScaMP", 1, 400), Case("ScaMP", NUM_DEVICES, 60), Case("Ray Tune", 1, 60)]


@dataclass(frozen=True, slots=True)
class Result:
    """Milliseconds of each launch and turnaround, and trials per second."""

    system: str
    num_ranks: int
    num_trials: int
    per_second: float
    growth_pct: float = 0.0
    launches: list[float] = field(default_factory=list)
    turnarounds: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        cells = []
        for times in (self.launches, self.turnarounds):
            cells += [f"{median(times):.1f}", f"{quantiles(times, n=20)[-1]:.1f}"] if times else ["–", "–"]
        return [*cells, f"{self.per_second:.2f}", f"{self.growth_pct:.1f} %", f"{self.num_trials}"]


def measure(case: Case, seconds: float) -> Result:
    """Run the trials of one case."""
    if case.system == "Ray Tune":
        answer = json.loads(in_process("with_tune", [_training(n) for n in range(case.num_trials)], seconds))
        return Result(case.system, case.num_ranks, case.num_trials, case.num_trials / answer["seconds"])
    with serving(virtual_devices=NUM_DEVICES, max_gangs_per_device=1) as served:
        ran = served.run(_spec(case.num_trials, case.num_ranks), seconds)
    ran.values()  # all have completed
    return _timed(case, ran)


def _timed(case: Case, ran: Ran) -> Result:
    warm: list[Attempt] = []
    turnarounds: list[float] = []
    for device in sorted({device_name for attempt in ran.attempts for device_name in attempt.devices}):
        mine = sorted(
            (attempt for attempt in ran.attempts if device in attempt.devices),
            key=lambda attempt: attempt.started_at or 0.0,
        )
        warm += [attempt for attempt in mine[WARM_UP:] if attempt.devices[0] == device]
        pairs = list(pairwise(mine))[WARM_UP:]
        turnarounds += [1000 * ((after.started_at or 0.0) - ran.reported[before.trial_id]) for before, after in pairs]
    if any(len(attempt.devices) != case.num_ranks for attempt in warm):
        raise RuntimeError(f"gangs do not have {case.num_ranks} ranks: {[len(attempt.devices) for attempt in warm]}")
    launches = [1000 * ((attempt.started_at or 0.0) - attempt.created_at) for attempt in warm]
    seconds = max(attempt.ended_at or 0.0 for attempt in warm) - min(attempt.created_at for attempt in warm)
    return Result(
        case.system, case.num_ranks, case.num_trials, len(warm) / seconds, 100 * ran.growth, launches, turnarounds
    )


def _spec(num_trials: int, num_ranks: int) -> Mapping[str, Any]:
    gang = {"plan": {"dp_replicate": num_ranks, "micro_batch": BATCH // num_ranks}} if num_ranks > 1 else {}
    return {
        **gang,
        "name": "trials of one step",
        "workload": WORKLOAD,
        "objective": {"metric": "loss", "direction": "minimize"},
        "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
        "search": {"sampler": "random"},
        "stopping": {"rule": "none"},
        "budget": {"trials": num_trials, "steps": 1},
    }


def _training(number: int) -> Training:
    return Training({"lr": 1e-3}, {"micro_batch": BATCH}, number, 1, 1, WORKLOAD)


def figures(results: Sequence[Result]) -> dict[str, float]:
    values, rates = dict[str, float](), dict[str, float]()
    for result in results:
        if result.num_ranks == 1:
            rates[result.system] = result.per_second
        if result.launches:
            values[f"launch_{result.num_ranks}_ms"] = median(result.launches)
        if result.launches and result.num_ranks == 1:
            values["turnaround_ms"] = median(result.turnarounds)
            values["trials_per_second"] = result.per_second
            values["own_code_growth_pct"] = result.growth_pct
    if len(rates) == 2:
        values["trials_per_second_ratio"] = rates["ScaMP"] / rates["Ray Tune"]
    return values
