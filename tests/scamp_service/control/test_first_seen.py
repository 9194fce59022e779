"""How long something has been so."""

from __future__ import annotations

from scamp_service.control.first_seen import FirstSeen


def test_seconds_count_from_the_first_look_and_begin_anew_after_one_without_the_key() -> None:
    now = 10.0
    seen: FirstSeen[str] = FirstSeen(lambda: now)
    assert seen.seconds({"a": 0.0}) == {"a": 0.0}
    now = 12.0
    assert seen.seconds({"a": 0.0, "b": 0.0}) == {"a": 2.0, "b": 0.0}
    assert seen.seconds({"b": 0.0}) == {"b": 0.0}
    now = 15.0
    assert seen.seconds({"a": 0.0, "b": 0.0}) == {"a": 0.0, "b": 3.0}


def test_the_wall_clock_counts_for_what_is_there_at_first_and_never_again() -> None:
    """So a study does not stay open for ever where controllers are often replaced, and a jump changes nothing."""
    now = 10.0
    seen: FirstSeen[str] = FirstSeen(lambda: now)
    assert seen.seconds({"a": 100.0, "b": -3600.0}) == {"a": 100.0, "b": 0.0}
    now = 11.0
    assert seen.seconds({"a": 3700.0, "b": 1.0, "c": 3600.0}) == {"a": 101.0, "b": 1.0, "c": 0.0}
