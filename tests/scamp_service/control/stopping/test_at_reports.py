"""Median, percentile, patience and threshold, on curves whose verdicts a reader can check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scamp_service.control.stopping import rule_of
from scamp_service.control.stopping.rule import Complete, Continue, Stop, Verdict
from scamp_service.study.objective import Objective
from scamp_service.study.parse import parse_study
from tests.scamp_service.control.stopping.rungs import rung_of
from tests.studies import study
from tests.values import trial

BETTER = {0: [0.6, 0.7], 1: [0.5, 0.8], 2: [0.4, 0.9]}


def verdict(
    options: Any, curve: Sequence[float], others: Mapping[int, Sequence[float]] = {}, direction: str = "maximize"
) -> Verdict:
    """The verdict on a trial with this curve, at its last report, beside others; reports are 10 steps apart."""
    objective = {"metric": "m", "direction": direction}
    spec = parse_study(study(objective=objective, budget={"steps": 200, "report_every": 10}, stopping=options))
    curves = {9: curve, **others}
    reported = {
        step: rung_of(spec.objective, {n: c[i] for n, c in curves.items() if i < len(c)})
        for i, step in enumerate(rule_of(spec).rungs)
    }
    rung = 10 * len(curve)
    return rule_of(spec).judge(trial(number=9, step=rung), rung, reported, is_last=False)


@pytest.mark.parametrize(
    ("curve", "kind"), [([0.3, 0.79], Stop), ([0.3, 0.8], Continue), ([0.85, 0.1], Continue), ([0.1, math.nan], Stop)]
)
def test_a_trial_stops_whose_best_is_below_the_median_of_the_others(curve: list[float], kind: type) -> None:
    judged = verdict({"rule": "median", "min_trials": 3}, curve, BETTER)
    assert isinstance(judged, kind) and ("0.8" in judged.reason or not math.isfinite(curve[-1]))
    assert isinstance(verdict({"rule": "median", "min_trials": 4}, [0.1, 0.1], BETTER), Continue)


def test_a_percentile_is_counted_from_the_best_in_either_direction() -> None:
    best_third = {"rule": "percentile", "percentile": 25, "min_trials": 1}
    assert isinstance(verdict(best_third, [0.3, 0.84], BETTER), Stop)  # 0.85 is a quarter of the way from 0.9 to 0.7
    assert isinstance(verdict(best_third, [0.3, 0.86], BETTER), Continue)
    assert isinstance(verdict(best_third, [0.3, 0.74], BETTER, "minimize"), Continue)
    assert isinstance(verdict(best_third, [0.8, 0.76], BETTER, "minimize"), Stop)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.floats(1, 99), st.booleans())
def test_percentiles_are_those_of_numpy(values: list[float], percentile: float, maximize: bool) -> None:
    rung = rung_of(Objective(metric="m", direction="maximize" if maximize else "minimize"), dict(enumerate(values)))
    expected = np.percentile(values[1:], 100 - percentile if maximize else percentile)
    assert rung.percentile_of_others(0, percentile) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("curve", "min_delta", "kind"),
    [
        ([0.5, 0.6, 0.7, 0.7, 0.69], 0, Continue),
        ([0.5, 0.6, 0.7, 0.7, 0.69, 0.7], 0, Complete),
        ([0.5, 0.51, 0.52, 0.53], 0, Continue),
        ([0.5, 0.51, 0.52, 0.53], 0.1, Complete),
        ([0.5, math.nan, math.nan, 0.6], 0, Continue),
        ([0.5, 0.6, math.nan], 0, Stop),
        ([math.nan], 0, Stop),
    ],
)
def test_patience_counts_reports_without_an_improvement(curve: list[float], min_delta: float, kind: type) -> None:
    assert isinstance(verdict({"rule": "patience", "reports": 3, "min_delta": min_delta}, curve), kind)


def test_a_threshold_bounds_from_both_sides_and_says_which() -> None:
    bounds = {"rule": "threshold", "lower": 0.1, "upper": 2}
    assert isinstance(verdict(bounds, [0.1]), Continue)
    assert verdict(bounds, [0.05]) == Stop("stopped at step 10: 0.05 is below 0.1")
    assert verdict(bounds, [2.5]) == Stop("stopped at step 10: 2.5 is above 2")
