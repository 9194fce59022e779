"""Units, divisions and work by formulas are those of a trace of the candidate."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from estimators.model import Layout
from estimators.scaling.blueprint import Blueprint, fit_blueprint
from estimators.scaling.example import Example
from estimators.scaling.formula import SAMPLES, Points
from estimators.tracing.tracer import examples, trace
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.sandbox.recipe import recipe_of

EXAMPLE, BLUEPRINT = TypeAdapter(Example), TypeAdapter(Blueprint)
NAMES = ("depth", "width", "heads", SAMPLES)
EXAMPLES = [
    dict(zip(NAMES, values, strict=True))
    for values in [
        *[(5, 32, 2, 2), (6, 128, 4, 3), (7, 512, 8, 5), (5, 256, 16, 8)],
        *[(6, 96, 2, 16), (7, 240, 4, 7), (5, 48, 8, 3), (6, 64, 16, 2)],
    ]
]


def recipe(point: dict[str, int]) -> Any:
    return recipe_of(StdlibGpt({name: point[name] for name in ("depth", "width", "heads")}))


def columns(points: list[dict[str, int]]) -> Points:
    return {name: np.array([point[name] for point in points]) for name in NAMES}


@cache
def blueprint() -> Blueprint:
    seen = [examples(recipe(point), Layout(), point[SAMPLES])[0] for point in EXAMPLES]
    return fit_blueprint(columns(EXAMPLES), [EXAMPLE.validate_json(json.dumps(asdict(example))) for example in seen])


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize(("depth", "width", "heads", "batch"), [(2, 40, 4, 7), (9, 160, 8, 24), (3, 384, 4, 3)])
def test_a_candidate_that_was_never_traced_has_the_units_and_the_work_of_its_trace(
    depth: int, width: int, heads: int, batch: int
) -> None:
    point = {"depth": depth, "width": width, "heads": heads, SAMPLES: 2}
    traced, points = trace(recipe(point), Layout(), batch), columns([point])
    formulas = blueprint().model
    assert formulas is not None
    (predicted,) = formulas.predict(points, blueprint().depth.at(points), np.array([max(batch, 4)]))
    assert predicted.units == traced.units
    assert (predicted.divisions, predicted.work, predicted.num_params) == (
        traced.divisions,
        traced.work,
        traced.num_params,
    )


@pytest.mark.full
def test_a_peak_has_the_parts_of_its_trace() -> None:
    point = {"depth": 6, "width": 160, "heads": 8, SAMPLES: 2}
    traced = trace(recipe(point), Layout(), 16)
    curve = blueprint().costs(columns([point])).curve(0)
    for size in (1, 2, 5, 16):
        parts, traced_parts = curve.parts(size), traced.curve.parts(size)
        assert {name: size for name, size in parts.items() if size} == {
            n: size for n, size in traced_parts.items() if size
        }


def test_it_survives_its_file() -> None:
    assert BLUEPRINT.validate_json(BLUEPRINT.dump_json(blueprint())) == blueprint()
