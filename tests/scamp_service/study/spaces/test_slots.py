"""Flat and nested parameters of a space with conditions and repeated blocks."""

from __future__ import annotations

import random
from typing import Any

from scamp_service.study.spaces.slots import Slot, existing_values, flat, nested, slots_of
from tests.scamp_service.search.studies import CONDITIONAL, study

SLOTS = slots_of(study(CONDITIONAL, "random").space)


def candidate(seed: int) -> dict[str, Any]:
    source = random.Random(seed)

    def value_of(slot: Slot) -> Any:
        count = slot.dimension.num_values
        return slot.dimension.value(source.randrange(count)) if count else slot.dimension.low  # type: ignore[union-attr]

    return existing_values(SLOTS, value_of)


def test_flat_names_lead_to_nested_values_and_back() -> None:
    for seed in range(50):
        values = candidate(seed)
        params = nested(SLOTS, values, list(CONDITIONAL))
        assert flat(SLOTS, {**params, "batch": 8}) == values
        assert [name for name in CONDITIONAL if name in params] == list(params)
        assert len(params["layers"]) == values["layers"]


def test_a_parameter_whose_condition_does_not_hold_is_absent() -> None:
    for seed in range(50):
        params = nested(SLOTS, candidate(seed), list(CONDITIONAL))
        assert ("momentum" in params) == (params["optimizer"] == "sgd")
        assert ("nesterov" in params) == (params.get("momentum") == 0.9)
        for layer in params["layers"]:
            assert ("kernel" in layer) == (layer["op"] == "conv")
            assert ("rate" in layer) == (layer["op"] in ("conv", "drop") and params["optimizer"] is not None)


def test_conditions_come_before_what_depends_on_them_whatever_the_order_of_the_space() -> None:
    space = study(dict(reversed(CONDITIONAL.items())), "random").space
    names = [slot.name for slot in slots_of(space)]
    assert names.index("optimizer") < names.index("momentum") < names.index("nesterov")
    assert sorted(names) == sorted(slot.name for slot in SLOTS)
