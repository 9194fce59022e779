"""Numbers that YAML 1.1 takes for text are numbers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scamp.yaml_numbers import as_number, with_numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-3", 0.003), ("1e3", 1000.0), ("-1.5E2", -150.0), ("e3", "e3"), ("1e", "1e"), ("12", 12), ("true", True)],
)
def test_an_exponent_makes_a_number_with_and_without_a_point_or_a_sign(text: str, value: Any) -> None:
    assert as_number(yaml.safe_load(text)) == value and type(as_number(yaml.safe_load(text))) is type(value)


def test_values_in_lists_and_mappings_are_numbers_too() -> None:
    read = yaml.safe_load("[{lr: 1e-3, kind: sgd}, [2e2, null]]")
    assert with_numbers(read) == [{"lr": 0.001, "kind": "sgd"}, [200.0, None]]
