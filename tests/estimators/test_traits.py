"""Traits of a candidate's code, and the plans that they rule out."""

from __future__ import annotations

from dataclasses import fields

import pytest

from estimators.model import Layout, Plan
from estimators.traits import NO_TRAITS, Traits

SINGLE = (Plan(8), Plan(8, recompute=True), Plan(8, co_shard=2, recompute=True))
OTHERS = (
    Plan(4, num_micro_batches=2),
    Plan(4, dp_shard=2),
    Plan(4, dp_replicate=2),
    Plan(4, dp_replicate=2, zero1=True),
    Plan(4, dp_replicate=2, adasum=True),
    Plan(8, tp=2),
    Plan(8, spatial=2),
    Plan(4, pp=2, num_micro_batches=2),
    Plan(4, pp=2, num_micro_batches=2, schedule="interleaved"),
)


@pytest.mark.parametrize("name", [item.name for item in fields(Traits) if item.metadata["ruled_out"]])
def test_a_trait_that_rules_out_plans_leaves_one_rank_and_refuses_some_plan_in_its_words(name: str) -> None:
    traits = Traits(**{name: "it does so"})
    refusals = [next(filter(None, map(traits.refusal, plan.layouts)), "") for plan in OTHERS]
    assert not any(traits.refusal(layout) for plan in SINGLE for layout in plan.layouts)
    assert any(refusals) and all(words.startswith("it does so") for words in refusals if words)
    assert not any(NO_TRAITS.refusal(layout) for plan in OTHERS for layout in plan.layouts)


def test_a_refusal_says_what_the_code_does_why_that_matters_and_what_to_use() -> None:
    traits = Traits(has_phases="the workload trains in phases")
    assert traits.refusal(Layout(pp=2, num_micro_batches=2)) == (
        "the workload trains in phases, and a pipeline runs one loss through its stages: use plans with pp=1"
    )
    assert "ZeRO-1 divides" in traits.refusal(Layout(dp_replicate=2, zero1=True))
    assert not traits.refusal(Layout(dp_shard=2))


def test_each_trait_is_listed_with_the_plans_that_it_rules_out() -> None:
    traits = Traits(has_phases="it has phases", has_own_optimizer="it has Muon", evaluates_whole="it may")
    assert traits.words == ["no pipelines, ZeRO-1, Adasum: it has phases", "no ZeRO-1, pipelines: it has Muon"]


def test_traits_that_were_found_first_keep_their_words() -> None:
    first = Traits(couples_samples="by its trace")
    other = Traits(couples_samples="by a training", illustrates="it does")
    assert first | other == Traits(couples_samples="by its trace", illustrates="it does")
