"""The pauses between two cycles of the controller."""

from __future__ import annotations

import threading

import pytest

from scamp_service.processes import news
from scamp_service.processes.news import LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, News


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each wait, none of which takes any time."""
    found: list[float] = []
    monkeypatch.setattr(news.time, "sleep", found.append)
    monkeypatch.setattr(threading.Event, "wait", lambda event, seconds: event.is_set() or found.append(seconds))
    return found


def test_news_shorten_the_pause_once(pauses: list[float]) -> None:
    one = News(monotonic=lambda: 0.0)
    one.tell()
    one.tell()
    one.wait()
    assert pauses == [SHORTEST_PAUSE_SECONDS]
    one.wait()
    assert sum(pauses[1:]) == pytest.approx(LONGEST_PAUSE_SECONDS)


@pytest.mark.parametrize(("took", "pause"), [(0.05, 0.05), (3.0, LONGEST_PAUSE_SECONDS)])
def test_long_cycles_leave_the_processor_to_ranks(pauses: list[float], took: float, pause: float) -> None:
    times = iter([0.0, took, took])
    one = News(monotonic=lambda: next(times))
    one.tell()
    one.wait()
    assert pauses == [pause]
