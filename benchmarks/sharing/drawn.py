"""Trainings of adapters that are drawn at random, in one process together or one after another."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.model import Candidate, Plan
from tests.waiting import PATIENCE_SECONDS
from tests.workloads.one_rank import Collected
from workloads.training.attempt.job import TrainingJob
from workloads.training.packs.pack import Pack
from workloads.training.runtime import train

FOLDER = Path(__file__).parents[2] / "examples" / "lora"
WORKLOAD = "text_lora.py:TextLora"
DIVERGES = {"lr": math.inf}


def drawn(seed: int, num: int, steps: int, precision: str) -> list[dict[str, Any]]:
    """Parameters of unlike adapters; with ``steps`` each has its own number of them."""
    draws = random.Random(seed)
    return [
        {
            "rank": draws.choice([1, 2, 3, 4, 8]),
            "alpha": draws.choice([4, 8, 16]),
            "dropout": draws.choice([0.0, 0.0, 0.1]),
            "targets": draws.choice(["query value", "query value up", "query key value out", "down"]),
            "lr": 10 ** draws.uniform(-3, -1.5),
            "decay": draws.choice([0.0, 0.1]),
            "batch": draws.choice([2, 4, 8]),
            "steps": draws.randint(steps // 2, steps),
            **({"clip_norm": 1.0} if draws.random() < 0.3 else {}),
            **({"precision": precision} if precision != "fp32" else {}),
        }
        for _ in range(num)
    ]


def job_of(number: int, params: Mapping[str, Any], folder: Path, report_every: int = 1) -> TrainingJob:
    """The training of these parameters, alone on one rank."""
    values = {name: value for name, value in params.items() if name != "steps"}
    plan, steps = Plan(params["batch"]), params["steps"]
    candidate = Candidate(WORKLOAD, None, values)
    return TrainingJob(
        candidate, FOLDER, plan, number, steps, min(report_every, steps), None, folder, number, None, ["loss"]
    )


def alone(job: TrainingJob, stop_after: int | None = None) -> Collected:
    """The reports of a training that has its process for itself, to its end, an error or a stop."""
    reporter = Collected(stop_after)
    _run(job, reporter, None)
    return reporter


def together(
    jobs: Sequence[TrainingJob], stops: Mapping[int, int], late: Sequence[TrainingJob] = ()
) -> tuple[list[Collected], Pack]:
    """The reports of trainings that share a process; those of ``late`` follow whoever ends first. ``stops`` has the
    number of reports after which some are stopped, by their place."""
    pack, reporters = Pack(), [Collected(stops.get(place)) for place in range(len(jobs) + len(late))]
    waiting = list(enumerate(late, len(jobs)))
    lock = threading.Lock()

    def work(place: int, job: TrainingJob) -> None:
        _run(job, reporters[place], pack)
        with lock:
            follower = waiting.pop(0) if waiting else None
        if follower is not None:
            work(*follower)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return reporters, pack


def _run(job: TrainingJob, reporter: Collected, pack: Pack | None) -> None:
    try:
        train(job, 0, 1, None, reporter, pack)
    except Exception as error:
        if "the training loss became" not in str(error):
            raise
