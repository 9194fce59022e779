"""Legal plans for property tests."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import strategies as st

from estimators.axes import AXES, SCHEDULES
from estimators.model import Plan

VALUES: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(1, 3),
    bool: st.booleans(),
    str: st.sampled_from(SCHEDULES),
    tuple: st.lists(st.integers(0, 3), max_size=3).map(tuple),
}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of all legal combinations: each axis in turn takes a value if the plan stays legal with it."""
    values: dict[str, Any] = {"micro_batch": draw(st.integers(1, 4)), "num_micro_batches": draw(st.integers(1, 4))}
    for name in draw(st.permutations(sorted(AXES))):
        tried = {**values, name: draw(VALUES[type(AXES[name].default)])}
        with contextlib.suppress(ValueError):
            Plan(**tried)
            values = tried
    return Plan(**values)
