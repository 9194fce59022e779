"""The figures of the benchmark of the page, without a browser and with one."""

from __future__ import annotations

import pytest

from benchmarks.trusting import browser, page_part
from benchmarks.trusting.page_part import Result
from tests.waiting import PATIENCE_SECONDS


def test_without_chromium_nothing_is_measured_and_the_notes_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser.shutil, "which", lambda name: None)
    assert page_part.cases(quick=False, seed=0) == []
    assert page_part.notes([]) == ["page: skipped: no Chromium"]


def test_figures_are_those_of_the_largest_study() -> None:
    results = [Result(10_000, 0.5, 2.0, 10.0), Result(1_000, 9.0, 99.0, 99.0)]
    assert page_part.figures(results) == {"first_chart_seconds": 0.5, "live_page_blocked_pct": 2.0}


@pytest.mark.browser
def test_a_long_task_of_a_page_counts_as_blocked() -> None:
    chromium = browser.find_chromium()
    assert chromium
    with browser.opened(chromium) as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=page_part.WATCH)
        page.call("Page.navigate", url="data:text/html,<p>a page</p>")
        page.wait_for("window.longTasks !== undefined", PATIENCE_SECONDS)
        spin = "setTimeout(() => { const until = performance.now() + 300; while (performance.now() < until); }, 100)"
        page.value(f"{spin} && 1")
        blocked_pct, busy_pct = page_part._shares(page, 1.0)
    assert blocked_pct > 0 and busy_pct > 0
