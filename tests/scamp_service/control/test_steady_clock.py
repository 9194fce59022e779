"""A clock that follows the wall clock without its jumps."""

from __future__ import annotations

import pytest

from scamp_service.control.steady_clock import SteadyClock, awake_or_not


class Times:
    """A wall clock that somebody sets, and a true one."""

    def __init__(self) -> None:
        self.passed, self.wall = 0.0, 1e9
        self.clock = SteadyClock(lambda: self.wall, lambda: self.passed)

    def after(self, seconds: float, jump: float = 0.0) -> float:
        self.passed += seconds
        self.wall += seconds + jump
        return self.clock() - 1e9


def test_it_shows_the_time_of_the_wall_clock() -> None:
    times = Times()
    assert [times.after(seconds) for seconds in (0.0, 3.0, 0.25, 100.0)] == [0.0, 3.0, 3.25, 103.25]


@pytest.mark.parametrize("day", [86_400.0, -86_400.0])
def test_a_wrong_time_for_ten_seconds_is_hardly_seen_and_a_lasting_one_is_followed_after_a_while(day: float) -> None:
    times = Times()
    assert times.after(0.0, day) == 0.0
    assert times.after(10.0) == pytest.approx(10.0, abs=1.0)
    assert times.after(100.0, -day) == pytest.approx(110.0)
    times.after(0.0, day)
    assert times.after(1000.0) == pytest.approx(1110.0, abs=100.0)
    assert times.after(86_400.0 * 11) == pytest.approx(1110.0 + 86_400.0 * 11 + day)


def test_no_duration_is_longer_or_shorter_than_a_true_one_by_more_than_a_tenth() -> None:
    times = Times()
    now = 0.0
    for jump in (5.0, -3600.0, 0.0, 86_400.0, -40.0):
        before, now = now, times.after(60.0, jump)
        assert 54.0 <= now - before <= 66.0


def test_the_clock_below_it_never_goes_back() -> None:
    assert awake_or_not() <= awake_or_not()
