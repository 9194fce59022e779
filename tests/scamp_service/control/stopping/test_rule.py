"""The contract of stopping rules: every rule in ``RULES`` passes it, with each of its ``OPTIONS``."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scamp_service.control.stopping import RULES, rule_of
from scamp_service.control.stopping.rule import (
    Complete,
    Continue,
    Exploit,
    Pause,
    Stop,
    StoppingRule,
    Verdict,
    due_rungs,
)
from scamp_service.control.stopping.rung import Rung
from scamp_service.study.objective import Objective
from scamp_service.study.parse import parse_study
from scamp_service.study.spec import StudySpec
from scamp_service.study.stopping import RULE_OPTIONS as OPTIONS_OF_SPEC
from tests.scamp_service.control.stopping.rungs import rung_of
from tests.studies import study
from tests.values import trial

OPTIONS: Mapping[str, list[dict[str, Any]]] = {
    "asha": [{}, {"min_steps": 5, "reduction_factor": 2}, {"min_steps": 5, "promote": True}],
    "hyperband": [{}, {"brackets": 2, "promote": True}],
    "median": [{}, {"min_steps": 5, "min_trials": 1}],
    "none": [{}],
    "patience": [{}, {"reports": 1, "min_delta": 0.1}],
    "pbt": [{"mutate": ["lr"]}, {"mutate": ["lr"], "interval": 5, "quantile": 0.5}],
    "percentile": [{}, {"percentile": 90, "min_trials": 1}],
    "threshold": [{"lower": 0.1}, {"lower": -1, "upper": 1}],
}
RULE_OPTIONS: list[Any] = [{"rule": name, **options} for name, several in OPTIONS.items() for options in several]
RULE_OPTIONS.append([{"rule": "hyperband", "promote": True}, {"rule": "patience"}, {"rule": "threshold", "upper": 2}])
every_rule = pytest.mark.parametrize("options", RULE_OPTIONS, ids=str)
few = settings(max_examples=20)  # for each of so many options

BROKEN = (math.nan, math.inf, -math.inf)
Reports = list[tuple[int, float]]
reports = st.lists(st.tuples(st.integers(1, 9), st.floats()), min_size=1, max_size=20, unique_by=lambda row: row[0])
directions = st.sampled_from(["maximize", "minimize"])


def spec_of(options: Any, direction: str = "maximize", *, steps: int = 100, report_every: int = 5) -> StudySpec:
    objective = {"metric": "accuracy", "direction": direction}
    budget = {"steps": steps, "report_every": report_every}
    return parse_study(study(objective=objective, budget=budget, stopping=options))


def reported(rule: StoppingRule, objective: Objective, values: Iterable[tuple[int, float]]) -> dict[int, Rung]:
    """Each trial has reported its value at every rung."""
    return {rung: rung_of(objective, dict(values)) for rung in rule.rungs}


def verdicts(rule: StoppingRule, number: int, rungs: Mapping[int, Rung]) -> list[Verdict]:
    """Verdicts on a trial that has just reached each rung."""
    reached = [(trial(number=number, step=rung), rung) for rung in rule.rungs]
    return [rule.judge(*report, rungs, is_last=is_last) for report in reached for is_last in (False, True)]


def test_each_name_that_a_study_may_give_is_a_rule_that_is_tested_here() -> None:
    assert OPTIONS_OF_SPEC.keys() == RULES.keys() == OPTIONS.keys()


@every_rule
def test_a_rule_is_a_value_that_is_made_again_after_a_restart(options: Any) -> None:
    assert rule_of(spec_of(options)) == rule_of(spec_of(options))


@every_rule
@pytest.mark.parametrize(("steps", "every"), [(100, 10), (100, 7), (97, 5), (10, 10), (6, 6)])
def test_rungs_are_ascending_reports_before_the_last_step(options: Any, steps: int, every: int) -> None:
    rungs = rule_of(spec_of(options, steps=steps, report_every=every)).rungs
    assert list(rungs) == sorted(set(rungs))
    assert all(rung % every == 0 and 0 < rung < steps for rung in rungs)


@every_rule
@few
@given(judged=st.integers(0, 100), step=st.integers(0, 100))
def test_a_trial_is_due_at_each_rung_that_it_has_reached_and_at_no_other_step(
    options: Any, judged: int, step: int
) -> None:
    rule = rule_of(spec_of(options))
    assert list(due_rungs(rule, trial(judged_step=judged, step=step))) == [r for r in rule.rungs if judged < r <= step]


@pytest.mark.full
@pytest.mark.sample
@every_rule
@few
@given(values=reports, direction=directions, seed=st.integers(0, 2**31))
def test_the_same_reports_have_the_same_verdict_in_one_line_in_any_order_and_stay_as_they_are(
    options: Any, values: Reports, direction: str, seed: int
) -> None:
    spec = spec_of(options, direction)
    rule, rungs = rule_of(spec), reported(rule_of(spec), spec.objective, values)
    before = verdicts(rule, values[-1][0], rungs)
    assert verdicts(rule_of(spec), values[-1][0], rungs) == before
    assert all(
        {number: rung[number][0] for number, _ in values} == pytest.approx(dict(values), nan_ok=True)
        for rung in rungs.values()
    )
    shuffled = random.Random(seed).sample(values, len(values))
    assert verdicts(rule, values[-1][0], reported(rule, spec.objective, shuffled)) == before
    for verdict in before:
        assert isinstance(verdict, Complete | Continue | Exploit | Pause | Stop)
        assert verdict.reason.strip() and "\n" not in verdict.reason


@every_rule
def test_reasons_name_epochs_where_the_study_counts_them(options: Any) -> None:
    values = [(number, number / 9) for number in range(1, 9)] + [(9, math.nan)]
    spec = parse_study(study(objective={"metric": "accuracy"}, budget={"epochs": 20}, stopping=options))
    rule = rule_of(spec)
    rungs = reported(rule, spec.objective, values)
    reasons = [verdict.reason for number in (1, 8, 9) for verdict in verdicts(rule, number, rungs)]
    assert all(re.search(r"\bepoch \d", reason) and not re.search(r"\bsteps?\b", reason) for reason in reasons)


@every_rule
@few
@given(values=reports, direction=directions)
def test_infinity_is_judged_like_nan_and_never_as_the_best_value(options: Any, values: Reports, direction: str) -> None:
    spec = spec_of(options, direction)
    rule = rule_of(spec)
    broken = [verdicts(rule, 100, reported(rule, spec.objective, [*values, (100, v)])) for v in BROKEN]
    assert all(list(map(type, types)) == list(map(type, broken[0])) for types in broken)


@every_rule
@few
@given(values=reports, direction=directions)
def test_a_trial_is_paused_only_where_its_rule_says_so_and_never_as_the_last_one(
    options: Any, values: Reports, direction: str
) -> None:
    spec = spec_of(options, direction)
    rule, number = rule_of(spec), values[-1][0]
    assert set(rule.pauses_at(number)) <= set(rule.rungs)
    rungs = reported(rule, spec.objective, values)
    for rung in rule.rungs:
        reached = trial(number=number, step=rung)
        if rung not in rule.pauses_at(number):
            assert not isinstance(rule.judge(reached, rung, rungs, is_last=False), Pause)
        assert not isinstance(rule.judge(reached, rung, rungs, is_last=True), Pause)


@every_rule
@pytest.mark.parametrize("num", [1, 2, 3, 7])
def test_some_trial_continues_at_each_rung_when_nothing_else_is_left(options: Any, num: int) -> None:
    if isinstance(options, list) or options["rule"] in ("patience", "threshold"):
        return  # these judge a trial by itself
    spec = spec_of(options)
    rule = rule_of(spec)
    rungs = reported(rule, spec.objective, [(number, number / 100) for number in range(num)])
    for rung in rule.rungs:
        judged = [rule.judge(trial(number=number, step=rung), rung, rungs, is_last=True) for number in range(num)]
        assert any(isinstance(verdict, Continue) for verdict in judged)


@every_rule
@pytest.mark.parametrize("value", BROKEN)
def test_a_value_that_is_not_finite_stops_a_trial_wherever_it_is_judged(options: Any, value: float) -> None:
    kinds = {option["rule"] for option in (options if isinstance(options, list) else [options])}
    if kinds & {"none", "pbt"}:
        return  # none judges nobody, and a member of a population gives way to a copy
    spec = spec_of(options)
    rule = rule_of(spec)
    for number in (2, 3, 4):  # in several brackets
        rungs = reported(rule, spec.objective, [(0, 0.5), (1, 0.6), (number, value)])
        assert {type(verdict) for verdict in verdicts(rule, number, rungs)} == {Stop}


BY_RANK = [
    options
    for options in RULE_OPTIONS
    if isinstance(options, dict) and options["rule"] not in ("patience", "threshold")
]
points = st.lists(
    st.tuples(st.integers(1, 9), st.tuples(st.integers(0, 3).map(float), st.integers(0, 3).map(float))),
    min_size=1,
    max_size=20,
    unique_by=lambda row: row[0],
)


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("options", BY_RANK, ids=str)
@few
@given(values=points, seed=st.integers(0, 2**31))
def test_several_objectives_are_judged_by_rank_whatever_the_order_of_arrival(
    options: Any, values: list[tuple[int, tuple[float, float]]], seed: int
) -> None:
    objectives = [{"metric": "accuracy"}, {"metric": "predicted.peak_mib", "direction": "minimize"}]
    fields = study(budget={"steps": 100, "report_every": 5}, stopping=options)
    spec = parse_study({**fields, "objectives": objectives})
    rule, shuffled = rule_of(spec), random.Random(seed).sample(values, len(values))
    orders = [{rung: Rung(spec.every_objective, dict(order)) for rung in rule.rungs} for order in (values, shuffled)]
    for number, point in values:
        first, second = (verdicts(rule, number, rungs) for rungs in orders)
        assert first == second and all(judgement.reason and "\n" not in judgement.reason for judgement in first)
        if not any(spec.every_objective.dominates(other, point) for _, other in values):
            best = orders[0][rule.rungs[0]].best(1) if rule.rungs else [number]
            assert number != best[0] or not any(isinstance(judgement, Stop | Exploit) for judgement in first)
