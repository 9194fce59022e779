"""Measures a study's page in Chromium: when its first chart is drawn, and how long metrics that arrive block it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import httpx

from benchmarks.trusting.browser import Page, find_chromium, opened
from benchmarks.trusting.scale_part import POINTS, database
from estimators.model import MIB, Plan
from scamp_service.lifecycle import TrialState
from scamp_service.model import Attempt, Metric, Report, Sized
from scamp_service.settings import ROOT, Settings
from scamp_service.store.store import Store
from tests.services.serving import free_port
from tests.values import new_attempt, sized

TITLE = "The page of one study of many trials"
HEADER = ("first chart s", "blocked %", "busy %", "case")
NUM_RUNNING = 20
EVENTS_PER_SECOND = 60
LOADS = 5
WARM_UP_SECONDS = 3.0
LIVE_SECONDS = 20.0
QUICK_SECONDS = 4.0
ABOUT = f"""\
Headless Chromium opens the page of a study whose trials have {POINTS} points each; the API is a process of its own.
First chart: the median of {LOADS} loads without a cache, from the start of the navigation until the first chart is
drawn for the last time, because a chart may first be drawn with only some of the trials. Blocked: the share of
{LIVE_SECONDS:g} s that the main thread spends in tasks of more than 50 ms (PerformanceObserver "longtask", their whole
length) while {EVENTS_PER_SECOND} metrics events a second are written for {NUM_RUNNING} running trials. Busy: the same
share for all tasks (TaskDuration of the DevTools protocol)."""

WATCH = """
(() => {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) window.longTasks.push({ start: task.startTime, length: task.duration });
  }).observe({ type: "longtask", buffered: true });
  window.inkedAt = new Map();
  for (const name of ["fill", "stroke", "fillRect", "drawImage"]) {
    const draw = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (...given) {
      if (this.canvas.closest(".chart")) window.inkedAt.set(this.canvas, performance.now());
      return draw.apply(this, given);
    };
  }
})();
"""

# The charts are complete once none has been drawn for two seconds.
_DRAWN = """
(() => {
  const times = [...(window.inkedAt ?? new Map()).values()];
  return times.length > 0 && Math.max(...times) < performance.now() - 2000 && Math.min(...times);
})()
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A study of ``num_trials`` trials that have ended; the page is loaded ``num_loads`` times, then followed for
    ``live_seconds``."""

    num_trials: int
    num_loads: int
    live_seconds: float

    def __str__(self) -> str:
        return f"{self.num_trials:,} trials"


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds until the first chart, and the shares of time, in percent, that the main thread is blocked or busy."""

    num_trials: int
    first_chart_seconds: float
    blocked_pct: float
    busy_pct: float

    def row(self) -> list[str]:
        return [f"{self.first_chart_seconds:.2f}", f"{self.blocked_pct:.1f}", f"{self.busy_pct:.1f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """1,000 and 10,000 trials, or only 300 if ``quick``; none without Chromium. ``seed`` is not used."""
    if not find_chromium():
        return []
    return [Case(300, 1, QUICK_SECONDS)] if quick else [Case(num, LOADS, LIVE_SECONDS) for num in (1_000, 10_000)]


def notes(findings: Sequence[object]) -> list[str]:
    """Why there is no result, if there is no browser."""
    return [] if find_chromium() else ["page: skipped: no Chromium"]


def figures(results: Sequence[Result]) -> dict[str, float]:
    largest = max(results, key=lambda result: result.num_trials)
    return {"first_chart_seconds": largest.first_chart_seconds, "live_page_blocked_pct": largest.blocked_pct}


def measure(case: Case, seconds: float) -> Result:
    """Load the page of the case's study, then follow it; ``seconds`` limits each load."""
    chromium = find_chromium()
    assert chromium, "a case is only made where there is Chromium"
    with database(case.num_trials, 0) as (settings, store), api_process(settings) as (url, _), opened(chromium) as page:
        attempts = _running(store)
        page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        page.call("Network.setCacheDisabled", cacheDisabled=True)
        loads = [_first_chart(page, f"{url}/studies/1", seconds) for _ in range(case.num_loads)]
        with _reporting(store, attempts):
            time.sleep(WARM_UP_SECONDS)
            blocked_pct, busy_pct = _shares(page, case.live_seconds)
    return Result(case.num_trials, median(loads), blocked_pct, busy_pct)


def _first_chart(page: Page, url: str, seconds: float) -> float:
    """Seconds from the start of the navigation until a chart is drawn."""
    page.call("Page.navigate", url="about:blank")
    page.call("Page.navigate", url=url)
    return float(page.wait_for(_DRAWN, seconds)) / 1000


def _shares(page: Page, seconds: float) -> tuple[float, float]:
    """Percent of the next ``seconds`` in which the main thread is in a task of more than 50 ms, and in any task."""
    began, worked = float(page.value("performance.now()")), page.metrics()["TaskDuration"]
    time.sleep(seconds)
    worked = page.metrics()["TaskDuration"] - worked
    page.value("new Promise((done) => setTimeout(done, 200))")  # the observer is told of a task after its end
    ended = began + 1000 * seconds
    tasks = page.value("window.longTasks")
    within = [min(ended, task["start"] + task["length"]) - max(began, task["start"]) for task in tasks]
    return sum(duration for duration in within if duration > 0) / (10 * seconds), 100 * worked / seconds


@contextmanager
def api_process(settings: Settings) -> Iterator[tuple[str, int]]:
    """The address and the process id of the API over the database of ``settings``, in a process of its own."""
    port = free_port()
    environment = {**os.environ, "SCAMP_DATA_DIR": str(settings.data_dir), "SCAMP_PORT": str(port)}
    process = subprocess.Popen([sys.executable, "-m", "api"], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while not _answers(url):
            assert process.poll() is None and time.monotonic() < deadline, "the API did not start"
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=2, trust_env=False).is_success
    except httpx.TransportError:
        return False


# --- running trials ---------------------------------------------------------------------------------------------------


def _running(store: Store) -> list[Attempt]:
    """Attempts of ``NUM_RUNNING`` new trials of study 1, all running."""
    now, first = time.time(), sum(store.counts.states(1).values())
    after = store.trials.page(1, after=0, limit=1)[0].id + first - 1
    new = [(first + number, {"mib": 10, "ranks": 1, "lr": 0.01}) for number in range(NUM_RUNNING)]
    store.trials.create(1, new, now=now)
    plan: Sized = sized(Plan(4), 90, 86 * MIB)
    attempts = []
    for trial in store.trials.page(1, after=after):
        assert store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.QUEUED, now=now, sized=plan, reason="fits")
        attempt = new_attempt(trial.id, token="t", reserved_mib=90, predicted_bytes=86 * MIB, now=now)
        assert store.attempts.begin(attempt) and store.reports.start(trial.id, 1, "t", now=now)
        attempts.append(attempt)
    return attempts


@contextmanager
def _reporting(store: Store, attempts: Sequence[Attempt]) -> Iterator[None]:
    """Report an evaluation of one running trial after the other, ``EVENTS_PER_SECOND`` of them a second."""
    ended = threading.Event()

    def report() -> None:
        began, number = time.monotonic(), 0
        while not ended.wait(max(0.0, began + number / EVENTS_PER_SECOND - time.monotonic())):
            attempt = attempts[number % len(attempts)]
            step = 1 + number // len(attempts)
            metric = Metric(attempt.trial_id, 1, step, step, {"score": 1 - 1 / (1 + step)}, time.time())
            assert store.reports.add(
                Report(
                    attempt.trial_id,
                    1,
                    "t",
                    metrics=[metric],
                    objectives=["score"],
                    measured_bytes=80 * MIB,
                    step_seconds=0.01,
                    timed_steps=step,
                ),
                now=time.time(),
            )
            number += 1

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)
