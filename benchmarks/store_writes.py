"""Measures how fast the study database stores reports: rows per second, single and grouped, and the cost of one move.

SQLite in memory shows the cost of the code; SQLite in a file shows what the sync of every commit adds. ``--url``
measures another database, which should be empty.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable

from estimators.model import Plan, Prediction
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Attempt, Metric
from scamp_service.store.store import Store


def main() -> None:
    """Measure each database, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--url", default="", help="measure this database instead")
    options = parser.parse_args()
    num_rows = 640 if options.quick else 6400
    with tempfile.TemporaryDirectory() as directory:
        urls = [options.url] if options.url else ["sqlite://", f"sqlite:///{directory}/scamp.db"]
        results = {url.replace(directory, "…"): measure(url, num_rows) for url in urls}
    print(f"{'':28}{'1 row a flush':>16}{'64 rows a flush':>18}{'report':>12}{'move':>12}")
    for name, figures in results.items():
        single, grouped = figures["rows_per_second_single"], figures["rows_per_second_grouped"]
        costs = f"{figures['report_ms']:>9.2f} ms{figures['move_ms']:>9.2f} ms"
        print(f"{name:28}{single:>12,.0f} r/s{grouped:>14,.0f} r/s{costs}")
    print(json.dumps(results))


def measure(url: str, num_rows: int) -> dict[str, float]:
    """Rows per second, and milliseconds of one report and of one state change."""
    store = Store(url)
    try:
        single, grouped = (run_trial(store) for _ in range(2))
        single_seconds = seconds(lambda: flush(store, single, num_rows, 1))
        grouped_seconds = seconds(lambda: flush(store, grouped, 10 * num_rows, 64))
        move_seconds = seconds(lambda: move(store, single, num_rows))
    finally:
        store.close()
    return {
        "rows_per_second_single": num_rows / single_seconds,
        "rows_per_second_grouped": 10 * num_rows / grouped_seconds,
        "report_ms": 1000 * single_seconds / num_rows,
        "move_ms": 1000 * move_seconds / num_rows,
    }


def run_trial(store: Store) -> int:
    """The id of a new trial with a running attempt."""
    study = store.create_study({"name": "benchmark"}, now=1.0)
    store.create_trials(study.id, [(0, {})], now=1.0)
    trial_id = store.trials(study.id)[0].id
    store.move_trial(trial_id, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0)
    attempt = Attempt(trial_id, 1, "token", AttemptState.STARTING, Plan(1), ("n0/0",), (), Prediction(1), "", 1.0)
    assert store.begin_attempt(attempt)
    return trial_id


def flush(store: Store, trial_id: int, num_rows: int, rows_per_flush: int) -> None:
    """Report ``num_rows`` metric rows, ``rows_per_flush`` in each transaction."""
    for first in range(0, num_rows, rows_per_flush):
        seqs = range(first, first + rows_per_flush)
        rows = [Metric(trial_id, 1, seq, seq, {"loss": 1.0 / (seq + 1), "accuracy": 0.5}, 1.0) for seq in seqs]
        assert store.report(trial_id, 1, "token", metrics=rows, objectives=["loss"], now=1.0)


def move(store: Store, trial_id: int, times: int) -> None:
    """Move the trial from RUNNING to RUNNING ``times`` times."""
    for step in range(times):
        assert store.move_trial(trial_id, TrialState.RUNNING, 1, TrialState.RUNNING, judged_step=step, now=1.0)


def seconds(act: Callable[[], object]) -> float:
    """Wall-clock seconds that ``act`` takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
