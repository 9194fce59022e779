"""How long something has been so."""

from __future__ import annotations

from scamp_service.control.first_seen import FirstSeen


def test_seconds_count_from_the_first_look_and_begin_anew_after_one_without_the_key() -> None:
    now = 10.0
    seen: FirstSeen[str] = FirstSeen(lambda: now)
    assert seen.seconds(["a"]) == {"a": 0.0}
    now = 12.0
    assert seen.seconds(["a", "b"]) == {"a": 2.0, "b": 0.0}
    assert seen.seconds(["b"]) == {"b": 0.0}
    now = 15.0
    assert seen.seconds(["a", "b"]) == {"a": 0.0, "b": 3.0}
