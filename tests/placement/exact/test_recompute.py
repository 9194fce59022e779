"""No other set of units saves enough bytes in less time."""

from __future__ import annotations

from itertools import combinations
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.exact.recompute import Recompute
from placement.exact.ways import Costs

NEEDS = st.integers(0, 120).map(lambda quarters: quarters / 4)  # bytes of a micro-batch; some in flight share a need
UNITS = st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.0, 1.0, 2.0, 2.5, 7.0, inf]))


def costs_of(units: list[tuple[int, int, float]]) -> Costs:
    """Units by bytes kept, bytes kept if recomputed, and seconds of recompute."""
    kept, recomputed, seconds = np.array(units, dtype=float).T
    zero = np.zeros(len(units))
    return Costs(
        forward_seconds=zero,
        backward_seconds=zero,
        state_bytes=zero,
        kept_bytes=kept,
        output_bytes=zero,
        recompute_seconds=seconds,
        recomputed_kept_bytes=recomputed,
        message_seconds=zero,
        update_seconds=zero,
    )


def saved_and_seconds(costs: Costs, units: tuple[int, ...]) -> tuple[float, float]:
    chosen = list(units)
    saved = costs.kept_bytes[chosen] - costs.recomputed_kept_bytes[chosen]
    return float(saved.sum()), float(costs.recompute_seconds[chosen].sum())


def by_trying(costs: Costs, start: int, end: int, need_bytes: float) -> float:
    sets = (units for size in range(end - start + 1) for units in combinations(range(start, end), size))
    pairs = [saved_and_seconds(costs, units) for units in sets]
    return min((seconds for saved, seconds in pairs if saved >= need_bytes), default=inf)


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(st.lists(UNITS, min_size=1, max_size=6), st.data())
def test_no_set_of_units_saves_enough_in_less_time(units: list[tuple[int, int, float]], data: st.DataObject) -> None:
    costs = costs_of(units)
    if data.draw(st.booleans()):
        costs = costs_of([units[0]] * len(units))
    starts = np.arange(len(units))
    ends = np.minimum(starts + np.arange(1, len(units) + 1)[:, None], len(units))
    need = np.array(data.draw(st.lists(NEEDS, min_size=2, max_size=2)))[:, None, None] + np.zeros(ends.shape)
    recompute = Recompute(costs)
    least_times = recompute.least_seconds(starts, ends, need)
    for place, row, start in np.ndindex(least_times.shape):
        end, least = int(ends[row, start]), float(least_times[place, row, start])
        needed = float(need[place, row, start])
        assert least == pytest.approx(by_trying(costs, start, end, needed))
        if least < inf:
            saved, seconds = saved_and_seconds(costs, recompute.units(start, end, needed))
            assert saved >= needed
            assert seconds == pytest.approx(least)


def test_of_equal_units_the_first_ones_are_recomputed() -> None:
    recompute = Recompute(costs_of([(9, 1, inf), (9, 1, 1.0), (9, 1, 1.0), (9, 1, 1.0)]))
    assert recompute.units(0, 4, 9) == (1, 2)


def test_forgotten_fronts_are_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement.exact.recompute.MOST_KEPT", 1)
    costs = costs_of([(9, 1, 3.0), (8, 1, 2.0), (7, 1, 1.0), (6, 1, 0.5)])
    saved, seconds = saved_and_seconds(costs, Recompute(costs).units(0, 4, 14))
    assert saved >= 14
    assert seconds == by_trying(costs, 0, 4, 14)
