"""Measures the time to start a trial, from the decision to the first report of its ranks, cold and warm.

Runs a study of one-step trials. *Cold* attempts wait for rank processes that import torch; *warm* attempts find idle
ones. ``turnaround`` is the wall time of the warm part per trial: the time that a device slot loses between two trials.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median, quantiles

from scamp_service.processes.controller_process import run_study
from scamp_service.settings import Settings
from scamp_service.study.parse import parse_study


def main() -> None:
    """Run the study, and print a table and a line of JSON; all times are in seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    options = parser.parse_args()
    trials = 20 if options.quick else 60
    spec = parse_study({
        "name": "launch overhead",
        "workload": "vit_digits",
        "objective": {"metric": "accuracy"},
        "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
        "fixed": {"depth": 1, "width": 16, "patch": 4},
        "search": {"sampler": "random"},
        "stopping": {"rule": "none"},
        "budget": {"trials": trials, "steps": 1},
    })  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
        settings = Settings(data_dir=Path(directory), max_gangs_per_device=1)
        store, study_id = run_study(settings, spec, None, lambda store, study_id: None)
        attempts = sorted(store.study_attempts(study_id), key=lambda attempt: attempt.created_at)
        store.close()
    num_devices = settings.virtual_devices
    latencies = [attempt.started_at - attempt.created_at for attempt in attempts if attempt.started_at]
    cold, warm = latencies[:num_devices], latencies[num_devices:]
    first_warm = attempts[num_devices].created_at
    turnaround = (max(attempt.ended_at or 0.0 for attempt in attempts) - first_warm) / len(warm)
    figures = {
        "trials": len(latencies),
        "cold_start_seconds_median": median(cold),
        "warm_start_seconds_median": median(warm),
        "warm_start_seconds_p95": quantiles(warm, n=20)[-1],
        "turnaround_seconds_per_trial": turnaround,
    }
    for name, value in figures.items():
        print(f"{name:32}{value:>10.3f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
