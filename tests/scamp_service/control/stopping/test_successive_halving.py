"""Rungs that fall on reports, and verdicts that the few, the equal and the diverged can rely on."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scamp_service.control.stopping import rule_of
from scamp_service.control.stopping.rule import Continue, Stop, Verdict
from scamp_service.control.stopping.rung import Rung
from scamp_service.control.stopping.successive_halving import SuccessiveHalving
from scamp_service.study.objective import Objective
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from tests.scamp_service.control.stopping.rungs import rung_of
from tests.values import trial


def study(steps: int, every: int | None = None, **stopping: Any) -> StudySpec:
    return parse_study(
        {
            "name": "s",
            "workload": "w",
            "objective": {"metric": "m"},
            "space": {"x": {"low": 0.0, "high": 1.0}},
            "budget": {"steps": steps, "report_every": every},
            "stopping": stopping,
        }
    )


def verdict(values: list[float], *, eta: int = 3, maximize: bool = True, step: int = 30) -> Verdict:
    """The verdict at step 30 on the last of ``values`` to arrive, which has trained for ``step`` steps."""
    return judge(rung(dict(enumerate(values)), maximize), len(values) - 1, eta, step)


def rung(values: dict[int, float], maximize: bool = True) -> Rung:
    return rung_of(Objective(metric="m", direction="maximize" if maximize else "minimize"), values)


def judge(peers: Rung, number: int, eta: int, step: int = 30) -> Verdict:
    return SuccessiveHalving((30,), eta).judge(trial(number=number, step=step), 30, {30: peers}, is_last=False)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (study(100), (10, 30, 90)),
        (study(100, 10, min_steps=5), (10, 20, 50)),
        (study(100, 7, min_steps=7), (7, 21, 63)),
        (study(100, 30, min_steps=10), (30, 90)),
        (study(90, 10, min_steps=10), (10, 30)),
        (study(100, 10, min_steps=8, reduction_factor=2), (10, 20, 40, 70)),
        (study(100, rule="none"), ()),
        (study(1), ()),
        (study(10, 10), ()),
    ],
)
def test_rungs_are_reports_below_the_last_step(spec: StudySpec, expected: tuple[int, ...]) -> None:
    assert rule_of(spec).rungs == expected


@given(st.integers(1, 10_000), st.integers(1, 300), st.integers(1, 300), st.integers(2, 8))
def test_every_rung_is_a_report_no_earlier_than_asked_and_below_the_end(
    steps: int, every: int, first: int, eta: int
) -> None:
    if every > steps or first >= steps:
        return
    rungs = rule_of(study(steps, every, min_steps=first, reduction_factor=eta)).rungs
    assert list(rungs) == sorted(set(rungs))
    assert all(rung % every == 0 and first <= rung < steps for rung in rungs)


def test_the_best_third_goes_on_and_the_rest_stops() -> None:
    arrived = [0.5, 0.6, 0.7, 0.8, 0.9, 0.4]
    assert verdict([*arrived, 0.95]) == Continue(
        "continues after step 30: 0.95 is number 1 of 7, and the best 3 continue"
    )
    assert isinstance(verdict([*arrived, 0.75]), Continue)
    assert verdict([*arrived, 0.65]) == Stop("stopped at step 30: 0.65 is number 4 of 7, and the best 3 continue")
    assert verdict([0.5, 0.6, 0.55]) == Stop(
        "stopped at step 30: 0.55 is number 2 of 3, and only the best one continues"
    )


def test_a_trial_that_is_judged_late_is_stopped_where_it_is() -> None:
    late = "0.55 was number 2 of 3 at step 30, and only the best one continues"
    assert verdict([0.5, 0.6, 0.55], step=90) == Stop(f"stopped at step 90: {late}")
    assert verdict([0.5, 0.6, math.nan], step=90).reason.startswith(
        "stopped at step 90: the objective was nan at step 30"
    )
    assert verdict([0.9], step=90).reason.startswith("continues after step 90: 0.9 was number 1 of 1 at step 30; no")


def test_smaller_is_better_when_minimizing() -> None:
    assert isinstance(verdict([3.0, 2.0, 1.0], maximize=False), Continue)
    assert isinstance(verdict([1.0, 2.0, 3.0], maximize=False), Stop)


def test_nobody_stops_before_there_are_enough_to_compare_with() -> None:
    assert verdict([0.1]) == Continue(
        "continues after step 30: 0.1 is number 1 of 1; no trial stops until 3 have reported"
    )
    assert isinstance(verdict([0.9, 0.1]), Continue)
    assert isinstance(verdict([0.9, 0.8, 0.1]), Stop)
    assert isinstance(verdict([0.9, 0.1], eta=2), Stop)


def test_equal_values_are_treated_alike() -> None:
    assert isinstance(verdict([0.1] * 9), Continue)
    assert isinstance(verdict([0.2, 0.2, 0.2, 0.2, 0.1, 0.2]), Continue)
    assert isinstance(verdict([0.2, 0.2, 0.2, 0.2, 0.2, 0.1]), Stop)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("maximize", [True, False])
def test_a_value_that_is_not_finite_stops_at_once_and_counts_as_the_worst(broken: float, maximize: bool) -> None:
    assert isinstance(verdict([broken], maximize=maximize), Stop)
    reason = verdict([1.0, 2.0, broken], maximize=maximize).reason
    assert f"the objective is {broken}" in reason
    assert "stopping.min_steps" in reason
    assert "training" not in reason
    assert isinstance(verdict([broken, broken, 1.0], maximize=maximize), Continue)


@given(st.lists(st.floats(), min_size=1, max_size=40), st.integers(2, 5), st.booleans(), st.integers(0, 2**31))
def test_the_verdict_follows_from_the_values_and_not_from_the_order_of_arrival(
    values: list[float], eta: int, maximize: bool, seed: int
) -> None:
    last = len(values) - 1
    items = list(enumerate(values))
    random.Random(seed).shuffle(items)
    shuffled = judge(rung(dict(items), maximize), last, eta)
    assert shuffled == verdict(values, eta=eta, maximize=maximize)
    finite = [value for value in values if math.isfinite(value)]
    best = (max if maximize else min)(finite, default=None)
    if best is not None and values[last] == best:
        assert isinstance(shuffled, Continue), "the best so far always goes on"


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=60, unique=True), st.integers(2, 4))
def test_of_distinct_values_one_in_reduction_factor_goes_on(values: list[float], eta: int) -> None:
    peers = dict(enumerate(values))
    kept = sum(isinstance(judge(rung(peers), peer, eta), Continue) for peer in peers)
    assert kept == (len(values) if len(values) < eta else math.ceil(len(values) / eta))
