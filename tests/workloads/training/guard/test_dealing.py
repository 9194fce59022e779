"""A step's samples are dealt in two ways: in micro-batches of other sizes, or with other samples beside them."""

from __future__ import annotations

import pytest
import torch

from estimators.model import Plan
from workloads.training.guard.dealing import dealt

PLANS = [
    Plan(8, num_micro_batches=4),
    Plan(5, num_micro_batches=2, dp_shard=3),
    Plan(6, dp_replicate=2, shares=(6, 3)),
    Plan(2, dp_shard=2, shares=(2, 1)),
    Plan(4, num_micro_batches=4, pp=2, dp_shard=2),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_both_ways_have_the_same_samples_and_no_pass_has_more_than_planned(plan: Plan) -> None:
    dealings = [dealt(plan, rank, 7) for rank in range(plan.world_size)]
    firsts = {plan.data_rank(rank): dealing for rank, dealing in enumerate(dealings)}
    planned, other = (
        torch.cat([part for dealing in firsts.values() for part in parts(dealing)]).tolist()
        for parts in (lambda dealing: dealing.planned, lambda dealing: dealing.other)
    )
    assert sorted(planned) == sorted(other) and len(set(planned)) == len(planned) and max(planned) < plan.batch
    assert planned != other
    for rank, dealing in enumerate(dealings):
        assert max(map(len, [*dealing.planned, *dealing.other])) <= plan.samples_of_rank(rank)
        assert len(set(map(len, dealing.other))) == 1, "a mean over micro-batches is that over samples"


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_weighted_mean_over_ranks_is_that_over_samples(plan: Plan) -> None:
    values = torch.arange(plan.batch, dtype=torch.float64)
    for parts in ("planned", "other"):
        dealings = [dealt(plan, rank, 3) for rank in range(plan.world_size)]
        samples = [torch.cat(list(getattr(dealing, parts))) for dealing in dealings]
        of_ranks = [dealing.weight * values[places].mean() for dealing, places in zip(dealings, samples, strict=True)]
        assert torch.stack(of_ranks).mean() == pytest.approx(float(values[torch.cat(samples)].mean()))
