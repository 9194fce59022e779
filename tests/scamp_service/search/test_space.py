"""Parameters as Optuna has them, and back; points of a grid."""

from __future__ import annotations

import itertools

from scamp_service.search.space import Space
from tests.scamp_service.search.studies import GRID, SPACE, study


def test_a_stepped_float_is_an_index_for_optuna_and_an_exact_decimal_in_a_candidate() -> None:
    space = Space(study({"x": {"low": 0.1, "high": 0.75, "step": 0.1}}).space)
    indices = iter(range(7))
    values = [space.sampled(lambda *_: next(indices))["x"] for _ in range(7)]
    assert values == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert [space.encoded({"x": value, "batch": 8}) for value in values] == [{"x": index} for index in range(7)]


def test_a_users_values_get_the_type_of_their_range() -> None:
    exact = Space(study(SPACE).space).exact({"lr": 1, "depth": 2, "act": False})
    assert [(name, type(value)) for name, value in exact.items()] == [
        ("lr", float),
        ("depth", int),
        ("act", bool),
    ]


def test_points_of_a_grid_are_numbered_as_their_product_is() -> None:
    space = Space(study(GRID).space)
    points = [space.point(number) for number in range(space.num_points)]
    product = itertools.product("xy", (1, 3, 5), (0.0, 0.1, 0.2, 0.3))
    assert points == [dict(zip("abc", values, strict=True)) for values in product]
    assert [space.number_of({**point, "batch": 8}) for point in points] == list(range(24))
    assert space.number_of({"a": "x", "b": 2, "c": 0.1}) is None
