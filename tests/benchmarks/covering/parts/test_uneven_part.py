"""Predicted peaks of LSTMs in gangs are what ``benchmarks.coverage --only uneven`` has measured with real ranks."""

from __future__ import annotations

import pytest

from benchmarks.covering.parts.uneven_part import Gang
from estimators.model import MIB, Plan
from estimators.tracing.tracer import trace
from workloads.sandbox.recipe import recipe_of


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(
    ("depth", "plan", "allocated", "counted"),
    [(1, Plan(4, dp_replicate=2), 71_402_128, 71_661_632), (2, Plan(2, dp_shard=2), 87_039_392, 87_430_000)],
    ids=["replicas", "FSDP"],
)
def test_an_lstm_in_a_gang_has_no_second_copy_of_its_weights(
    depth: int, plan: Plan, allocated: int, counted: int
) -> None:
    workload = Gang({"model": "lstm", "rows": 511, "depth": depth}, plan).workload()
    traced = trace(recipe_of(workload), plan.layout, plan.micro_batch)
    other_processors = 2 * MIB  # what oneDNN needs on one without AVX-512 differs by 1 MiB; a copy of weights is 12 MiB
    peak_bytes = traced.curve.peak_bytes(plan.micro_batch)
    assert allocated - other_processors <= peak_bytes <= counted + other_processors, "of each rank, by two measures"
