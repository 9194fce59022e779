"""A rung ranks trials independently of the order of reports."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scamp_service.study.objective import Objective
from tests.scamp_service.control.stopping.rungs import rung_of


@given(st.lists(st.tuples(st.integers(0, 9), st.floats())), st.floats(allow_nan=False), st.booleans())
def test_a_rung_knows_how_many_are_better_whatever_was_reported_before(
    reports: list[tuple[int, float]], value: float, maximize: bool
) -> None:
    rung = rung_of(Objective(metric="m", direction="maximize" if maximize else "minimize"))
    for trial, reported in reports:
        rung.report(trial, (reported,))
    rung.report(10, (value,))
    last = {**dict(reports), 10: value}
    finite = [other for other in last.values() if math.isfinite(other)]
    assert len(rung) == len(last)
    if not math.isfinite(value):
        assert rung.num_better(10) == len(finite)
        return
    assert rung.num_better(10) == sum(other > value if maximize else other < value for other in finite)
