"""Compares the wall time of a study under ScaMP with a static baseline, in which each trial in turn gets all devices.

Both run the demo study's space with the same candidates (random search, same seed) and the same stopping rule, one
after the other on the same machine. A launch script with a fixed degree does the same as the baseline.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from estimators.memory import predict
from estimators.model import Plan
from placement.option import NoPlan
from placement.planning.answers import Answer, ChosenPlan, Untraced
from placement.planning.planner import choose
from placement.planning.question import Question
from scamp_service.processes.controller_process import run_study
from scamp_service.settings import Settings
from scamp_service.sizing.sizer import Planner
from scamp_service.store.summary import Summary, study_summary
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

DEMO = Path(__file__).resolve().parent.parent / "examples" / "digits.yaml"


def main() -> None:
    """Run both studies, and print a table and one line of JSON; all times are in seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer trials and steps")
    options = parser.parse_args()
    trials, steps = (6, 20) if options.quick else (12, 40)
    spec = study(trials, steps)
    packed = run(spec, choose)
    static = run(spec.model_copy(update={"budget": spec.budget.model_copy(update={"max_concurrent": 1})}), all_devices)
    print(f"{'':10}{'wall s':>8}{'device s':>10}{'best':>8}  trials")
    for name, result in (("ScaMP", packed), ("static", static)):
        best = f"{result.best.value:.4f}" if result.best else "–"
        print(f"{name:10}{result.wall_seconds:>8.1f}{result.device_seconds:>10.1f}{best:>8}  {dict(result.trials)}")
    figures = {
        "scamp_seconds": packed.wall_seconds,
        "static_seconds": static.wall_seconds,
        "ratio": packed.wall_seconds / static.wall_seconds,
        "scamp_device_seconds": packed.device_seconds,
        "static_device_seconds": static.device_seconds,
        "trials": trials,
        "steps": steps,
    }
    print(json.dumps(figures))


def study(trials: int, steps: int) -> StudySpec:
    """The demo study with random search, and with this many trials and steps."""
    demo = parse_study(DEMO.read_text()).to_json()
    demo["search"]["sampler"] = "random"
    demo["start_with"] = demo["start_with"][: trials // 2]
    demo["stopping"]["min_steps"] = None
    demo["budget"] |= {"trials": trials, "steps": steps, "report_every": max(1, steps // 3)}
    return StudySpec.model_validate(demo)


def run(spec: StudySpec, planner: Planner) -> Summary:
    """The summary of ``spec``, run with ``planner`` in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
        settings = Settings(data_dir=Path(directory))
        store, study_id = run_study(settings, spec, None, lambda store, study_id: None, planner=planner)
        summary = study_summary(store, study_id, now=time.time())
        store.close()
    return summary


def all_devices(question: Question) -> Answer:
    """The static planner: all devices for every trial, no recompute if that fits, and the largest micro-batch.

    Speeds and shares of devices do not count.
    """
    profile, capacities_mib = question.profile, [device.capacity_mib for device in question.cluster.devices]
    degree = len(capacities_mib)
    per_rank = question.batch // degree
    for recompute in (False, True):
        for micro_batch in (size for size in range(per_rank, 0, -1) if per_rank % size == 0):
            plan = Plan(micro_batch, per_rank // micro_batch, dp_shard=degree, recompute=recompute)
            if plan.layout not in profile.curves:
                return Untraced(plan.layout)
            cost = predict(profile, plan, question.extra.bytes_for(plan.layout))
            if cost.reserved_mib <= min(capacities_mib):
                return ChosenPlan(plan, cost, f"static: all {degree} devices for every trial")
    return NoPlan(f"needs {cost.reserved_mib} MiB on each of {degree} devices")


if __name__ == "__main__":
    main()
