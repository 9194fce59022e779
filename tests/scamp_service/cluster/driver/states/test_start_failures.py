"""Devices on which ranks do not start."""

from __future__ import annotations

from scamp_service.cluster.driver.states.start_failures import CLOSED_AFTER, LONGEST_SECONDS, StartFailures


def test_each_failure_doubles_the_pause_up_to_a_minute() -> None:
    failures, now, pauses = StartFailures(), 0.0, []
    for _ in range(9):
        failures.record_failure("a", "no memory", now)
        began = now
        while not failures.may_try("a", now):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, LONGEST_SECONDS]


def test_a_device_is_closed_with_the_reason_and_open_again_once_a_rank_starts() -> None:
    failures = StartFailures()
    for number in range(CLOSED_AFTER):
        assert failures.closed() == {}
        failures.record_failure("a", f"no memory {number}", 100.0 * number)
    assert f"{CLOSED_AFTER} times in a row" in failures.closed()["a"] and "no memory 3" in failures.closed()["a"]
    assert failures.may_try("b", 0.0)
    failures.record_start("a")
    assert failures.closed() == {} and failures.may_try("a", 0.0)


def test_ranks_that_fail_together_count_once() -> None:
    failures = StartFailures()
    for _ in range(10):
        failures.record_failure("a", "no memory", 5.0)
    assert failures.closed() == {} and failures.may_try("a", 6.0)
