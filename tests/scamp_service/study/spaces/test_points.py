"""Points of a grid with conditions: each valid combination once."""

from __future__ import annotations

import json

from scamp_service.study.spaces.points import Points
from scamp_service.study.spaces.slots import Slot, existing_values, slots_of
from scamp_service.study.values import Params
from tests.scamp_service.search.studies import CONDITIONAL, study

SPACE = {name: CONDITIONAL[name] for name in ("optimizer", "momentum", "nesterov")} | {
    "layers": {
        "repeat": {"low": 0, "high": 2},
        "each": {"op": {"choice": ["conv", "skip"]}, "kernel": {"choice": [[1, 1], [3, 3]], "when": {"op": "conv"}}},
    },
}
SLOTS = slots_of(study(SPACE, "random").space)


def every_combination(slots: tuple[Slot, ...], values: Params) -> list[Params]:
    """By trying every value of each slot in turn."""
    if not slots:
        return [values]
    slot, later = slots[0], slots[1:]
    if not slot.exists(values):
        return every_combination(later, values)
    count = slot.dimension.num_values
    assert count is not None
    lists = (every_combination(later, {**values, slot.name: slot.dimension.value(n)}) for n in range(count))
    return [combination for combinations in lists for combination in combinations]


def test_points_are_the_valid_combinations_in_order() -> None:
    points, expected = Points(SLOTS), every_combination(SLOTS, {})
    assert points.count == len(expected) == (2 + 2 + 2) * (1 + 3 + 9)
    assert [points.point(number) for number in range(points.count)] == expected
    assert [points.number_of(params) for params in expected] == list(range(points.count))
    assert len({json.dumps(params) for params in expected}) == points.count


def test_what_is_not_on_the_grid_has_no_number() -> None:
    points, point = Points(SLOTS), Points(SLOTS).point(0)
    assert points.number_of({**point, "layers.5.op": "conv"}) == 0, "no slot has this name"
    assert points.number_of({**point, "optimizer": True}) is None
    assert points.number_of({**point, "layers.0.op": "conv"}) is None, "a block that does not exist"
    assert points.number_of({}) is None


def test_counting_stops_above_the_most() -> None:
    huge = {"a": {"low": 0, "high": 2**50}, "b": {"choice": [1], "when": {"a": 3}}}
    assert Points(slots_of(study(huge, "random").space), 1000).count > 1000
    assert existing_values(SLOTS, lambda slot: slot.dimension.value(0)) == Points(SLOTS).point(0)
