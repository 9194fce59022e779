"""Lets processes report metrics as ranks do: through a queue and the sink, which is an actor of Ray, into SQLite.

``python -m benchmarks.living.with_sink RANKS ROWS RATE`` prints the seconds from the first row to the last one that is
durable, and the 99th percentile of the seconds from the call that reports a row until the database has it. RATE is rows
a second of each rank; 0: as many as it can.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import quantiles
from typing import Any

import ray

from estimators.model import Candidate, Plan, Prediction
from scamp_service.cluster.sink import SinkClient, ensure_sink
from scamp_service.cluster.worker.report_queue import Delivery, ReportQueue
from scamp_service.control.executor import Order
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Attempt, Choice, Report, Sized
from scamp_service.store.store import Store

NAMESPACE = "benchmark"
TOKEN = "token"


class TimedReports(ReportQueue):
    """Notes how long each row takes until it is acknowledged."""

    def __init__(self, order: Order) -> None:
        self.latencies: list[float] = []
        super().__init__(order, 0, SinkClient(NAMESPACE), lambda: False)

    def _flush(self, report: Report) -> bool:
        accepted = super()._flush(report)
        now = time.time()
        self.latencies += [now - row.time for row in report.metrics]
        return accepted


def main() -> None:
    """Start Ray, the sink and the ranks, and print what they measured."""
    num_ranks, num_rows, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    ray.init(
        address="local", num_cpus=num_ranks, namespace=NAMESPACE, include_dashboard=False, logging_level=logging.ERROR
    )
    with tempfile.TemporaryDirectory(prefix="scamp-sink-") as folder:
        store = Store(f"sqlite:///{folder}/scamp.db")
        trials = _running_trials(store, num_ranks)
        sink = ensure_sink(
            f"sqlite:///{folder}/scamp.db", "benchmark", ray.get_runtime_context().get_node_id(), NAMESPACE
        )
        ray.get(sink.ping.remote())
        rank: Any = ray.remote(report)
        ray.get([rank.remote(trial_id, 10, 0.0) for trial_id in trials])  # until then processes start
        timings = ray.get([rank.remote(trial_id, num_rows, rate, 10) for trial_id in trials])
        stored = sum(len(store.metrics(trial_id, limit=10 * num_rows)) for trial_id in trials)
        assert stored == num_ranks * (num_rows + 10), f"{stored} rows are stored"
        store.close()
    seconds = max(end for _, end, _ in timings) - min(begin for begin, _, _ in timings)
    latencies = [latency for *_, of_rank in timings for latency in of_rank]
    print(json.dumps({"seconds": seconds, "p99_seconds": quantiles(latencies, n=100)[-1]}))
    ray.shutdown()


def report(trial_id: int, num_rows: int, rate: float, first: int = 0) -> tuple[float, float, Sequence[float]]:
    """When the first row was reported, when the last one was durable, and the seconds of each row."""
    order: Any = Order(
        trial_id=trial_id, attempt=1, token=TOKEN, study_id=1, candidate=Candidate("none", None, {}), plan=Plan(1),
        devices=(), mib_per_rank=1, seed=0, steps=1, report_every=1, resume=None, metrics=("loss",),
        objectives=("loss",),
    )  # fmt: skip
    reports = TimedReports(order)
    reports._num_metrics = first  # the numbers of rows that this trial has reported before
    began = time.time()
    for number in range(first, first + num_rows):
        reports.metrics(number, {"loss": 1.0 / (number + 1), "accuracy": 0.5})
        if rate and (ahead := (number - first) / rate - (time.time() - began)) > 0.01:
            time.sleep(ahead)
    assert reports.close() is Delivery.STORED, reports.why_lost
    return began, time.time(), reports.latencies


def _running_trials(store: Store, number: int) -> list[int]:
    study = store.create_study({"name": "benchmark"}, now=time.time())
    store.create_trials(study.id, [(n, {}) for n in range(number)], now=time.time())
    trials = [trial.id for trial in store.trials(study.id)]
    sized = Sized("s", Choice(Plan(1), Prediction(1)), "")
    for trial_id in trials:
        store.move_trial(trial_id, TrialState.WAITING, 0, TrialState.QUEUED, sized=sized, now=time.time())
        attempt = Attempt(trial_id, 1, TOKEN, AttemptState.STARTING, sized.choice, ("d",), (), "", time.time())
        assert store.begin_attempt(attempt)
    return trials


if __name__ == "__main__":
    main()
