"""Measures how fast one-step trials follow each other: with a built-in model, with own code, and in Ray Tune.

The own code is the built-in model's file, sent along as a user sends his, so all three train the same step. Each trial
starts in a rank process that is warm by then; the first ones, which are not, count as *cold*. For own code the memory
of the controller and of every rank is sampled too: ``own_code_growth_pct`` is the most that one of them has grown
since it was warm.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from scamp_service.model import Attempt
from scamp_service.processes.controller_process import run_study
from scamp_service.settings import ROOT, Settings
from scamp_service.store.store import Store
from scamp_service.study.parse import parse_study
from workloads.models import vit_digits

PARAMS = {"depth": 1, "width": 16, "patch": 4}
LOWEST_LR, HIGHEST_LR = 1e-4, 1e-2
WARM_SECONDS = 10.0
"""Age from which on a process counts as warm: its libraries are imported by then."""
WARM_SHARE = 0.1
"""Share of the trials after which the controller counts as warm."""


def main() -> None:
    """Run all three, and print a table and a line of JSON; times are in seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    parser.add_argument("--tune", type=int, metavar="TRIALS", help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.tune:
        print(json.dumps(tune_seconds(options.tune)))
        return
    built_in, own, tune = (40, 60, 8) if options.quick else (200, 1000, 40)
    figures = measured(built_in, own, tune)
    for name, value in figures.items():
        print(f"{name:36}{value:>10.3f}")
    print(json.dumps(figures))


def measured(built_in: int, own: int, tune: int) -> dict[str, float]:
    """All figures, from so many trials of each kind."""
    ours = warm_figures(run("vit_digits", None, built_in, lambda done: None))
    memory = Memory(own)
    theirs = warm_figures(run("vit_digits.py:VitDigits", own_code(), own, memory.sample))
    return {
        "trials": float(built_in),
        "cold_start_seconds_median": ours["cold"],
        "warm_start_seconds_median": ours["warm"],
        "warm_start_seconds_p95": ours["warm_p95"],
        "turnaround_seconds_per_trial": 1 / ours["per_second"],
        "built_in_trials_per_second": ours["per_second"],
        "own_code_trials": float(own),
        "own_code_warm_start_seconds_median": theirs["warm"],
        "own_code_trials_per_second": theirs["per_second"],
        "own_code_growth_pct": memory.growth_pct(),
        "own_code_controller_growth_kib_per_trial": memory.controller_bytes_per_trial() / 2**10,
        "tune_trials_per_second": tune_in_its_own_process(tune),
    }


def own_code() -> bytes:
    """The zip of the built-in model's file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(Path(vit_digits.__file__), "vit_digits.py")
    return packed.getvalue()


def run(workload: str, code: bytes | None, trials: int, watch: Callable[[int], None]) -> list[Attempt]:
    """Attempts of a study of one-step trials, in the order of their creation. ``watch`` gets the number that ended."""
    spec = parse_study({
        "name": "launch overhead",
        "workload": workload,
        "objective": {"metric": "accuracy"},
        "space": {"lr": {"low": LOWEST_LR, "high": HIGHEST_LR, "log": True}},
        "fixed": PARAMS,
        "search": {"sampler": "random"},
        "stopping": {"rule": "none"},
        "budget": {"trials": trials, "steps": 1},
    })  # fmt: skip

    def look(store: Store, study_id: int) -> None:
        counts = store.trial_counts(study_id)
        watch(counts.get("COMPLETED", 0))

    with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
        settings = Settings(data_dir=Path(directory), max_gangs_per_device=1)
        store, study_id = run_study(settings, spec, code, look)
        attempts = sorted(store.study_attempts(study_id), key=lambda attempt: attempt.created_at)
        store.close()
    return attempts


def warm_figures(attempts: list[Attempt]) -> Mapping[str, float]:
    """Seconds from the decision to the start of a rank, cold and warm, and warm trials per second."""
    num_devices = len({device for attempt in attempts for device in attempt.devices})
    latencies = [attempt.started_at - attempt.created_at for attempt in attempts if attempt.started_at]
    warm = latencies[num_devices:]
    seconds = max(attempt.ended_at or 0.0 for attempt in attempts) - attempts[num_devices].created_at
    return {
        "cold": median(latencies[:num_devices]),
        "warm": median(warm),
        "warm_p95": quantiles(warm, n=20)[-1],
        "per_second": len(warm) / seconds,
    }


class Memory:
    """Resident memory of this process, which runs the controller, and of the ranks below it, since they were warm."""

    def __init__(self, trials: int) -> None:
        """``trials`` will run in all."""
        self._warm_after = int(trials * WARM_SHARE)
        self._born: dict[int, float] = {}  # process id → when it was first seen as a rank
        self._first: dict[int, tuple[int, int]] = {}  # process id → (bytes, trials that had ended)
        self._last: dict[int, tuple[int, int]] = {}

    def sample(self, num_ended: int) -> None:
        """Measure each process that is warm after so many trials."""
        now = time.monotonic()
        ranks = [pid for pid in _descendants(os.getpid()) if _read(pid, "cmdline").startswith("ray::Rank")]
        for pid in ranks:
            self._born.setdefault(pid, now)
        if num_ended < self._warm_after:
            return
        for pid in [os.getpid(), *(pid for pid in ranks if now - self._born[pid] > WARM_SECONDS)]:
            if resident_bytes := _resident_bytes(pid):
                self._first.setdefault(pid, (resident_bytes, num_ended))
                self._last[pid] = resident_bytes, num_ended

    def growth_pct(self) -> float:
        """The most that a process has grown, in percent of its memory when it was warm."""
        return max(100 * (self._last[pid][0] / before - 1) for pid, (before, _) in self._first.items())

    def controller_bytes_per_trial(self) -> float:
        """By how many bytes the controller has grown for each trial."""
        (before, first), (after, last) = self._first[os.getpid()], self._last[os.getpid()]
        return (after - before) / max(1, last - first)


def _descendants(pid: int) -> list[int]:
    parents = {int(entry.name): _parent(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def _resident_bytes(pid: int) -> int:
    """0 for a process that has ended."""
    fields = _read(pid, "statm").split()
    return int(fields[1]) * resource.getpagesize() if fields else 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it has ended
        return ""


def tune_in_its_own_process(trials: int) -> float:
    """Trials per second of Ray Tune, on a local Ray of its own with as many slots as a study has here."""
    command = [sys.executable, "-m", "benchmarks.launch_overhead", "--tune", str(trials)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}  # of our Ray
    environment |= {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return trials / float(json.loads(done.stdout.splitlines()[-1]))


def tune_seconds(trials: int) -> float:
    """Seconds in which Ray Tune runs so many trials with its default settings, after Ray has started."""
    import ray
    from ray import tune

    slots = Settings().virtual_devices
    ray.init(address="local", num_cpus=slots, include_dashboard=False, logging_level="error")
    space = {"lr": tune.loguniform(LOWEST_LR, HIGHEST_LR)}
    with tempfile.TemporaryDirectory(prefix="scamp-tune-") as directory:
        tuner = tune.Tuner(
            one_step,
            param_space=space,
            tune_config=tune.TuneConfig(num_samples=trials, metric="accuracy", mode="max"),
            run_config=tune.RunConfig(storage_path=directory, verbose=0),
        )
        began = time.monotonic()
        results = tuner.fit()
        seconds = time.monotonic() - began
    assert len(results) == trials and not results.errors, results.errors
    ray.shutdown()  # type: ignore[no-untyped-call]
    return seconds


def one_step(config: Mapping[str, Any]) -> None:
    """Train the same step as a trial of ours, evaluate, and report: what Ray Tune calls a function trainable."""
    import torch
    from ray import tune

    from estimators.model import Plan
    from workloads.training.samples import batch_indices
    from workloads.training.step import train_step

    torch.set_num_threads(1)
    workload = vit_digits.VitDigits({**PARAMS, "lr": config["lr"]})
    model, plan = workload.build_model(), Plan(workload.default_batch)
    optimizer = workload.optimizer(model)
    batch = workload.train_batch(batch_indices(workload.num_train, plan.batch, 0, 0))
    train_step(workload, model, optimizer, iter([batch]), 1)
    with torch.no_grad():
        metrics = workload.evaluate(model.eval(), workload.eval_batch(torch.arange(workload.num_eval)))
    tune.report({"accuracy": float(metrics["accuracy"].mean())})


if __name__ == "__main__":
    main()
