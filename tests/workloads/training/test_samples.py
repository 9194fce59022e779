"""Each epoch visits every sample once, in an order that no plan changes."""

from __future__ import annotations

import pytest
import torch

from estimators.model import Plan
from workloads.training.samples import FEW, batch_indices, evaluation_slices, rank_slices


def test_each_epoch_visits_every_sample_once_in_an_order_that_no_plan_changes() -> None:
    seen = torch.cat([batch_indices(50, 8, step, seed=3) for step in range(25)])
    for epoch in seen.split(50):
        assert epoch.sort().values.equal(torch.arange(50))
    assert not seen[:50].equal(seen[50:100])
    assert not seen[:50].equal(torch.cat([batch_indices(50, 10, step, seed=4) for step in range(5)]))
    assert seen[:50].equal(torch.cat([batch_indices(50, 10, step, seed=3) for step in range(5)]))


@pytest.mark.parametrize(
    "plan", [Plan(24), Plan(3, 8), Plan(6, 2, dp_shard=2), Plan(2, 3, dp_shard=2, dp_replicate=2)], ids=str
)
def test_the_micro_batches_of_all_ranks_are_the_batch(plan: Plan) -> None:
    parts = [part for rank in range(plan.world_size) for part in rank_slices(torch.arange(24), plan, rank)]
    assert [len(part) for part in parts] == [plan.micro_batch] * (plan.world_size * plan.num_micro_batches)
    assert torch.cat(parts).equal(torch.arange(24))


def test_each_rank_gets_the_samples_of_its_share_in_each_micro_batch() -> None:
    plan = Plan(5, 3, dp_replicate=2, dp_shard=2, shares=(5, 1, 2, 1))
    parts = [rank_slices(torch.arange(plan.batch), plan, rank) for rank in range(4)]
    assert [[len(part) for part in of_rank] for of_rank in parts] == [[5] * 3, [1] * 3, [2] * 3, [1] * 3]
    assert torch.cat([part for of_rank in parts for part in of_rank]).equal(torch.arange(27))


@pytest.mark.parametrize("num_eval", [1, 3, 4, 8, 9, 10, 11, 17, 18, 19, 100])
@pytest.mark.parametrize("evaluation_batch", [0, 1, 2])
def test_no_rank_evaluates_more_samples_at_a_time_than_it_trains(num_eval: int, evaluation_batch: int) -> None:
    plan = Plan(5, 1, evaluation_batch, dp_shard=4, shares=(5, 1, 2, 1))
    parts = [list(evaluation_slices(num_eval, plan, rank)) for rank in range(4)]
    seen = [int(index) for part in zip(*parts, strict=True) for indices in part for index in indices]
    assert [index for index in seen if index < num_eval] == list(range(num_eval))
    num_filled_up = len(seen) - num_eval
    assert num_filled_up == max(4 - num_eval, 0) if num_eval <= 9 and evaluation_batch != 1 else num_filled_up < 4
    for part, most in zip(parts, plan.shares, strict=True):
        assert max(map(len, part)) <= min(most, plan.evaluation_micro_batch)


@pytest.mark.parametrize("num", [FEW + 1, 100_000, 2**18])
def test_an_epoch_of_many_samples_is_a_shuffle_too(num: int) -> None:
    first, second = (batch_indices(num, num, step, seed=3) for step in range(2))
    for epoch in (first, second):
        assert epoch.sort().values.equal(torch.arange(num))
        order = torch.stack([torch.arange(num), epoch, epoch.roll(1), epoch % 2]).double()
        assert (torch.corrcoef(order) - torch.eye(4)).abs().max() < 5 / num**0.5, "five standard deviations"
    assert (first == second).sum() < 20


def test_a_few_of_very_many_samples_cost_nothing() -> None:
    """The whole permutation would take eight petabytes."""
    indices = batch_indices(10**15, 64, 10**12, seed=0)
    assert len(set(indices.tolist())) == 64
    assert int(indices.min()) >= 0
    assert int(indices.max()) < 10**15
    assert indices.equal(batch_indices(10**15, 64, 10**12, seed=0))


@pytest.mark.parametrize("num_eval", [1, 7, 24, 25])
@pytest.mark.parametrize(
    "plan", [Plan(8), Plan(8, evaluation_batch=3), Plan(4, 2, dp_shard=2, evaluation_batch=1)], ids=str
)
def test_all_ranks_together_evaluate_each_sample_once_in_equally_many_micro_batches(plan: Plan, num_eval: int) -> None:
    parts = [list(evaluation_slices(num_eval, plan, rank)) for rank in range(plan.world_size)]
    seen = sorted(int(index) for part in parts for indices in part for index in indices)
    assert seen[:num_eval] == list(range(num_eval))
    can_divide = num_eval >= plan.num_shares and plan.evaluation_micro_batch > 1
    assert len(seen) - num_eval < (1 if can_divide else plan.num_shares), "samples fill up only where they must"
    assert len({len(part) for part in parts}) == 1
    sizes = [len(indices) for part in parts for indices in part]
    assert max(sizes) == min(plan.evaluation_micro_batch, -(-num_eval // plan.num_shares))
