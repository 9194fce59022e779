"""The largest batch of a candidate, and the plans with which it may continue with another one."""

from __future__ import annotations

from estimators.model import Candidate, Plan
from scamp_service.control.executor import Demand
from scamp_service.model import Choice
from scamp_service.sizing.batches import other_batches, with_other_batches
from tests.values import sized

PARAMS = {"batch": 64, "base_batch": 16, "smallest_batch": 16, "largest_batch": 256, "scale_lr": "adascale"}


def choice(plan: Plan, seconds: float | None = 1.0) -> Choice:
    return Choice(plan, sized(plan).prediction, seconds)


OWN = choice(Plan(64))
SMALLER = choice(Plan(16))
LARGER = choice(Plan(64, dp_shard=2))


def test_a_candidate_continues_with_a_smaller_or_a_larger_batch() -> None:
    demand = Demand(Candidate("vit_digits", None, PARAMS))
    assert other_batches(demand, 64) == [16, 32, 128, 256]
    assert other_batches(Demand(demand.candidate, plan=Plan(64)), 64) == ()


def test_a_larger_batch_needs_more_ranks_and_a_smaller_one_no_more() -> None:
    on_more, on_one = choice(Plan(8, dp_shard=2)), choice(Plan(128))
    assert with_other_batches(OWN, (), [SMALLER, LARGER, on_more, on_one]) == (SMALLER, OWN, LARGER)


def test_where_seconds_are_not_known_the_batch_stays() -> None:
    assert with_other_batches(choice(Plan(64), None), (), [SMALLER, LARGER]) == ()
    assert with_other_batches(OWN, (), [choice(Plan(16), None)]) == (OWN,)
