"""Expressions: what they can say, and that they can do nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from scamp_service.study.spaces.constraints import ParameterConstraints
from scamp_service.study.spaces.expression import Expression
from tests.calls import num_calls

PARAMS: dict[str, Any] = {
    "width": 64,
    "heads": 8,
    "lr": 0.001,
    "optimizer": "sgd",
    "nothing": None,
    "kernel": [3, 5],
    "layers": [{"op": "conv", "width": 16}, {"op": "skip"}],
}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("width % heads == 0", True),
        ("width <= 64.5 && lr < 1", True),
        ("double(width) * lr < 0.01", False),
        ("optimizer in ['sgd', 'adam']", True),
        ("nothing == null", True),
        ("layers.all(layer, !has(layer.width) || layer.width % heads == 0)", True),
        ("layers.filter(layer, layer.op == 'conv').size() >= 2", False),
        ("sum(kernel) == 8 && max(kernel) == 5 && min(width, heads) == 8 && abs(-3) == 3", True),
        ("layers[0].width", 16),
    ],
)
def test_it_computes_with_parameters(source: str, value: Any) -> None:
    assert Expression(source)(PARAMS) == value


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("width / 0", "division by zero in CEL expression"),
        ("lr * width", "it mixes types; if these are whole numbers and floats, convert one: double(width) * lr"),
        ("layers[7].op == 'conv'", "index out of bounds: 7"),
        ("layers[1].width > 2", "there is no 'width'"),
        ("max(optimizer, 2) > 1", "Function 'max' error"),
        ("depth > 2", "Undefined variable or function: 'depth'"),
        ("__import__('os').system('true')", "Undefined variable or function: '__import__'"),
        ("optimizer.__class__ == 1", ""),
        ("open('/etc/passwd')", "Undefined variable or function: 'open'"),
    ],
)
def test_what_has_no_value_is_said_in_one_line(source: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        Expression(source)(PARAMS)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_names_that_it_reads_do_not_include_those_of_macros() -> None:
    assert Expression("layers.all(layer, layer.width % heads == 0)").names == {"layers", "heads"}


@pytest.mark.parametrize(
    "source", ["(" * 240 + "1" + ")" * 240, "!" * 499 + "true", "[" * 245 + "]" * 245, "1+" * 249 + "1"]
)
def test_deep_nesting_neither_crashes_nor_takes_long(source: str) -> None:
    def evaluate() -> None:
        with suppress(ValueError):
            Expression(source)({})

    assert num_calls(evaluate) < 1_000_000


def test_a_constraint_that_names_an_absent_parameter_holds() -> None:
    constraints = ParameterConstraints(["momentum < 0.5", "width > 100"])
    assert [constraint.source for constraint in constraints.broken(PARAMS)] == ["width > 100"]
    assert [constraint.source for constraint in constraints.broken({"momentum": 0.9})] == ["momentum < 0.5"]
