"""Writes the lines of sbatch that run a study as a job of Slurm (``scamp plan --slurm``)."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from scamp.cli.terminal import err, out
from scamp.shown import duration
from scamp_service.errors import InvalidInput
from scamp_service.settings import Settings
from scamp_service.simulation.replay import ReplayOptions, Submitted, simulate
from scamp_service.simulation.slurm_jobs import parts_of, slurm_jobs
from scamp_service.sizing.candidates import code_of
from scamp_service.sizing.cluster_file import NamedCluster
from scamp_service.sizing.user_workload import with_space
from scamp_service.study.parse import read_study

SCRIPT = "deploy/slurm/scamp.sbatch"  # jobs are submitted from the checkout


def print_slurm_jobs(
    study: Path, cluster: NamedCluster, settings: Settings, epoch_steps: int | None, working_dir: Path | None
) -> None:
    """Simulate a study on parts of a cluster, and print a line for each part that is worth a job.

    Raises ``InvalidInput`` if there is none.
    """
    spec = read_study(study)
    code = code_of(study, spec, working_dir)
    submitted = Submitted(with_space(spec, code), code)
    gangs = settings.max_gangs_per_device
    options = ReplayOptions(settings.data_dir / "profiles", epoch_steps=epoch_steps, max_gangs_per_device=gangs)
    with err.status("simulating …"):
        parts = [replace(cluster, cluster=part) for part in parts_of(cluster.cluster)]
        simulations = [simulate([submitted], part, options) for part in parts]
    kind = cluster.fastest
    jobs = slurm_jobs(simulations, is_timed=kind.verified)
    if not jobs:
        raise InvalidInput(f"no trial fits on these devices: {'; '.join(simulations[-1].reasons[:1])}")
    out.print(f"# {kind.name}: {kind.provenance}", soft_wrap=True, markup=False, highlight=False)
    out.print(f"# --time is the predicted time + {jobs[0].error:.0%}, and 3 min to start and stop", highlight=False)
    for job in jobs:
        line = shlex.join(["sbatch", *job.options, SCRIPT, str(study)])
        words = f"{duration(job.predicted_seconds)}, ≤ {job.rank_mib} MiB on each of ≤ {job.gang} GPUs a trial"
        out.print(f"{line}  # {words}", soft_wrap=True, markup=False, highlight=False)
