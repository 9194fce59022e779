"""Brackets that are drawn by the trial's number alone, and in which trials are compared with their own kind."""

from __future__ import annotations

from collections import Counter
from typing import Any

from scamp_service.control.stopping import rule_of
from scamp_service.control.stopping.hyperband import Hyperband
from scamp_service.control.stopping.rule import Continue, Stop
from scamp_service.study.objective import Objective
from scamp_service.study.parse import parse_study
from tests.scamp_service.control.stopping.rungs import rung_of
from tests.studies import study
from tests.values import trial


def hyperband(**options: Any) -> Hyperband:
    budget = {"steps": 100, "report_every": 10}
    rule = rule_of(parse_study(study(budget=budget, stopping={"rule": "hyperband", **options})))
    assert isinstance(rule, Hyperband)
    return rule


def test_each_bracket_leaves_out_one_more_rung_until_none_is_left() -> None:
    assert [bracket.rungs for bracket in hyperband().brackets] == [(10, 30, 90), (30, 90), (90,), ()]
    assert [bracket.rungs for bracket in hyperband(brackets=2).brackets] == [(10, 30, 90), (30, 90)]


def test_early_brackets_have_more_trials_in_about_the_shares_of_the_paper() -> None:
    rule = hyperband()
    counter = Counter(map(rule.bracket_of, range(4000)))
    shares = {0: 4 * 27 / 4, 1: 4 * 9 / 3, 2: 4 * 3 / 2, 3: 4.0}
    assert all(abs(counter[i] / 4000 - share / sum(shares.values())) < 0.03 for i, share in shares.items())


def test_a_trial_is_compared_with_its_own_bracket_also_as_others_report_later() -> None:
    rule = hyperband()
    first = [number for number in range(200) if rule.bracket_of(number) == 0][:4]
    second = next(number for number in range(200) if rule.bracket_of(number) == 1)
    rung = rung_of(Objective(metric="m"), {first[0]: 0.1, first[1]: 0.2, second: 0.9})
    reported = {10: rung}
    early = rule.judge(trial(number=second, step=10), 10, reported, is_last=False)
    assert early == Continue("continues after step 10: its bracket 2 is judged first at step 30")
    assert isinstance(rule.judge(trial(number=first[1], step=10), 10, reported, is_last=False), Continue)
    rung.report(first[2], (0.5,))
    verdict = rule.judge(trial(number=first[1], step=10), 10, reported, is_last=False)
    assert isinstance(verdict, Stop)
    assert "0.2 is number 2 of 3" in verdict.reason
    assert "bracket 1 of 4" in verdict.reason
