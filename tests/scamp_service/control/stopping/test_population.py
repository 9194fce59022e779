"""Members that wait for each other, the worst of which give way to the best."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from scamp_service.control.stopping.population import Population
from scamp_service.control.stopping.rule import Continue, Exploit, Pause, Verdict
from scamp_service.study.objective import Objective
from tests.scamp_service.control.stopping.rungs import rung_of
from tests.values import trial

RULE = Population((10, 20), 0.25, seed=0)


def verdicts(values: Mapping[int, float], is_last: bool = True) -> dict[int, Verdict]:
    rung = rung_of(Objective(metric="m"), values)
    return {n: RULE.judge(trial(number=n, step=10), 10, {10: rung}, is_last=is_last) for n in values}


def kinds(values: Mapping[int, float]) -> list[type]:
    return [type(verdict) for verdict in verdicts(values).values()]


def test_all_wait_until_the_last_member_is_there() -> None:
    assert {type(verdict) for verdict in verdicts({0: 0.1, 1: 0.2}, is_last=False).values()} == {Pause}


def test_the_worst_quarter_gives_way_to_the_best_quarter() -> None:
    judged = verdicts({number: number / 10 for number in range(8)})
    assert [number for number, judged_one in judged.items() if isinstance(judged_one, Exploit)] == [0, 1]
    (first, other) = (judged[0], judged[1])
    assert isinstance(first, Exploit)
    assert isinstance(other, Exploit)
    assert {*first.donors} == {*other.donors} == {6, 7}
    assert first.reason == "gives way at step 10: 0 is number 8 of 8, among the last 2"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({0: 0.5}, [Continue]),
        ({0: 0.5, 1: 0.6}, [Exploit, Continue]),
        ({0: 0.5, 1: 0.5}, [Continue, Continue]),
        ({0: math.nan, 1: 0.5, 2: 0.6, 3: 0.7}, [Exploit, Continue, Continue, Continue]),
        ({0: math.nan, 1: math.nan}, [Continue, Continue]),
    ],
)
def test_few_equal_and_diverged_members(values: dict[int, float], expected: list[type]) -> None:
    assert kinds(values) == expected
