"""Collectives in traces: how many, over which dimension of the mesh, of how many bytes, and whether ranks wait."""

from __future__ import annotations

from functools import cache

import pytest

from estimators.model import Layout, Plan
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.session.session import Session
from estimators.tracing.session.watched_optimizer import Step
from estimators.tracing.tracer import trace
from estimators.work import Work
from workloads.loading import load_workload
from workloads.parallel.exchanging import replicas
from workloads.sandbox.recipe import recipe_of

pytestmark = pytest.mark.full

WIDTH, CONTEXT, DEPTH = 32, 8, 5
BLOCK_PARAMS = 12 * WIDTH * WIDTH + 13 * WIDTH
Key = tuple[str, str, bool]


def gpt(depth: int) -> Recipe:
    return recipe_of(
        load_workload("stdlib_gpt", None)({"depth": depth, "width": WIDTH, "heads": 4, "context": CONTEXT})
    )


def counted(work: Work) -> dict[Key, tuple[float, float]]:
    return {
        (collective.kind, collective.dimension, collective.overlaps): (collective.num, collective.num_bytes)
        for collective in work.collectives
    }


def step(plan: Plan) -> dict[Key, tuple[float, float]]:
    """Collectives of a step of one micro-batch, for pipelines of all."""
    return counted(_steps(plan).passes.work + _steps(plan).update.work)


@cache
def _steps(plan: Plan) -> Step:
    with Session(gpt(DEPTH), plan.layout) as session:
        session.spread()
        return session.step(plan.micro_batch)


@pytest.mark.sample
def test_fsdp_gathers_each_block_twice_and_the_ends_once_and_reduces_all_while_it_computes() -> None:
    counts = step(Plan(2, dp_shard=2))
    (num_gathers, gathered), (num_reductions, reduced) = counts.pop(("all_gather", "dp", True)), counts.popitem()[1]
    assert (num_gathers, num_reductions, counts) == (2 * DEPTH + 1, DEPTH + 1, {})
    assert gathered - reduced == pytest.approx(4 * DEPTH * BLOCK_PARAMS, rel=0.01)


def test_bytes_are_those_of_the_whole_tensor_whatever_the_number_of_ranks() -> None:
    two, four = step(Plan(2, dp_shard=2)), step(Plan(2, dp_shard=4))
    assert two.keys() == four.keys()
    for kind, amounts in two.items():
        assert amounts == pytest.approx(four[kind], rel=0.01)  # shards are padded


def test_replicas_of_shards_reduce_their_shards_over_the_other_dimension() -> None:
    counts = step(Plan(2, dp_shard=2, dp_replicate=2))
    num, num_bytes = counts["all_reduce", "replicate", True]
    assert num == DEPTH + 1
    assert 2 * num_bytes == counts["reduce_scatter", "dp", True][1]


def test_whole_replicas_of_a_small_model_send_all_gradients_at_the_end_of_a_step() -> None:
    once = {("queued_all_reduce", "replicate", False): (1, 4 * _num_params(DEPTH))}
    work = trace(gpt(DEPTH), Layout(dp_replicate=2), 4).work
    assert step(Plan(2, dp_replicate=2)) == counted(work.step(2, 1)) == counted(work.step(2, 3)) == once
    accumulated = trace(gpt(DEPTH), Layout(dp_replicate=2, accumulate=True), 4).work
    assert counted(accumulated.step(2, 3)) == once


def test_larger_whole_replicas_send_each_block_while_they_compute_and_then_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas, "SMALL_BYTES", 0)
    traced = trace(gpt(DEPTH), Layout(dp_replicate=2), 4)
    assert traced.equal_blocks
    assert counted(traced.work.step(2, 3)) == {
        ("queued_all_reduce", "replicate", True): (DEPTH, 4 * DEPTH * BLOCK_PARAMS),
        ("queued_all_reduce", "replicate", False): (1, 4 * (_num_params(DEPTH) - DEPTH * BLOCK_PARAMS)),
    }


def _num_params(depth: int) -> int:
    return trace(gpt(depth), Layout(), 4).num_params


def test_tensor_parallel_ranks_wait_for_two_sums_of_activations_in_each_pass_of_a_block() -> None:
    for samples in (2, 8):
        activations = 4 * samples * CONTEXT * WIDTH
        assert step(Plan(samples, tp=2)) == {("new_all_reduce", "tp", False): (4 * DEPTH, 4 * DEPTH * activations)}


def test_sequence_parallel_ranks_gather_and_scatter_instead() -> None:
    counts = step(Plan(2, tp=2, sequence_parallel=True))
    activations = 4 * 2 * CONTEXT * WIDTH
    assert counts["new_reduce_scatter", "tp", False] == (4 * DEPTH, 4 * DEPTH * activations)
    assert counts["new_all_gather", "tp", False][0] == 4 * DEPTH + 2


def test_each_dimension_counts_its_own() -> None:
    both = step(Plan(2, dp_shard=2, tp=2))
    assert {dimension for _, dimension, _ in both} == {"dp", "tp"}
    assert both["new_all_reduce", "tp", False] == step(Plan(2, tp=2))["new_all_reduce", "tp", False]


def test_zero_1_communicates_in_the_update_alone_and_waits() -> None:
    steps = _steps(Plan(2, dp_replicate=2, zero1=True))
    assert not steps.passes.work.collectives
    counts = counted(steps.update.work)
    assert counts.keys() == {("queued_all_reduce", "replicate", False), ("broadcast", "replicate", False)}
    assert counts["queued_all_reduce", "replicate", False][1] == counts["broadcast", "replicate", False][1]


def test_a_stage_sends_one_message_for_each_pass_of_a_micro_batch() -> None:
    plan = Plan(2, 4, pp=2)
    assert step(plan) == {("message", "pp", False): (4, 4 * 4 * 2 * CONTEXT * WIDTH)}


def test_space_sends_halos_and_sums_statistics_and_its_gradients_overlap() -> None:
    workload = load_workload("unet3d_blobs", None)({"side": 8, "width": 4, "levels": 1})
    with Session(recipe_of(workload), Layout(spatial=2)) as session:
        session.spread()
        counts = counted(session.passes(2).work)
    assert counts.keys() == {
        ("message", "spatial", False),
        ("all_reduce", "spatial", False),
        ("all_reduce", "spatial", True),
    }


def test_a_trace_of_a_few_blocks_counts_the_collectives_of_all_blocks_for_any_micro_batch() -> None:
    for plan in (Plan(2, dp_shard=2), Plan(8, tp=2)):
        traced = trace(gpt(DEPTH), plan.layout, 4)
        assert traced.equal_blocks and counted(traced.work.step(plan.micro_batch, 1)) == step(plan)


def test_a_single_rank_has_none() -> None:
    assert not step(Plan(2))
