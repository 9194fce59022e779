"""A step's samples are dealt in two ways: in micro-batches of other sizes, or with other samples beside them."""

from __future__ import annotations

import math

import pytest
import torch

from estimators.model import Plan
from workloads.training.guard.dealing import Dealing, dealt, dealt_held_out, drawn
from workloads.training.samples import rank_slices

PLANS = [
    Plan(8, num_micro_batches=4),
    Plan(4, num_micro_batches=4),
    Plan(4, num_micro_batches=2, dp_replicate=2),
    Plan(6, num_micro_batches=2),
    Plan(5, num_micro_batches=2, dp_shard=3),
    Plan(4, dp_shard=2),
    Plan(64, dp_shard=3, tp=2),
    Plan(6, dp_replicate=2, shares=(6, 3)),
    Plan(2, dp_shard=2, shares=(2, 1)),
    Plan(64, num_micro_batches=2, dp_replicate=2, shares=(64, 1)),
    Plan(4, num_micro_batches=4, pp=2, dp_shard=2),
]


ONE_BY_ONE = [Plan(1, num_micro_batches=4), Plan(1, dp_shard=4), Plan(1, num_micro_batches=2, dp_replicate=2, tp=2)]


def samples_of(plan: Plan, dealings: list[Dealing]) -> tuple[list[int], list[int]]:
    """Places of all samples, one way and the other, of the first rank with each share."""
    firsts = {plan.data_rank(rank): dealing for rank, dealing in reversed(list(enumerate(dealings)))}
    planned, other = (
        torch.cat([part for dealing in firsts.values() for part in way(dealing).parts]).tolist()
        for way in (lambda dealing: dealing.planned, lambda dealing: dealing.other)
    )
    return planned, other


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_both_ways_have_the_same_samples_and_no_pass_has_more_than_planned(plan: Plan) -> None:
    dealings = [dealt(plan, rank, drawn(plan.batch, 7, 0)) for rank in range(plan.world_size)]
    planned, other = samples_of(plan, dealings)
    assert sorted(planned) == sorted(other) and len(set(planned)) == len(planned) and max(planned) < plan.batch
    assert planned != other
    for rank, dealing in enumerate(dealings):
        assert max(map(len, [*dealing.planned.parts, *dealing.other.parts])) <= plan.samples_of_rank(rank)
        if plan.pp == 1 and not plan.shares and not dealing.shifts:
            assert len(dealing.other.parts) == 2 * len(dealing.planned.parts), "the same number would hide the size"
        sizes = set(map(len, dealing.other.parts))
        assert len(sizes) == 1 or math.gcd(*sizes) == 1, "halves of sorted classes are equal by chance"


@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize("plan", PLANS[:-1], ids=str)
def test_the_weighted_mean_over_ranks_is_that_over_samples(plan: Plan, has_own: bool) -> None:
    values = torch.arange(plan.batch, dtype=torch.float64)
    for name in ("planned", "other"):
        order = drawn(plan.batch, 3, 1)
        dealings = [dealt(plan, rank, order, has_own=has_own) for rank in range(plan.world_size)]
        ways = [getattr(dealing, name) for dealing in dealings]
        samples = [torch.cat(list(way.parts)) for way in ways]
        of_ranks = [way.weight * values[places].mean() for way, places in zip(ways, samples, strict=True)]
        assert torch.stack(of_ranks).mean() == pytest.approx(float(values[torch.cat(samples)].mean()))


@pytest.mark.parametrize("plan", PLANS[:-1], ids=str)
def test_a_rank_may_keep_the_samples_of_its_last_micro_batch(plan: Plan) -> None:
    order = drawn(plan.batch, 5, 2)
    for rank in range(plan.world_size):
        dealing = dealt(plan, rank, order, has_own=True)
        (planned,) = dealing.planned.parts
        last = rank_slices(torch.arange(plan.batch), plan, rank)[-1].tolist()
        assert {*planned.tolist()} == {*torch.cat(list(dealing.other.parts)).tolist()} <= {*last}


@pytest.mark.parametrize("plan", ONE_BY_ONE, ids=str)
def test_single_samples_are_dealt_in_pairs(plan: Plan) -> None:
    dealings = [dealt(plan, rank, drawn(plan.batch, 1, 0)) for rank in range(plan.world_size)]
    planned, other = samples_of(plan, dealings)
    assert planned == other and {*planned} <= {*range(plan.batch)}
    assert all(dealing.joins and len(dealing.other.parts[0]) == 2 == len(dealing.planned.parts) for dealing in dealings)


@pytest.mark.parametrize("plan", [*PLANS, *ONE_BY_ONE, Plan(8, evaluation_batch=3)], ids=str)
@pytest.mark.parametrize("num", [1, 2, 3, 7, 10**9])
def test_held_out_samples_are_dealt_as_far_as_there_are_some(plan: Plan, num: int) -> None:
    held_out = [dealt_held_out(plan, rank, num) for rank in range(plan.world_size)]
    if num < max(2, plan.num_shares):
        assert set(held_out) == {None}
        return
    ((num_drawn, _), *_) = pairs = [pair for pair in held_out if pair]
    planned, other = samples_of(plan, [dealing for _, dealing in pairs])
    assert len(pairs) == plan.world_size and sorted(planned) == sorted(other) and max(planned) < num_drawn <= num
    assert max(len(part) for _, dealing in pairs for part in dealing.other.parts) <= max(2, plan.evaluation_micro_batch)


def test_the_order_depends_on_the_step_and_the_seed() -> None:
    orders = [tuple(drawn(50, *numbers).tolist()) for numbers in [(0, 0), (0, 1), (1, 0), (2**62, 5), (0, 0)]]
    assert len(set(orders)) == 4 and orders[0] == orders[-1] and {*orders[0]} == {*range(50)}
