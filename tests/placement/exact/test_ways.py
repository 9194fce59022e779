"""Ways and staged ways are checked, and their bounds hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.oracle import by_trying, draw
from benchmarks.planning.oracle import settings as settings_of
from estimators.axes import Spread
from placement.exact.ways import Costs, Devices, Way, list_staged_ways


def costs(num_units: int = 3, **others: Any) -> Costs:
    names = [
        *("forward_seconds", "backward_seconds", "state_bytes", "kept_bytes", "output_bytes"),
        *("recompute_seconds", "recomputed_kept_bytes", "message_seconds", "update_seconds"),
    ]
    return Costs(**{name: np.ones(num_units) for name in names} | others)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_no_plan_is_faster_than_the_bounds(seed: int) -> None:
    question = draw(seed, num_kinds=1 + seed % 2, most_units=5)
    ways = list_staged_ways(question.ways, question.devices, question.batch)
    bound_seconds = min((way.bound_seconds for way in ways), default=np.inf)
    assert bound_seconds <= by_trying(question) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_all_numbers_of_stages_and_micro_batches_are_examined(seed: int) -> None:
    question = draw(seed, num_kinds=1 + seed % 2)
    ways = list_staged_ways(question.ways, question.devices, question.batch)
    tried = [(way.way, way.num_stages, way.num_micro_batches) for way in ways]
    assert set(tried) == set(settings_of(question)) and len(tried) == len(set(tried))


@pytest.mark.parametrize(
    "others",
    [
        {"forward_seconds": [1.0, -1.0, 1.0]},
        {"kept_bytes": [1.0, np.inf, 1.0]},
        {"transient_bytes": -1.0},
        {"recompute_seconds": [1.0, np.nan, 1.0]},
    ],
    ids=str,
)
def test_costs_are_neither_negative_nor_infinite(others: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must not be negative or infinite"):
        costs(**others)


def test_a_unit_may_never_be_recomputed() -> None:
    assert costs(recompute_seconds=[1.0, np.inf, 1.0]).recompute_seconds[1] == np.inf


def test_all_arrays_of_costs_have_the_same_units() -> None:
    with pytest.raises(ValueError, match="same number of units"):
        costs(kept_bytes=[1.0, 2.0])


def test_a_way_is_the_spread_of_one_stage() -> None:
    with pytest.raises(ValueError, match="pp=2"):
        Way(Spread(pp=2), 1, (costs(),))


def test_all_kinds_of_devices_have_costs_for_the_same_units() -> None:
    with pytest.raises(ValueError, match="same units"):
        Way(Spread(), 1, (costs(3), costs(4)))


def test_a_way_for_some_number_of_stages_is_not_divided_otherwise() -> None:
    ways = list_staged_ways([Way(Spread(tp=2), 1, (costs(),), 3)], [Devices("", 8, 1)], 6)
    assert [way.num_stages for way in ways] == [3]
    assert ways[0].num_ranks == 6
