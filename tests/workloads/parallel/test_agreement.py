"""Ranks that use different parts of a model train like one rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan

WORKLOAD = {"workload": "partial_use.py:Partial", "code_dir": str(Path(__file__).parents[1])}

REPLICAS, ZERO1, FSDP = Plan(8, dp_replicate=2), Plan(4, 2, dp_replicate=2, zero1=True), Plan(4, 2, dp_shard=2)
GATHERED, HSDP = Plan(8, dp_shard=2, reshard=False, recompute=True), Plan(4, dp_shard=2, dp_replicate=2)
PLANS = [REPLICAS, ZERO1, FSDP, GATHERED, HSDP]
IDIOMS = ["experts", "heads", "odd_steps", "twice", "unfrozen"]
CASES = [
    ("experts", REPLICAS),
    ("experts", FSDP),
    ("heads", ZERO1),
    ("unfrozen", ZERO1),
    ("twice", GATHERED),
    ("odd_steps", FSDP),
]
MORE_CASES = [(idiom, plan) for idiom in IDIOMS for plan in PLANS if (idiom, plan) not in CASES]
STEPS = 6


def soak(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.soak)


@pytest.fixture(scope="module")
def single(ranks: Any) -> Callable[..., Any]:
    """The curve of one rank."""
    return cache(lambda **params: ranks.curve(Plan(16), STEPS, params=params, **WORKLOAD))


def assert_same(curve: list[Any], expected: list[Any]) -> None:
    assert [step for step, _ in curve] == [2, 4, 6]
    for (step, values), (_, expected_values) in zip(curve, expected, strict=True):
        assert values == pytest.approx(expected_values, abs=1e-6), f"after step {step}"


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(("idiom", "plan"), [*CASES, *(soak(*case) for case in MORE_CASES)], ids=str)
def test_ranks_that_use_different_parts_of_a_model_train_like_one_rank(
    ranks: Any, single: Callable[..., Any], idiom: str, plan: Plan
) -> None:
    curve = ranks.curve(plan, STEPS, params={"idiom": idiom}, **WORKLOAD)
    assert_same(curve, single(idiom=idiom))


@pytest.mark.full
def test_ranks_that_use_different_parts_gather_and_reduce_in_their_precisions(
    ranks: Any, single: Callable[..., Any]
) -> None:
    params = {"idiom": "experts", "precision": "bf16-params"}
    curve = ranks.curve(FSDP, STEPS, params=params, **WORKLOAD)
    for (_, values), (_, expected_values) in zip(curve, single(**params), strict=True):
        assert values == pytest.approx(expected_values, rel=1e-2)


@pytest.mark.full
@pytest.mark.parametrize("plan", [FSDP, *map(soak, [REPLICAS, ZERO1, GATHERED, HSDP])], ids=str)
def test_ranks_that_drop_different_layers_train_to_the_end(ranks: Any, plan: Plan) -> None:
    assert len(ranks.curve(plan, STEPS, params={"idiom": "drops"}, **WORKLOAD)) == 3


@pytest.mark.full
def test_stages_whose_ranks_use_different_blocks_train_like_one_rank(ranks: Any, single: Callable[..., Any]) -> None:
    params = {"idiom": "experts", "stages": True}
    assert_same(ranks.curve(Plan(2, 4, dp_shard=2, pp=2), STEPS, params=params, **WORKLOAD), single(**params))


@pytest.mark.soak
def test_stages_whose_ranks_drop_different_blocks_train_to_the_end(ranks: Any) -> None:
    params = {"idiom": "drops", "stages": True}
    assert len(ranks.curve(Plan(2, 4, dp_shard=2, pp=2), STEPS, params=params, **WORKLOAD)) == 3
