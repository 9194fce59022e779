"""Compares predicted with measured peak memory for every trial of a real study, the worst errors first.

Runs the demo study's candidates for a few steps or, with ``--study``, reads a study that a service has run. A negative
error means that the prediction was too low. Trials with an injected fault are listed but not counted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

from estimators.model import MIB
from scamp_service.model import Trial
from scamp_service.processes.controller_process import run_study
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from scamp_service.store.summary import all_trials
from scamp_service.store.tallies import prediction_errors_pct
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec

DEMO = Path(__file__).resolve().parent.parent / "examples" / "digits.yaml"


def main() -> None:
    """Run or read a study, and print its table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    parser.add_argument("--study", type=int, help="number of a study in the database in SCAMP_DATA_DIR")
    options = parser.parse_args()
    if options.study:
        store = Store(Settings().url)
        trials = all_trials(store, options.study)
        store.close()
    else:
        trials = run(*((8, 12) if options.quick else (24, 12)))
    report([trial for trial in trials if trial.measured_bytes])


def study(trials: int, steps: int) -> StudySpec:
    """The demo study with random search, and with this many trials and steps."""
    demo = parse_study(DEMO.read_text()).to_json()
    demo["search"]["sampler"] = "random"
    demo["start_with"] = demo["start_with"][: trials // 2]
    demo["stopping"]["min_steps"] = None
    demo["budget"] |= {"trials": trials, "steps": steps, "report_every": max(1, steps // 3)}
    return StudySpec.model_validate(demo)


def run(num_trials: int, steps: int) -> list[Trial]:
    """The trials of a new study with the demo's space, run in a temporary folder."""
    spec = study(num_trials, steps)
    with tempfile.TemporaryDirectory(prefix="scamp-") as directory:
        settings = Settings(data_dir=Path(directory))
        store, study_id = run_study(settings, spec, None, lambda store, study_id: None)
        trials = all_trials(store, study_id)
        store.close()
    return trials


def report(trials: list[Trial]) -> None:
    """Print a line for each trial, then the figures as one line of JSON; errors are in percent."""
    honest = [trial for trial in trials if not trial.params.get("spike_mib")]
    errors = prediction_errors_pct(honest)
    print(f"{'trial':>5} {'predicted':>10} {'measured':>10} {'error':>8}  plan")
    for trial in sorted(trials, key=lambda trial: -abs(prediction_errors_pct([trial])[0])):
        plan = trial.plan
        fault = "  (injected fault, not counted)" if trial not in honest else ""
        predicted = trial.prediction.expected_bytes / MIB
        print(f"{trial.number:>5} {predicted:>6.1f} MiB {trial.measured_bytes / MIB:>6.1f} MiB "
              f"{prediction_errors_pct([trial])[0]:>+7.2f}%  {plan}{fault}")  # fmt: skip
    by_degree: dict[int, list[float]] = {}
    for trial, error in zip(honest, errors, strict=True):
        by_degree.setdefault(trial.plan.world_size if trial.plan else 0, []).append(abs(error))
    figures = {
        "trials": len(honest),
        "median_pct": median(map(abs, errors)),
        "max_pct": max(map(abs, errors)),
        "min_signed_pct": min(errors),
        "median_pct_by_degree": {str(degree): median(values) for degree, values in sorted(by_degree.items())},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
