"""The pauses between two cycles of the controller."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from scamp_service.processes import news
from scamp_service.processes.news import LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, News


class Told(threading.Event):
    """Takes no time to wait."""

    def __init__(self, pauses: list[float]) -> None:
        super().__init__()
        self.pauses = pauses

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self.pauses.append(timeout or 0.0)
        return self.is_set()


def heard(monkeypatch: pytest.MonkeyPatch, *times: float) -> tuple[News, list[float]]:
    """A loop's news, with the times that its clock shows, and the seconds of its pauses, none of which takes any."""
    pauses: list[float] = []
    monkeypatch.setattr(news, "time", SimpleNamespace(sleep=pauses.append))
    clock = iter(times)
    news_source = News(monotonic=lambda: next(clock))
    news_source._told = Told(pauses)
    return news_source, pauses


def test_news_shorten_the_pause_once(monkeypatch: pytest.MonkeyPatch) -> None:
    news_source, pauses = heard(monkeypatch, *[0.0] * 5)
    news_source.tell()
    news_source.tell()
    news_source.wait()
    assert pauses == [SHORTEST_PAUSE_SECONDS]
    news_source.wait()
    assert sum(pauses[1:]) == pytest.approx(LONGEST_PAUSE_SECONDS)


@pytest.mark.parametrize(("took", "pause"), [(0.05, 0.05), (3.0, LONGEST_PAUSE_SECONDS)])
def test_long_cycles_leave_the_processor_to_ranks(monkeypatch: pytest.MonkeyPatch, took: float, pause: float) -> None:
    news_source, pauses = heard(monkeypatch, 0.0, took, took)
    news_source.tell()
    news_source.wait()
    assert pauses == [pause]
