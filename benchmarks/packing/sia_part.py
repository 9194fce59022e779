"""Our elastic policy against Sia, Pollux, Gavel and first come first served, in the simulator of Sia's authors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.running.results import Finding

ROOT = Path(__file__).parents[2]
POLICIES = ("ours", "sia", "gavel", "fifo", "pollux")
WORKLOADS = range(1, 9)
OPTIONS = {
    "sia": "sia-simulator of a checkout of github.com/siasosp23/artifacts, for the comparison with Sia",
    "python": "the Python that runs it: 3.11 with numpy 1.23.5, pandas 1.5.3, scipy 1.10.1, cvxpy 1.3.4, ecos, cylp, "
    "autograd, pymoo 0.4.2.2, rich and psutil",
}

TITLE = "Beside Sia in its own simulator"
HEADER = ("mean completion h", "makespan h", "restarts", "workload, policy")
ABOUT = """\
64 GPUs (24 T4 of AWS, 16 A100, 24 RTX 2080 Ti) and the 160 jobs of a Philly workload in the simulator of Jayaram
Subramanya et al., "Sia: heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023, from a checkout that
the user names (`--sia`, `--python`). Goodputs, restarts and batches are those of its cost model. Options of the others
are those of its `run_experiment.sh`. "Ours" divides each kind of GPU by `placement/packing/elastic.py:redivide` once a
minute; which kind a job goes to is decided in `benchmarks/packing/sia_policies.py`. "Fifo" gives each job the GPUs that
it asks for, of the first kind that has them. Sia solves one integer program for all jobs and kinds, which prefers jobs
that are slow so far; ours prefers those that scale well, and chooses the kind of each job by itself. A run takes
minutes to hours, most of them for fits of goodputs."""


@dataclass(frozen=True)
class Case:
    """One workload under one policy."""

    folder: Path
    python: Path
    workload: int
    policy: str

    def __str__(self) -> str:
        return f"{self.workload}, {self.policy}"


@dataclass(frozen=True, slots=True)
class Result:
    """Hours, and restarts of a job in the mean."""

    workload: int
    policy: str
    completion_hours: float
    makespan_hours: float
    restarts: float

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        return [f"{self.completion_hours:.3f}", f"{self.makespan_hours:.2f}", f"{self.restarts:.2f}"]


def cases(quick: bool, seed: int, sia: Path | None = None, python: Path | None = None) -> Sequence[Case]:
    """Every policy on every workload; none without the user's checkout, nor in a quick run."""
    if sia is None or quick:
        return []
    run_by = python or Path(sys.executable)
    return [Case(sia, run_by, workload, policy) for workload in WORKLOADS for policy in POLICIES]


def measure(case: Case, seconds: float) -> Result:
    """Run the simulator in a process of its own; ``seconds`` is not used, as a run may take hours."""
    workload = case.folder / "workloads" / "philly" / f"workload-{case.workload}.csv"
    command = [str(case.python), "-W", "ignore", "-m", "benchmarks.packing.sia_driver"]
    done = subprocess.run(
        [*command, str(case.folder.resolve()), case.policy, str(workload.resolve())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it failed without a word")
    return result_of(case.workload, json.loads(done.stdout.splitlines()[-1]))


def result_of(workload: int, summary: dict[str, float | str]) -> Result:
    """The result that the driver has printed."""
    figures = (float(summary[name]) for name in ("completion_hours", "makespan_hours", "restarts"))
    return Result(workload, str(summary["policy"]), *figures)


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Our hours over those of Sia, the mean over the workloads that both have run."""
    by_name = {(result.workload, result.policy): result for result in results}
    pairs = [(result, by_name[result.workload, "sia"]) for result in results if result.policy == "ours"
             and (result.workload, "sia") in by_name]  # fmt: skip
    if not pairs:
        return {}
    return {
        "sia_jct_ratio": fmean(ours.completion_hours / sia.completion_hours for ours, sia in pairs),
        "sia_makespan_ratio": fmean(ours.makespan_hours / sia.makespan_hours for ours, sia in pairs),
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Why cases failed."""
    return [f"  {finding.case}: {finding.failure}" for finding in findings if finding.failure]
