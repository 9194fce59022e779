"""Jobs of a drawn trace become candidates of the cost table that take as long as the trace says."""

from __future__ import annotations

import random

import pytest

from benchmarks.packing.generated import TraceJob
from benchmarks.packing.traces_part import moldable


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
def test_a_job_takes_the_seconds_of_its_trace_on_the_gpus_that_it_asked_for(num_gpus: int) -> None:
    drawn = moldable(TraceJob("a", 3.0, num_gpus, 1234.0), random.Random(1))
    (shape,) = drawn.fixed.shapes
    assert (shape.num_ranks, drawn.free.at) == (num_gpus, 3.0) and shape.seconds == pytest.approx(1234.0)
    assert all(shape.seconds for shape in drawn.free.shapes)


def test_a_larger_batch_is_offered_on_more_gpus_and_takes_fewer_seconds() -> None:
    drawn = moldable(TraceJob("a", 3.0, 1, 1234.0), random.Random(1))
    seconds = {shape.num_ranks: shape.seconds or 0.0 for shape in drawn.free.shapes}
    grown = {shape.num_ranks: shape.seconds or 0.0 for shape in drawn.growing.shapes}
    assert grown[1] == seconds[1]
    assert max(grown) > max(seconds)
    assert min(grown.values()) < min(seconds.values())
