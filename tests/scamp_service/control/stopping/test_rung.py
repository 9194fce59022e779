from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scamp_service.control.stopping.rung import Rung
from scamp_service.study.objective import Objective


@given(st.lists(st.tuples(st.integers(0, 9), st.floats())), st.floats(allow_nan=False), st.booleans())
def test_a_rung_knows_how_many_are_better_whatever_was_reported_before(
    reports: list[tuple[int, float]], value: float, maximize: bool
) -> None:
    rung = Rung(Objective(metric="m", direction="maximize" if maximize else "minimize"))
    for trial, reported in reports:
        rung.report(trial, reported)
    last = dict(reports)
    finite = [other for other in last.values() if math.isfinite(other)]
    assert len(rung) == len(last)
    assert rung.num_better(value) == sum(other > value if maximize else other < value for other in finite)
