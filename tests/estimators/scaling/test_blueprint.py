"""Peaks by formulas against those of whole models that were traced."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from estimators.model import Layout
from estimators.scaling.blueprint import Blueprint, fit_blueprint
from estimators.scaling.example import Example, NoBlueprint
from estimators.scaling.formula import RANKS, SAMPLES, Points
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.tracer import examples, trace_peak
from workloads.parallel.apply import apply_plan

pytestmark = pytest.mark.full

EXAMPLE, BLUEPRINT = TypeAdapter(Example), TypeAdapter(Blueprint)

Point = dict[str, int]
SIZES = [(8, 12), (96, 40), (24, 160), (33, 7), (64, 64), (16, 90), (50, 160), (96, 7), (40, 20)]
EXAMPLES: list[Point] = [
    {"width": width, "inner": inner, "depth": 5 + number % 3, SAMPLES: size, RANKS: ranks}
    for number, ((width, inner), size, ranks) in enumerate(
        zip(SIZES, (2, 5, 3, 16, 8, 2, 7, 3, 9), (2, 8, 4, 2, 8, 4, 8, 2, 4), strict=True)
    )
]


class Net(nn.Module):
    def __init__(self, width: int, inner: int, depth: int, extra: int = 0) -> None:
        super().__init__()
        self.first = nn.Linear(11, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner + extra), nn.GELU(), nn.Linear(inner + extra, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Lopsided(Net):
    """Wide models keep one buffer more."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x.exp() * 2 if self.first.out_features > 60 else x


def recipe(point: Point, build: type[Net], optimizer: Any, extra: int = 0) -> Recipe:
    def step(model: nn.Module, optimizer: Any, batches: Any, num: int) -> None:
        for batch in batches:
            model(batch).square().mean().backward()
            del batch
        optimizer.step()
        optimizer.zero_grad()

    return Recipe(
        build_model=lambda: build(point["width"], point["inner"], point["depth"], extra),
        make_batch=lambda size: torch.zeros(size, 11),
        blocks=lambda model: list(model.get_submodule("layers").children()),
        apply_plan=apply_plan,
        optimizer=lambda model, layout, mesh: optimizer(model.parameters()),
        begin_step=lambda step, optimizer: None,
        train_step=step,
    )


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def foreach(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, foreach=True)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def columns(points: list[Point], layout: Layout) -> Points:
    names = ["width", "inner", "depth", SAMPLES] + [RANKS] * (layout.dp_shard > 1)
    return {name: np.array([point[name] for point in points]) for name in names}


def of(point: Point, layout: Layout) -> Layout:
    return replace(layout, dp_shard=point[RANKS] if layout.dp_shard > 1 else 1)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Trace once: in the first trace of a process torch makes tensors that it then keeps."""
    examples(recipe(EXAMPLES[0], Net, adam), Layout(), 2)


@cache
def seen(layout: Layout, build: type[Net] = Net, optimizer: Any = adam) -> list[Example]:
    pairs = [examples(recipe(p, build, optimizer), of(p, layout), p[SAMPLES]) for p in EXAMPLES]
    return [EXAMPLE.validate_json(json.dumps(asdict(pair[layout.accumulate]))) for pair in pairs]


def predicted_bytes(blueprint: Blueprint, layout: Layout, point: Point) -> int:
    return blueprint.costs(columns([point], layout)).curve(0).peak_bytes(point[SAMPLES])


@pytest.mark.parametrize(
    ("layout", "optimizer"),
    [
        (Layout(), adam),
        (Layout(), foreach),
        (Layout(recompute=True, accumulate=True), sgd),
        (Layout(dp_shard=2, recompute=True, accumulate=True), adam),
    ],
    ids=["single", "foreach", "recompute-accumulate-sgd", "fsdp-recompute-accumulate"],
)
def test_the_peak_of_a_candidate_that_was_never_traced_is_that_of_its_trace(layout: Layout, optimizer: Any) -> None:
    blueprint = fit_blueprint(columns(EXAMPLES, layout), seen(layout, optimizer=optimizer))
    assert BLUEPRINT.validate_json(BLUEPRINT.dump_json(blueprint)) == blueprint
    for width, inner, depth, size, ranks in [
        (8, 100, 2, 1, 8),
        (77, 13, 3, 6, 2),
        (90, 159, 9, 40, 4),
        (31, 8, 6, 1, 2),
    ]:
        point = {"width": width, "inner": inner, "depth": depth, SAMPLES: size, RANKS: ranks}
        assert blueprint.covers(columns([point], layout)).all()
        assert blueprint.predicts(columns([point], layout)).all()
        traced = trace_peak(recipe(point, Net, optimizer), of(point, layout), size)
        assert predicted_bytes(blueprint, layout, point) == traced.fixed_bytes, point


@pytest.mark.sample
def test_the_largest_batch_is_the_largest_whose_peak_is_within_the_capacity() -> None:
    blueprint = fit_blueprint(columns(EXAMPLES, Layout()), seen(Layout()))
    curve = blueprint.costs(columns([EXAMPLES[1]], Layout())).curve(0)
    for size in (1, 2, 3, 17):
        assert curve.largest_batch(curve.peak_bytes(size)) == size
        assert curve.largest_batch(curve.peak_bytes(size) - 1) == size - 1


def test_candidates_beyond_the_examples_are_not_covered() -> None:
    blueprint = fit_blueprint(columns(EXAMPLES, Layout()), seen(Layout()))
    inside = {"width": 50, "inner": 50, "depth": 40, SAMPLES: 1000, RANKS: 1}
    points = columns([inside, {**inside, "width": 97}, {**inside, "inner": 6}], Layout())
    assert blueprint.covers(points).tolist() == [True, False, False]
    assert blueprint.predicts(columns([inside, {**inside, "depth": 1}], Layout())).tolist() == [True, False]


def test_shards_that_are_rounded_up_as_in_no_example_are_not_told_of() -> None:
    layout = Layout(dp_shard=2)
    even = [{**point, "inner": 8 * (1 + point["inner"] % 17)} for point in EXAMPLES]
    pairs = [examples(recipe(point, Net, sgd), of(point, layout), point[SAMPLES]) for point in even]
    blueprint = fit_blueprint(columns(even, layout), [traced for traced, _ in pairs])
    point = {"width": 33, "inner": 64, "depth": 3, SAMPLES: 4, RANKS: 8}
    points = columns([point, {**point, "inner": 66}, {**point, "inner": 66, RANKS: 2}], layout)
    assert blueprint.predicts(points).tolist() == [True, False, True]


def test_models_that_run_different_operations_are_no_blueprint() -> None:
    with pytest.raises(NoBlueprint, match="same operations"):
        fit_blueprint(columns(EXAMPLES, Layout()), seen(Layout(), Lopsided))


def test_a_size_that_follows_from_no_parameter_is_found_out() -> None:
    odd = [
        examples(recipe(p, Net, sgd, extra=number % 2), Layout(), p[SAMPLES])[0] for number, p in enumerate(EXAMPLES)
    ]
    with pytest.raises(NoBlueprint, match="does not follow from the parameters"):
        fit_blueprint(columns(EXAMPLES, Layout()), odd)
