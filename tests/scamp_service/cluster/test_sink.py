"""What the sink does with reports, without Ray: it is an ordinary object with a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Candidate, Plan
from scamp_service.cluster.reports import MAX_LINE, ROWS_PER_FLUSH, LineWriter, Reports
from scamp_service.cluster.sink import CONTROLLER_LEASE, Report, Sink
from scamp_service.control.executor import Order
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Metric
from scamp_service.store.store import Store
from tests.values import new_attempt, sized

SPEC = {"name": "sink", "workload": "vit_digits", "objective": {"metric": "accuracy"}, "space": {"lr": {"choice": [1]}}}
ORDER = Order(1, 1, "token", 1, Candidate("vit_digits", None, {}), Plan(1), ("d",), 1, 0, 10, 1, "accuracy")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'scamp.db'}")
    study = store.create_study(SPEC, now=1.0)
    store.create_trials(study.id, [(0, {})], now=1.0)
    assert store.move_trial(1, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=sized(ORDER.plan))
    assert store.begin_attempt(new_attempt(1, token="token", plan=ORDER.plan))
    yield store
    store.close()


@pytest.fixture
def sink(store: Store, tmp_path: Path) -> Sink:
    return Sink(f"sqlite:///{tmp_path / 'scamp.db'}")


def metric(seq: int, value: float = 0.5) -> Metric:
    return Metric(1, 1, seq, seq * 10, {"accuracy": value}, 1.0)


def test_a_report_is_stored_with_the_objective_the_peak_and_the_checkpoint(sink: Sink, store: Store) -> None:
    assert sink.started(1, 1, "token")
    assert sink.flush(Report(1, 1, "token", "accuracy", [metric(1, 0.7)], measured_bytes=9, checkpoint_step=10))
    trial, attempt = store.trial(1), store.attempts(1)[0]
    assert (trial.step, trial.value, trial.measured_bytes) == (10, 0.7, 9)
    assert (attempt.state, attempt.checkpoint_step) == (AttemptState.RUNNING, 10)


def test_what_arrives_twice_counts_once(sink: Sink, store: Store) -> None:
    for _ in range(2):
        assert sink.flush(Report(1, 1, "token", "accuracy", [metric(1), metric(2)]))
        assert sink.outcome(1, 1, "token", Outcome.DONE, "")
    assert [row.seq for row in store.metrics(1)] == [1, 2]


def test_a_stale_token_is_refused_everywhere(sink: Sink, store: Store) -> None:
    assert not sink.started(1, 1, "stale")
    assert not sink.flush(Report(1, 1, "stale", "accuracy", [metric(1)]))
    assert not sink.outcome(1, 1, "stale", Outcome.DONE, "")
    assert store.metrics(1) == [] and store.attempts(1)[0].outcome is None


def test_the_age_of_the_controllers_lease_is_told(sink: Sink, store: Store) -> None:
    assert sink.lease_age() is None
    assert store.acquire_lease(CONTROLLER_LEASE, "me", 10.0, now=time.time() - 5)
    age = sink.lease_age()
    assert age is not None and 4.5 < age < 30


class FakeSink:
    """Answers as told, and keeps what it acknowledged."""

    def __init__(self, answer: Callable[[Report], bool]) -> None:
        self.answer = answer
        self.accepted: list[Report] = []

    def ask(self, method: str, report: Report, give_up: Any) -> bool:
        accepted = self.answer(report)
        if accepted:
            self.accepted.append(report)
        return accepted


def reports(sink: FakeSink, rank: int = 0) -> Reports:
    return Reports(ORDER, rank, sink, lambda: False)  # type: ignore[arg-type]


def test_rows_leave_in_order_in_groups_and_all_before_the_end() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink)
    for step in range(1, 151):
        channel.metrics(step, {"accuracy": 0.1})
    channel.measured(7)
    channel.measured(5)
    channel.checkpoint(150)
    assert channel.close()
    rows = [row for report in sink.accepted for row in report.metrics]
    assert [row.seq for row in rows] == [row.step for row in rows] == list(range(1, 151))
    assert all(len(report.metrics) <= ROWS_PER_FLUSH for report in sink.accepted)
    assert (sink.accepted[-1].measured_bytes, sink.accepted[-1].checkpoint_step) == (7, 150)


def test_a_refusal_stops_the_training_and_nothing_more_is_sent() -> None:
    sink = FakeSink(lambda report: False)
    channel = reports(sink)
    channel.metrics(1, {"accuracy": 0.1})
    deadline = time.monotonic() + 10
    while not channel.should_stop() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert channel.should_stop()
    channel.metrics(2, {"accuracy": 0.1})
    assert not channel.close()
    assert sink.accepted == []


def test_only_rank_0_tells_metrics_but_every_rank_its_log() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink, rank=1)
    channel.metrics(1, {"accuracy": 0.1})
    channel.log("hello")
    assert channel.close()
    assert [row.text for report in sink.accepted for row in report.logs] == ["hello"]
    assert not any(report.metrics for report in sink.accepted)


def test_a_stream_becomes_lines() -> None:
    sink = FakeSink(lambda report: True)
    channel = reports(sink)
    writer = LineWriter(channel)
    print("one", "line", file=writer)
    print("progress 1\rprogress 2", end="", file=writer)
    print("x" * (MAX_LINE + 1) + "\n\n", file=writer)
    print("no end of line", end="", file=writer)
    writer.flush()
    assert channel.close()
    lines = [row.text for report in sink.accepted for row in report.logs]
    assert lines[:2] == ["one line", "progress 1"]
    assert len(lines[2]) == MAX_LINE and lines[2].startswith("progress 2xxx")
    assert lines[3] == "no end of line"
