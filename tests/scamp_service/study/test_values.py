"""Values are read as the user wrote them."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.study.parse import parse_study
from scamp_service.study.spaces.space import Categorical
from tests.studies import study


@pytest.mark.parametrize("value", [True, False, 1, 0, 1.0, 0.0, -3, 2.5, "", "1", "true", "x y"])
def test_values_keep_their_type(value: Any) -> None:
    spec = parse_study(study(fixed={"x": value}, space={"y": {"choice": [value]}}))
    dimension = parse_study(spec.to_json()).space["y"]
    assert isinstance(dimension, Categorical)
    for kept in (spec.fixed["x"], dimension.choice[0]):
        assert type(kept) is type(value) and kept == value
