"""Seconds until a study's page shows its first chart and its trials, and the time to download many trials as CSV."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from api.trial_table import FileFormat, TrialTable
from benchmarks.trusting.api_part import p95
from benchmarks.trusting.browser import Page, find_chromium, opened
from benchmarks.trusting.page_part import api_process
from benchmarks.trusting.scale_part import database
from scamp_service.store.store import Store

TITLE = "Speed of the study page"
HEADER = ("median s", "p95 s", "CPU p95 s", "times", "case")
LOADS = 24
DOWNLOADS = 3
REST_SECONDS = 1.0
SHOWN = {"picture": "#history-aside", "table": "#trials tr.row td:nth-child(2)"}
"""Elements that have text once the history of a large study is drawn, and once rows of its trials have their values."""
ABOUT = """\
Headless Chromium opens the page of a study whose trials have ended; the API is a process of its own. Seconds count from
the start of the navigation: *picture*, until the optimisation history is drawn; *table*, until the rows of trials that
are seen have their values. The browser has the files of the dashboard in its cache, as after a first visit. *CPU*:
processor time of the API and of the page's main thread until then, which is what the page takes on a machine that does
nothing else, and little more on one with several cores. *CSV*: the trials are written as CSV in one process."""
_WATCH = f"""
(() => {{
  window.shownAt = {{}};
  const selectors = Object.entries({json.dumps(SHOWN)});
  new MutationObserver(() => {{
    for (const [name, selector] of selectors) {{
      if (name in window.shownAt || !document.querySelector(selector)?.textContent) continue;
      window.shownAt[name] = 0;
      requestAnimationFrame(() => requestAnimationFrame(() => (window.shownAt[name] = performance.now())));
    }}
  }}).observe(document, {{ childList: true, characterData: true, subtree: true }});
}})();
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A picture, the table or a download of a study of ``num_trials`` trials, waited for so many times."""

    kind: str
    num_trials: int
    times: int
    points: int = 1

    def __str__(self) -> str:
        return f"{self.kind} of {self.num_trials:,} trials"


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of wall-clock time and of processor time, each time."""

    kind: str
    num_trials: int
    seconds: Sequence[float]
    cpu_seconds: Sequence[float]

    def row(self) -> list[str]:
        numbers = median(self.seconds), p95(self.seconds), p95(self.cpu_seconds)
        return [*(f"{number:.2f}" for number in numbers), str(len(self.seconds))]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """Without Chromium only the download."""
    if quick:
        pages, download = [Case("picture", 2_000, 2), Case("table", 2_000, 2)], Case("CSV", 2_000, 1)
    else:
        pages = [Case("picture", 10_000, LOADS, 100), Case("table", 100_000, LOADS)]
        download = Case("CSV", 100_000, DOWNLOADS)
    return [*(pages if find_chromium() else []), download]


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    """The 95th percentiles of pages, and microseconds of a trial of the fastest download by wall-clock time and CPU."""
    names = {"picture": "picture", "table": "table_100k"}
    keys: dict[str, float] = {}
    for result in results:
        if name := names.get(result.kind):
            keys |= {f"{name}_p95_seconds": p95(result.seconds), f"{name}_p95_cpu_seconds": p95(result.cpu_seconds)}
        else:
            micro = 1e6 / result.num_trials
            keys["csv_us_per_trial"] = micro * min(result.seconds)
            keys["csv_cpu_us_per_trial"] = micro * min(result.cpu_seconds)
    return keys


def measure(case: Case, seconds: float) -> Result:
    """Load the page, or write the file, over a database of the case's trials."""
    with database(case.num_trials, 0, case.points) as (settings, store):
        if case.kind == "CSV":
            pairs = [_csv(store) for _ in range(case.times)]
        else:
            chromium = find_chromium()
            assert chromium, "a case is only made where there is Chromium"
            with api_process(settings) as (url, process), opened(chromium) as page:
                page.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
                pairs = [_load(page, f"{url}/studies/1", case.kind, process, seconds) for _ in range(case.times + 1)]
                pairs = pairs[1:]  # the first one fills the cache
    return Result(case.kind, case.num_trials, *map(list, zip(*pairs, strict=True)))


def _load(page: Page, url: str, kind: str, process: int, seconds: float) -> tuple[float, float]:
    """Seconds until what is waited for is seen, and of processor time."""
    page.call("Page.navigate", url="about:blank")  # the next page gets a process of its own
    api_seconds = _cpu_seconds(process)
    page.call("Page.navigate", url=url)
    shown_at = page.wait_for(f"window.shownAt?.{kind}", seconds)
    cpu_seconds = _cpu_seconds(process) - api_seconds + page.metrics()["ThreadTime"]
    time.sleep(REST_SECONDS)  # the rest of this page's requests do not count for the next
    return shown_at / 1000, cpu_seconds


def _cpu_seconds(process: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _csv(store: Store) -> tuple[float, float]:
    """Seconds that the trials of study 1 take to write."""
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in TrialTable(store, 1, "number", descending=False, states=None, where="").parts(FileFormat.CSV):
        pass
    return time.perf_counter() - began, time.process_time() - cpu_began
