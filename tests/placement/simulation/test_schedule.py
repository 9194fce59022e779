"""Every job runs once, and devices never hold more than they have."""

from __future__ import annotations

import random

import pytest

from placement.model import Cluster, Device, Shape
from placement.packing.packer import pack
from placement.packing.policy import Blocked
from placement.simulation.progress import domains_of
from placement.simulation.schedule import Job, Running, Schedule, ScheduleOptions, schedule


def gpus(nodes: int, per_node: int, mib: int = 100) -> Cluster:
    return Cluster(tuple(Device(f"{n}/{i}", f"{n}", i, "V100-16", mib) for n in range(nodes) for i in range(per_node)))


def drawn(seed: int, num_jobs: int, rate: float = 0.0) -> list[Job]:
    rng = random.Random(seed)
    at, jobs = 0.0, []
    for number in range(num_jobs):
        at += rng.expovariate(rate) if rate else 0.0
        ranks = rng.choice((1, 1, 1, 2, 4))
        shape = Shape(ranks, rng.randint(10, 100), rng.uniform(10, 500), 0.1 * (ranks > 1))
        jobs.append(Job(f"j{number}", (shape,), at, number % 3))
    return jobs


def check(result: Schedule, jobs: list[Job], cluster: Cluster, max_gangs: int) -> None:
    """Every job runs once, whole, and no device ever holds more than it has, or too many jobs."""
    shapes = {job.id: job.shapes[0] for job in jobs}
    assert sorted(run.id for run in result.runs) == sorted(shapes) and not result.never
    events = []
    for run in result.runs:
        shape = shapes[run.id]
        assert len(set(run.devices)) == shape.num_ranks and run.arrived <= run.start < run.end
        assert shape.seconds is not None and run.end - run.start >= shape.seconds - 1e-6
        events += [(run.start, 1, run.id, run.devices), (run.end, 0, run.id, run.devices)]
    held: dict[str, dict[str, int]] = {device.id: {} for device in cluster.devices}
    for _, begins, job, devices in sorted(events):
        for device in devices:
            if begins:
                held[device][job] = shapes[job].mib_per_rank
                assert sum(held[device].values()) <= 100 and len(held[device]) <= max_gangs
            else:
                del held[device][job]


@pytest.mark.parametrize("max_gangs", [1, 3])
@pytest.mark.parametrize("rate", [0.0, 0.02])
def test_every_job_runs_once_and_devices_hold_no_more_than_they_have(max_gangs: int, rate: float) -> None:
    cluster = gpus(2, 4)
    jobs = drawn(7, 60, rate)
    simulated = schedule(jobs, cluster, pack, ScheduleOptions(max_gangs_per_device=max_gangs))
    check(simulated, jobs, cluster, max_gangs)
    assert 0 < simulated.utilisation <= max_gangs and 0 < simulated.communication_share < 0.1
    again = schedule(jobs, cluster, pack, ScheduleOptions(max_gangs_per_device=max_gangs))
    assert again.runs == simulated.runs and again.first_waits == simulated.first_waits
    # Rarer rounds, with a part of the queue, change when jobs begin, but not what holds.
    rarer = ScheduleOptions(max_gangs_per_device=max_gangs, round_seconds=20, most_nominated=8)
    check(schedule(jobs, cluster, pack, rarer), jobs, cluster, max_gangs)


def test_jobs_one_after_another_and_beside_what_runs_already() -> None:
    cluster = gpus(1, 1)
    jobs = [Job("a", (Shape(1, 60, 10.0),)), Job("b", (Shape(1, 60, 5.0),), at=2.0)]
    running = [Running("r", ("0/0",), 50, 4.0, 9)]
    simulated = schedule(jobs, cluster, pack, running=running)
    assert [(run.id, run.start, run.end) for run in simulated.runs] == [("r", 0, 4), ("a", 4, 14), ("b", 14, 19)]
    assert simulated.mean_completion == pytest.approx((4 + 14 + 17) / 3) and simulated.makespan == 19
    assert {job: wait.blocked for job, wait in simulated.first_waits.items()} == {"a": Blocked.BUSY, "b": Blocked.BUSY}


def test_a_job_that_no_cluster_holds_never_runs() -> None:
    simulated = schedule([Job("wide", (Shape(3, 60, 10.0),)), Job("a", (Shape(1, 60, 1.0),))], gpus(1, 2), pack)
    assert simulated.never["wide"].blocked is Blocked.TOO_LARGE and simulated.makespan == 1.0


def test_studies_take_turns() -> None:
    jobs = [Job(f"{study}{n}", (Shape(1, 60, 10.0),), study=study) for study in (1, 2) for n in range(3)]
    simulated = schedule(jobs, gpus(1, 2), pack)
    assert [sorted(run.study for run in simulated.runs[at : at + 2]) for at in (0, 2, 4)] == [[1, 2]] * 3


def test_a_job_needs_known_seconds() -> None:
    with pytest.raises(ValueError, match="known seconds"):
        Job("a", (Shape(1, 10),))


def test_a_study_may_limit_its_running_jobs_and_slow_devices_take_longer() -> None:
    jobs = [Job(f"{study}{n}", (Shape(1, 60, 10.0),), study=study) for study in (1, 2) for n in range(2)]
    simulated = schedule(jobs, gpus(1, 4), pack, ScheduleOptions(most_running={1: 1}))
    assert [(run.id, run.end) for run in simulated.runs] == [("10", 10), ("20", 10), ("21", 10), ("11", 20)]
    slow = schedule(
        jobs[:1], gpus(1, 1), pack, ScheduleOptions(domains=domains_of(gpus(1, 1), speeds={"V100-16": 0.5}))
    )
    assert slow.makespan == 20
