"""Jobs whose devices are divided anew end once, and none loses work."""

from __future__ import annotations

import random

import pytest

from benchmarks.packing.elastic import ElasticSimulation
from placement.model import Shape
from placement.simulation.schedule import Job, ScheduleOptions
from tests.placement.simulation.test_schedule import gpus


def test_a_job_gives_devices_to_a_new_one_and_takes_those_of_one_that_has_ended() -> None:
    shapes = (Shape(1, 60, 1000.0), Shape(2, 60, 500.0), Shape(4, 60, 250.0))
    jobs = [Job("a", shapes), Job("b", (Shape(2, 60, 100.0),), at=50.0)]
    simulation = ElasticSimulation(jobs, gpus(1, 4), 10.0, ScheduleOptions())
    # Trial a trains a fifth on four devices, then for 100 s on two, 10 s of them for the restart, then again on four.
    first, last = simulation.run().runs
    assert (first.id, first.start, first.end) == ("b", 50, 150)
    assert (last.id, simulation.num_restarts) == ("a", 2)
    assert last.end == pytest.approx(150 + 10 + 250 * (0.8 - 90 / 500))


@pytest.mark.parametrize("seed", range(3))
def test_every_job_is_done_once_and_none_loses_work(seed: int) -> None:
    source = random.Random(seed)
    jobs = []
    for n in range(40):
        seconds, ranks = source.uniform(10, 2000), source.choice((1, 2))
        shapes = tuple(Shape(ranks * 2**k, 60, seconds / 1.8**k) for k in range(3))
        jobs.append(Job(f"{n}", shapes, source.uniform(0, 3000)))
    runs = ElasticSimulation(jobs, gpus(2, 4), 20.0, ScheduleOptions(round_seconds=5.0)).run().runs
    assert sorted(run.id for run in runs) == sorted(job.id for job in jobs)
    by_id = {job.id: job for job in jobs}
    for run in runs:
        least = min(shape.seconds or 0.0 for shape in by_id[run.id].shapes)
        assert run.end - run.start >= least - 1e-6 and run.start >= run.arrived
