"""Jobs of a drawn trace become candidates of the cost table that take as long as the trace says."""

from __future__ import annotations

import random

import pytest

from benchmarks.packing.traces_part import moldable
from placement.simulation.generated import TraceJob


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
def test_a_job_takes_the_seconds_of_its_trace_on_the_gpus_that_it_asked_for(num_gpus: int) -> None:
    job, asked = moldable(TraceJob("a", 3.0, num_gpus, 1234.0), random.Random(1))
    assert (asked.num_ranks, job.at) == (num_gpus, 3.0) and asked.seconds == pytest.approx(1234.0)
    assert all(shape.seconds for shape in job.shapes)
