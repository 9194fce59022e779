"""The sink stores reports, here without Ray: it is an ordinary object with a store."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from estimators.model import Plan
from scamp_service.cluster import sink as module
from scamp_service.cluster.sink import LeaseWatch, Silence, Sink, SinkActor, SinkClient, is_waiting
from scamp_service.errors import NotFound, Unavailable
from scamp_service.lifecycle import CONTROLLER_LEASE, AttemptState, Outcome, TrialState
from scamp_service.model import Lease, Metric, Report
from scamp_service.store import database
from scamp_service.store.store import Store
from tests.services.processes import ROOT
from tests.values import new_attempt, sized
from tests.waiting import PATIENCE_SECONDS

SPEC = {"name": "sink", "workload": "vit_digits", "objective": {"metric": "accuracy"}, "space": {"lr": {"choice": [1]}}}
PLAN = Plan(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'scamp.db'}")
    study = store.studies.create(SPEC, now=1.0)
    store.trials.create(study.id, [(0, {})], now=1.0)
    assert store.trials.move(1, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=sized(PLAN))
    assert store.attempts.begin(new_attempt(1, token="token", plan=PLAN))
    yield store
    store.close()


@pytest.fixture
def sink(store: Store, tmp_path: Path) -> Sink:
    return Sink(f"sqlite:///{tmp_path / 'scamp.db'}", store.identity())


def metric(seq: int, value: float = 0.5) -> Metric:
    return Metric(1, 1, seq, seq * 10, {"accuracy": value}, 1.0)


def test_a_report_is_stored_with_the_objective_the_peak_and_the_checkpoint(sink: Sink, store: Store) -> None:
    assert sink.started(1, 1, "token")
    assert sink.flush(Report(1, 1, "token", ["accuracy"], [metric(1, 0.7)], measured_bytes=9, checkpoint_step=10))
    trial, attempt = store.trials.get(1), store.attempts.of_trial(1)[0]
    assert (trial.step, trial.value, trial.measured_bytes) == (10, 0.7, 9)
    assert (attempt.state, attempt.checkpoint_step) == (AttemptState.RUNNING, 10)
    assert sink.flush(Report(1, 1, "token", ["accuracy"], step_seconds=0.25, timed_steps=7))
    attempt = store.attempts.of_trial(1)[0]
    assert (attempt.measured_step_seconds, attempt.timed_steps) == (0.25, 7)


def test_what_arrives_twice_counts_once(sink: Sink, store: Store) -> None:
    for _ in range(2):
        assert sink.flush(Report(1, 1, "token", ["accuracy"], [metric(1), metric(2)]))
        assert sink.outcome(1, 1, "token", Outcome.DONE, "")
    assert [row.seq for row in store.reports.metrics(1)] == [1, 2]


def test_a_stale_token_is_refused_everywhere(sink: Sink, store: Store) -> None:
    assert not sink.started(1, 1, "stale")
    assert not sink.flush(Report(1, 1, "stale", ["accuracy"], [metric(1)]))
    assert not sink.outcome(1, 1, "stale", Outcome.DONE, "")
    assert store.reports.metrics(1) == [] and store.attempts.of_trial(1)[0].outcome is None


class Answers(SinkClient):
    """A client whose sink raises each of these in turn, as Ray reports it, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__("scamp")
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


