"""Parameters as axes of a chart."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.study.spaces.parameter_axes import (
    MISSING,
    axes_of,
    axis_value,
    fitted_axis,
    leaves_in,
    names_in,
    value_at,
)

SPACE = {
    "lr": {"low": 1e-4, "high": 0.1, "log": True},
    "norm": {"choice": [None, "layer", True, 1.5]},
    "layers": {"repeat": {"low": 0, "high": 2}, "each": {"width": {"ordinal": [16, 32]}}},
}
PARAMS = {"lr": 0.01, "norm": None, "layers": [{"width": 32}, {"width": 16, "inner": [{"op": "a"}]}], "a.b": 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.01),
        ("norm", None),
        ("layers.0.width", 32),
        ("layers.1.inner.0.op", "a"),
        ("layers.2.width", MISSING),
        ("layers.x.width", MISSING),
        ("lr.0", MISSING),
        ("nothing", MISSING),
        ("a.b", 3),
    ],
)
def test_a_flat_name_finds_its_value(name: str, value: Any) -> None:
    assert value_at(PARAMS, name) == value


def test_every_value_has_a_name() -> None:
    names = list(names_in(PARAMS))
    assert names[:4] == ["lr", "norm", "layers", "layers.0.width"]
    assert "layers" not in leaves_in(PARAMS) and "layers.1.inner.0.op" in leaves_in(PARAMS)


def test_axes_follow_the_space_and_missing_values_have_no_place() -> None:
    axes = axes_of(SPACE)
    assert list(axes) == ["lr", "norm", "layers", "layers.0.width", "layers.1.width"]
    assert (axes["lr"].log, axes["lr"].low, axes["lr"].high) == (True, 1e-4, 0.1)
    assert [axes["norm"].place(value) for value in (None, "layer", True, 1.5, 1, MISSING)] == [0, 1, 2, 3, None, None]
    assert [axes["layers"].place(axis_value({"layers": layers}, "layers")) for layers in ([], [{"width": 16}])] == [
        0,
        1,
    ]
    assert axes_of({}) == {} and axes_of({"lr": {"wrong": 1}}) == {}


def test_an_axis_grows_with_values_that_the_space_does_not_have() -> None:
    assert fitted_axis(axes_of(SPACE)["norm"], "norm", ["batch", MISSING]).choices == (
        None,
        "layer",
        True,
        1.5,
        "batch",
    )
    assert fitted_axis(axes_of(SPACE)["lr"], "lr", [0.5]).high == 0.5
    of_others = fitted_axis(None, "lr", [1e-5, 0.1])
    assert (of_others.log, of_others.low, of_others.choices) == (True, 1e-5, None)
    assert fitted_axis(None, "x", ["a", MISSING, 1, "a"]).choices == ("a", 1)
    assert fitted_axis(None, "x", [MISSING]).choices == ()
