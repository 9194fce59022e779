"""Traces of gangs, made from the recipe of a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from estimators.model import Layout, Plan
from estimators.trace import Trace
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.session.session import Session
from estimators.tracing.tracer import examples, trace
from workloads.loading import load_workload
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.protocol import hints
from workloads.sandbox.recipe import recipe_of


@pytest.mark.parametrize("plan", [Plan(2, dp_shard=2), Plan(2, 2, pp=2), Plan(2, tp=2)], ids=str)
def test_the_messages_of_a_gang_are_no_random_draws_of_the_model(plan: Plan) -> None:
    """A model that draws is traced four times."""
    recipe = recipe_of(StdlibGpt({"depth": 2, "width": 16, "heads": 2, "context": 8}))
    assert not _has_drawn(recipe, Layout())
    assert not _has_drawn(recipe, plan.layout)


def _has_drawn(recipe: Recipe, layout: Layout) -> bool:
    with Session(recipe, layout) as session:
        session.spread()
        session.step(2)
        return session.has_drawn


class Hinted(StdlibGpt):
    def build_model(self) -> nn.Module:
        return hints.replica(super().build_model())


def test_a_model_with_hints_is_no_example_for_formulas() -> None:
    params = {"depth": 5, "width": 16, "heads": 2, "context": 8}
    assert len(examples(recipe_of(StdlibGpt(params)), Layout(), 2)) == 2
    with pytest.raises(ValueError, match="the model has hints"):
        examples(recipe_of(Hinted(params)), Layout(), 2)


@pytest.mark.full
def test_clipping_takes_no_memory_and_an_average_that_of_the_weights_also_of_stretched_blocks() -> None:
    layout, sizes = Layout(dp_shard=2), {"depth": 6, "width": 32, "heads": 2, "context": 8}

    def traced(**params: Any) -> Trace:
        return trace(recipe_of(StdlibGpt({**sizes, **params})), layout, 4)

    plain, clipped, averaged = traced(), traced(clip_norm=1.0), traced(ema_decay=0.9, clip_norm=1.0)
    assert plain.equal_blocks
    assert clipped.curve.peak_bytes(4) == plain.curve.peak_bytes(4)
    more = averaged.curve.peak_bytes(4) - plain.curve.peak_bytes(4)
    assert more == pytest.approx(plain.num_params * 4 / 2, rel=0.01)


@pytest.mark.full
def test_averages_of_buffers_take_the_memory_of_these() -> None:
    folder = Path(__file__).parents[3] / "benchmarks" / "features" / "workloads"
    make, width, depth = load_workload("centred.py:Centred", folder), 64, 6

    def peak(**params: Any) -> int:
        recipe = recipe_of(make({"width": width, "depth": depth, "ema_decay": 0.9, "optimizer": "SGD", **params}))
        return trace(recipe, Layout(), 4).curve.peak_bytes(4)

    assert peak(average_buffers=True) - peak() == depth * width * 4