def test_ray_gets_nothing_but_bytes_to_read_from_a_rank(
    store: Store, actor: SinkActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[Any] = []

    class Remote:
        def __init__(self, method: str) -> None:
            self.method = getattr(actor, method)

        def remote(self, *args: Any) -> Any:
            passed.extend(args)
            return self.method(*args)

    class Handle:
        def __getattr__(self, method: str) -> Remote:
            return Remote(method)

    monkeypatch.setattr("ray.get_actor", lambda *_: Handle())
    monkeypatch.setattr("ray.get", lambda answer, timeout: answer)
    client = SinkClient("scamp")
    assert client.ask("started", 1, 1, "token") and client.ask("lease") is None
    assert client.ask("flush", Report(1, 1, "token", ["accuracy"], [metric(1, 0.7)], measured_bytes=9))
    assert client.ask("outcome", 1, 1, "token", Outcome.DONE, "done", "")
    assert len(passed) == 3 and {type(argument) for argument in passed} == {bytes}
    assert (store.trials.get(1).value, store.attempts.of_trial(1)[0].detail) == (0.7, "done")


def test_the_controllers_lease_and_the_database_are_told(sink: Sink, store: Store) -> None:
    assert sink.lease() is None
    lease = store.leases.take(CONTROLLER_LEASE, "me", None, now=1.0)
    assert lease is not None
    assert sink.lease() == lease
    renewed = store.leases.renew(CONTROLLER_LEASE, lease, now=2.0)
    assert renewed != lease
    assert sink.lease() == renewed
    status = sink.ping()
    assert store.identity() in status.owner
    assert not status.process.is_gone


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a lock, or for a change of the lease."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(module, "UNCHANGED_SECONDS", -1.0)


@contextmanager
def locked(tmp_path: Path) -> Iterator[None]:
    """The database can be read, but not written."""
    other = sqlite3.connect(tmp_path / "scamp.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


@pytest.mark.usefixtures("impatient")
def test_a_lease_that_nobody_could_renew_does_not_count_as_unchanged(sink: Sink, store: Store, tmp_path: Path) -> None:
    lease = store.leases.take(CONTROLLER_LEASE, "me", None, now=1.0)
    assert lease is not None
    assert [sink.lease() for _ in range(3)] == [lease] * 3, "to ask does not change it"
    with locked(tmp_path):
        for _ in range(3):
            with pytest.raises(Unavailable, match="locked"):
                sink.lease()
    assert sink.lease() == lease
    renewed = store.leases.renew(CONTROLLER_LEASE, lease, now=2.0)
    assert renewed != lease
    with locked(tmp_path):
        assert sink.lease() == renewed, "it has just been renewed"


@pytest.fixture
def actor(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sink whose thread stands still: tests look and give back in its stead."""
    monkeypatch.setattr(SinkActor, "_watch_lease", lambda self: None)
    return SinkActor(f"sqlite:///{tmp_path / 'scamp.db'}", store.identity())


@pytest.mark.usefixtures("impatient")
def test_ranks_are_told_at_once_that_the_lease_cannot_be_read_or_renewed(
    actor: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = store.leases.take(CONTROLLER_LEASE, "me", None, now=1.0)
    with pytest.raises(Unavailable):
        actor.last_lease()
    assert actor.look() == actor.last_lease() == lease
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.01)
    with locked(tmp_path):
        with pytest.raises(TimeoutError):
            actor.look()
        time.sleep(0.02)
        with pytest.raises(Unavailable):
            actor.last_lease()
    monkeypatch.setattr(module, "FRESH_SECONDS", 60.0)
    assert actor.look() == actor.last_lease() == lease


def test_a_sink_that_starts_while_the_database_is_away_says_so_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "not mounted yet"
    folder.write_text("")
    sink = Sink(f"sqlite:///{folder / 'scamp.db'}", "mine")
    assert "the database mine" in sink.ping().owner
    for _ in range(2):
        with pytest.raises(Unavailable):
            sink.lease()
    folder.unlink()
    assert sink.lease() is None


def test_devices_are_given_back_again_and_again_until_ray_has_answered(
    actor: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Exception | None] = [RuntimeError("the GCS does not answer"), None]
    identities: list[str] = []

    def remove(identity: str) -> None:
        identities.append(identity)
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(module, "remove_pools", remove)
    assert [actor.give_back(), actor.give_back()] == [False, True]
    assert identities == [store.identity()] * 2


def test_only_the_answer_of_a_sink_counts_as_waiting_for_the_database() -> None:
    assert is_waiting(RayTaskError("lease", "", Unavailable("locked"), "p", 1, "ip").as_instanceof_cause())
    assert not is_waiting(RayTaskError("lease", "", NotFound("no"), "p", 1, "ip").as_instanceof_cause())
    assert not is_waiting(Unavailable("no Ray")) and not is_waiting(TimeoutError("no answer"))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def unreadable() -> Lease:
    raise TimeoutError


ABANDONED = """
import sys, time
from scamp_service.cluster import sink

def remove(identity, failures=[OSError("Ray's GCS does not answer")]):
    if failures:
        raise failures.pop()
    print("gave back the devices of", identity)

sink.ABANDONED_SECONDS, sink.remove_pools = 0.2, remove
kept = getattr(sink, sys.argv[1])(sys.argv[2], "mine")
time.sleep(float(sys.argv[3]))
print("still here")
"""


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize(
    ("kind", "seconds", "said"), [("SinkActor", "1000", "gave back the devices of mine"), ("Sink", "1", "still here")]
)
def test_the_actor_ends_its_process_when_nobody_leads_and_a_sink_within_another_process_does_not(
    tmp_path: Path, kind: str, seconds: str, said: str
) -> None:
    command = [sys.executable, "-u", "-c", ABANDONED, kind, f"sqlite:///{tmp_path / 'scamp.db'}", seconds]
    assert (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS).stdout.strip()
        == said
    )


def test_a_lease_lapses_once_nobody_has_renewed_it_for_long_enough() -> None:
    clock = Clock()
    watch, lease = LeaseWatch(60.0, clock), Lease("a", 1, 0)
    for clock.now in range(0, 61, 6):
        assert not watch.has_lapsed(lambda: lease)
    clock.now = 66
    assert watch.has_lapsed(lambda: lease)
    assert not watch.has_lapsed(lambda: Lease("a", 1, 1)), "its holder is back"
    clock.now = 72
    assert not watch.has_lapsed(lambda: Lease("b", 2, 0))


def test_time_without_an_answer_and_time_asleep_do_not_let_a_lease_lapse() -> None:
    clock = Clock()
    watch, lease = LeaseWatch(60.0, clock), Lease("a", 1, 0)
    assert not watch.has_lapsed(lambda: lease)
    for clock.now in range(6, 200, 6):
        assert not watch.has_lapsed(unreadable)
    assert not watch.has_lapsed(lambda: lease)
    clock.now += 1000
    assert not watch.has_lapsed(lambda: lease), "this process was frozen, and perhaps the controller with it"
    clock.now += 10
    assert not watch.has_lapsed(lambda: lease)


def test_a_silence_is_too_long_however_often_the_sink_is_asked() -> None:
    clock = Clock()
    silence = Silence(60.0, clock)
    for _ in range(60):
        clock.now += 1.0
        assert not silence.is_too_long()
    clock.now += 1.0
    assert silence.is_too_long()
    silence.ends()
    assert not silence.is_too_long()


def test_time_asleep_does_not_lengthen_a_silence() -> None:
    clock = Clock()
    silence = Silence(60.0, clock)
    for _ in range(59):
        clock.now += 1.0
        assert not silence.is_too_long()
    clock.now += 3600.0
    assert not silence.is_too_long()
    clock.now += 2.0
    assert silence.is_too_long()
