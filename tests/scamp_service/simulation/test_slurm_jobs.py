"""Tests of the jobs of Slurm that are written for a study."""

from __future__ import annotations

import pytest

from placement.model import Cluster, Device
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import TrialState
from scamp_service.simulation.outcome import Simulated, Span
from scamp_service.simulation.slurm_jobs import SlurmJob, parts_of, slurm_jobs


def cluster(*sizes: int, kind: str = "T4") -> Cluster:
    return Cluster(
        tuple(Device(f"{node}/{i}", f"{node}", i, kind, 100) for node, n in enumerate(sizes) for i in range(n))
    )


def simulated(devices: Cluster, seconds: float, infeasible: int = 0) -> Simulated:
    span = Span(1, 1, 1, (devices.devices[0].id,), 70, 0.0, seconds, "1 rank", "DONE")
    states = {TrialState.COMPLETED: 3 - infeasible, TrialState.INFEASIBLE: infeasible}
    return Simulated(devices, [span], {}, states)


def test_parts_are_doubled_within_a_node_and_then_are_whole_nodes() -> None:
    assert [len(part.devices) for part in parts_of(cluster(6, 6, 6))] == [1, 2, 4, 6, 12, 18]
    assert [len(part.devices) for part in parts_of(cluster(1))] == [1]


def test_unlike_nodes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="equal nodes"):
        list(parts_of(cluster(4, 2)))


def test_a_wall_time_has_the_error_of_its_prediction_and_may_be_cut_to_the_shortest_useful_run() -> None:
    job = SlurmJob(1, 4, 3600.0, error=0.5, rank_mib=70, gang=1)
    assert job.options == ["--gpus=4", "--time=1:33:00", "--time-min=0:30:00"]
    several = SlurmJob(3, 4, 60.0, error=1.0, rank_mib=70, gang=1)
    assert several.options == ["--nodes=3", "--gpus-per-node=4", "--time=0:05:00", "--time-min=0:05:00"]


def test_devices_on_which_fewer_trials_fit_are_left_out() -> None:
    results = [simulated(cluster(1), 50.0, infeasible=2), simulated(cluster(2), 40.0), simulated(cluster(2, 2), 30.0)]
    assert [(job.nodes, job.devices, job.predicted_seconds) for job in slurm_jobs(results, is_timed=True)] == [
        (1, 2, 40.0),
        (2, 2, 30.0),
    ]


def test_nothing_is_written_if_no_trial_runs() -> None:
    assert slurm_jobs([Simulated(cluster(1), [], {}, {TrialState.INFEASIBLE: 3})], is_timed=True) == []
