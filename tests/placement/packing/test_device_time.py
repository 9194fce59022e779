"""Device time is counted by day and by calendar month."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from placement.packing.device_time import began_at, day_of, month_began, seconds_by_day

TIMES = st.floats(0.0, 4e9)


@given(TIMES, st.floats(0.0, 1e6))
def test_the_days_of_a_span_have_all_of_its_seconds(began: float, seconds: float) -> None:
    days = list(seconds_by_day(began, began + seconds))
    assert abs(sum(part for _, part in days) - (began + seconds - began)) < 1e-3
    assert [day for day, _ in days] == sorted({day for day, _ in days})
    assert all(0 < part <= 86_400 for _, part in days)


@given(TIMES)
def test_a_month_begins_with_its_first_day(now: float) -> None:
    assert day_of(month_began(now)) == day_of(now).replace(day=1)
    assert began_at(day_of(month_began(now))) == month_began(now)


def test_a_night_is_of_two_days() -> None:
    noon = began_at(date(2026, 2, 28)) + 43_200
    assert list(seconds_by_day(noon, noon + 86_400)) == [(date(2026, 2, 28), 43_200), (date(2026, 3, 1), 43_200)]
