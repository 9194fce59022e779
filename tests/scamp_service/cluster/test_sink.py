"""What the sink does with reports, without Ray: it is an ordinary object with a store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from estimators.model import Plan
from scamp_service.cluster import sink as module
from scamp_service.cluster.sink import CONTROLLER_LEASE, Report, Sink, SinkClient
from scamp_service.errors import NotFound, Unavailable
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Metric
from scamp_service.store.store import Store
from tests.values import new_attempt, sized

SPEC = {"name": "sink", "workload": "vit_digits", "objective": {"metric": "accuracy"}, "space": {"lr": {"choice": [1]}}}
PLAN = Plan(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'scamp.db'}")
    study = store.create_study(SPEC, now=1.0)
    store.create_trials(study.id, [(0, {})], now=1.0)
    assert store.move_trial(1, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=sized(PLAN))
    assert store.begin_attempt(new_attempt(1, token="token", plan=PLAN))
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
    assert sink.flush(Report(1, 1, "token", "accuracy", step_seconds=0.25, timed_steps=7))
    attempt = store.attempts(1)[0]
    assert (attempt.measured_step_seconds, attempt.timed_steps) == (0.25, 7)


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


class Answers(SinkClient):
    """A client whose sink raises each of these in turn, as Ray reports it, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def try_once(self, method: str, *args: Any) -> Any:
        if self.errors:
            raise RayTaskError("flush", "", self.errors.pop(0), "p", 1, "ip").as_instanceof_cause()
        return True


def test_a_question_is_repeated_while_the_database_is_away_but_not_after_an_error_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    assert Answers(Unavailable("locked"), Unavailable("its disk is full"), OSError(5, "I/O")).ask("flush")
    with pytest.raises(NotFound):
        Answers(NotFound("no file with this sha256")).ask("blob")
    with pytest.raises(TimeoutError, match="the sink cannot store anything: locked"):
        Answers(Unavailable("locked")).ask("flush", give_up=lambda: True)
