"""Runs one policy on one workload in Sia's own simulator, in a checkout that the user names. Nothing is copied.

``PYTHONPATH=. PYTHON -m benchmarks.packing.sia_driver CHECKOUT POLICY WORKLOAD.csv`` prints one line of JSON.
``PYTHON`` is one that has what the simulator needs (``sia_part``). Our policy sees what theirs see: goodputs that are
fitted while a job runs, and not how long it will take.
"""

# mypy: ignore-errors

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Run and print mean completion and makespan in hours."""
    folder, name, workload = sys.argv[1:4]
    sys.path.insert(0, str(Path(folder)))
    path = Path(workload).resolve()
    os.chdir(folder)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        jobs = _run(name, str(path))
    done = [job.completion_time - job.submission_time for job in jobs]
    first = min(job.submission_time for job in jobs)
    answer = {
        "policy": name,
        "num_jobs": len(jobs),
        "completion_hours": sum(done) / len(done) / 3600,
        "makespan_hours": (max(job.completion_time for job in jobs) - first) / 3600,
        "restarts": sum(job.num_restarts or 0 for job in jobs) / len(jobs),
    }
    print(json.dumps(answer))


def _run(name: str, workload: str):
    """The jobs after the last has ended, with the options of the artifact's ``run_experiment.sh``."""
    import pandas
    import simulator_config as config

    jobs = pandas.read_csv(workload)
    per_node = {kind: config.cluster_ngpus_per_node[kind] for kind in config.cluster_nnodes}
    if name == "pollux":
        from cluster_unaware import ClusterUnaware
        from pollux_unaware import PolluxPolicyUnaware

        most = min(per_node[kind] * min(config.cluster_nnodes[kind], config.cluster_max_physical_nnodes[kind])
                   for kind in per_node)  # fmt: skip
        cluster = ClusterUnaware(
            jobs,
            PolluxPolicyUnaware(-1),
            config.cluster_nnodes,
            config.cluster_ngpus_per_node,
            max_num_replicas=most,
            max_physical_nodes=config.cluster_max_physical_nnodes,
        )
        interval = 60
    else:
        from cluster import Cluster

        policy, interval = _policy(name)
        policy.populate_valid_configs(config.cluster_nnodes, per_node, config.cluster_max_physical_nnodes)
        cluster = Cluster(
            jobs, policy, config.cluster_nnodes, per_node, max_physical_nodes=config.cluster_max_physical_nnodes
        )
        if name in ("gavel", "fifo"):
            cluster.disable_bsz_tuning()
    while not cluster.all_complete():
        cluster.step(interval)
    return cluster.jobs


def _policy(name: str):
    """The policy and the seconds between its decisions."""
    options = {"p_fairness": -0.5, "restart_penalty": 30, "lambda_a": 0.01, "lambda_n": 1.1}
    if name == "gavel":
        from gavel import GavelPolicy

        return GavelPolicy(360, policy="max_sum_throughput_perf"), 360
    if name == "fifo":
        from benchmarks.packing.sia_policies import Fifo

        return Fifo(**options), 60
    if name == "sia":
        from sia import SiaPolicy

        return SiaPolicy(**options, project_throughputs=True, share_max_replicas=True), 60
    assert name == "ours", f"unknown policy {name}"
    from benchmarks.packing.sia_policies import Ours

    return Ours(**options, project_throughputs=True, share_max_replicas=True), 60


if __name__ == "__main__":
    main()
