"""Trials chosen by an expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import Origin, TrialState
from scamp_service.store.table.trial_filter import QUANTITIES, TrialFilter
from tests.values import sized

TRIALS: Sequence[Mapping[str, Any]] = (
    {"number": 0, "state": TrialState.COMPLETED, "value": 0.9, "params": {"lr": 5e-4, "depth": 2, "momentum": 0.9}},
    {"number": 1, "state": TrialState.COMPLETED, "value": 0.8, "params": {"lr": 5e-4, "depth": 4}},
    {"number": 2, "state": TrialState.FAILED, "value": None, "params": {"lr": 1e-2, "depth": 2, "layers": []}},
    {
        "number": 3,
        "state": TrialState.PRUNED,
        "value": float("nan"),
        "params": {"lr": 1.0, "depth": 2, "layers": [{"op": "conv"}, {"op": "and"}]},
    },
)


def chosen(
    source: str,
    trials: Sequence[Mapping[str, Any]] = TRIALS,
    parameters: Sequence[str] | None = ("lr", "depth", "warmup"),
) -> list[int]:
    choice = TrialFilter(source, parameters=parameters)
    kept = choice.matches({name: [trial.get(name) for trial in trials] for name in choice.columns})
    return [trial["number"] for trial, is_kept in zip(trials, kept, strict=True) if is_kept]


@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ("lr < 1e-3 and depth == 2 and state == COMPLETED", [0]),
        ("lr < 1e-3 && depth = 2", [0]),
        ("not (depth == 2)", [1]),
        ("momentum > 0.5", [0]),
        ("momentum > 0.5 or depth == 4", [0, 1]),
        ("momentum == None", [1, 2, 3]),
        ("value >= 0.8", [0, 1]),
        ("value == null", [2, 3]),
        ("state in [FAILED, 'PRUNED']", [2, 3]),
        ("size(layers) > 1 AND layers[1].op == 'and'", [3]),
        ("layers.exists(one, one.op == 'conv')", [3]),
        ("params.lr >= 0.01 and trial.number < 3", [2]),
        ("warmup == null", [0, 1, 2, 3]),
        ("lr == 1", [3]),
    ],
)
def test_trials_are_chosen_by_parameters_and_properties(source: str, numbers: list[int]) -> None:
    assert chosen(source) == numbers


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("lrr < 1", "names 'lrr', which is not known; did you mean lr?"),
        ("foo > 3", "names 'foo', which is not known; it may name parameters and number, "),
        ("lr <", "is not an expression: column 5: Syntax error: it ends where a value is missing"),
        ("lr < 1 2", "extraneous input '2' after the end of it"),
        ("(lr < 1", "missing ')' at its end"),
        ("lr", "gives 0.0005, not true or false"),
        ("lr * depth < 1.0", "mixes types"),
        ("__import__('os').system('true')", "the filter"),
        ("().__class__.__mro__ == 1", "the filter"),
        ("lr < 1 and " * 60 + "true", "longer than 500 characters"),
    ],
)
def test_a_filter_that_says_nothing_is_refused_with_the_reason(source: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=r"^the filter ") as error:
        chosen(source)
    assert words in str(error.value)


def test_a_parameter_hides_a_property_of_its_name() -> None:
    trials = [{"number": 7, "state": TrialState.COMPLETED, "value": 1.0, "params": {"value": 5, "lr": 1}}]
    for source in ("value == 5", "trial.value == 1", "params.value == 5"):
        assert chosen(source, trials, ["lr", "value"]) == chosen(source, trials, None) == [7]


def test_parameters_of_trials_are_read_only_where_an_expression_may_name_them() -> None:
    def columns(source: str, parameters: Sequence[str] | None) -> tuple[str, ...]:
        return TrialFilter(source, parameters=parameters).columns

    assert columns("value > 0.5 and state == COMPLETED", ["lr"]) == ("number", "state", "value")
    for source, parameters in (
        ("value > 0.5", ["value"]),
        ("value > 0.5", None),
        ("lr > 1", []),
        ("params.lr > 1", []),
    ):
        assert "params" in columns(source, parameters)


def test_every_property_is_read_from_the_columns_that_it_names() -> None:
    row = dict.fromkeys([column for quantity in QUANTITIES.values() for column in quantity.columns], None)
    row |= {"sized": sized(), "measured_bytes": 0}
    for quantity in QUANTITIES.values():
        quantity.value(*(row[column] for column in quantity.columns))
    assert chosen("origin == BRANCH", [{"number": 1, "origin": Origin.BRANCH, "params": {}}]) == [1]
