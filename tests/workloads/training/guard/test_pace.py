"""Checks come early, and take a small share of the time."""

from __future__ import annotations

from workloads.training.guard.pace import MOST_SHARE, Pace


def test_checks_come_after_steps_that_double_and_keep_to_their_share() -> None:
    pace, now, checked = Pace(0.0), 0.0, list[int]()
    for step in range(1, 10_001):
        now += 1.0
        pace.end_step()
        if pace.may_be_due and pace.has_time(now):
            checked.append(step)
            now += 1.5
            pace.end_check(1.5)
    assert checked[0] == 1, "the first one is always there"
    assert 3 <= len(checked) <= 15
    assert pace.seconds <= MOST_SHARE * now


def test_a_check_that_found_no_time_is_made_later_and_evaluations_ask_for_one() -> None:
    pace = Pace(0.0)
    pace.end_step()
    pace.end_check(1.0)
    assert not pace.may_be_due
    pace.end_evaluation()
    assert pace.may_be_due and not pace.has_time(50.0) and pace.has_time(100.0)
