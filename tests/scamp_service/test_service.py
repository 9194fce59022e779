"""The promises of a running service, on the real thing: its processes are killed at moments drawn from a seed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from scamp_service.lifecycle import StudyState
from scamp_service.store.store import Store
from tests.services.kills import CLUSTER, LARGE_MODEL, STUDY, UnderFire
from tests.services.postgres import postgres
from tests.services.processes import ROOT, Served, environment, pids_of, trains
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.ray

SMALL = STUDY | {"name": "one rank each", "fixed": {"depth": 2, "width": 32, "patch": 4}}
LARGE = STUDY | {"name": "two ranks each", "fixed": LARGE_MODEL}


def study(of: dict[str, Any], trials: int, steps: int, report_every: int = 10) -> dict[str, Any]:
    return of | {"budget": {"trials": trials, "steps": steps, "report_every": report_every, "max_lost": 5}}


class Watched:
    """Studies of a service, and everything that it has ever acknowledged about them."""

    def __init__(self, service: Served, *specs: dict[str, Any]) -> None:
        self.service = service
        self.specs: dict[int, dict[str, Any]] = {}
        self.metrics: dict[tuple[int, int, int, int], dict[str, float]] = {}  # study, trial, step, attempt → values
        for spec in specs:
            self.submit(spec)

    def submit(self, spec: dict[str, Any]) -> None:
        self.specs[self.service.client.submit(spec)["id"]] = spec

    def trials(self) -> list[dict[str, Any]]:
        """As they are now; their metrics are remembered."""
        client, trials = self.service.client, []
        for study_id in self.specs:
            for trial in client.trials(study_id):
                trials.append(trial)
                for row in client.metrics(study_id, trial["number"]):
                    self.metrics[study_id, trial["number"], row["step"], row["attempt"]] = row["values"]
        return trials

    def attempts(self) -> list[dict[str, Any]]:
        """The newest one of each running trial."""
        running = [trial for trial in self.trials() if trial["state"] == "RUNNING"]
        details = [self.service.client.trial(trial["study_id"], trial["number"]) for trial in running]
        return [detail["attempts"][-1] for detail in details]

    def trains_on(self, num_ranks: int) -> bool:
        return any(
            trial["state"] == "RUNNING" and trial["num_ranks"] == num_ranks and trial["step"] for trial in self.trials()
        )

    def finished(self) -> bool:
        self.trials()
        return all(self.service.client.study(study_id)["finished_at"] for study_id in self.specs)

    def check(self) -> list[dict[str, Any]]:
        """Check what must hold once all have ended, whatever has happened; returns the trials with their attempts."""
        client, store, checked = self.service.client, self.service.store(), []
        trials = self.trials()
        assert [(trial["study_id"], trial["number"]) for trial in trials] == [
            (study_id, number) for study_id, spec in self.specs.items() for number in range(spec["budget"]["trials"])
        ], "every trial is there once"
        counter = Counter(event.trial_id for event in _events(store) if event.data.get("state") == "COMPLETED")
        for trial in trials:
            spec = self.specs[trial["study_id"]]
            where = f"trial {trial['number']} of {spec['name']}"
            assert trial["state"] == "COMPLETED", f"{where}: {trial['reason']}"
            assert counter[trial["id"]] == 1, f"{where} completed once"
            attempts = client.trial(trial["study_id"], trial["number"])["attempts"]
            outcomes = [attempt["outcome"] for attempt in attempts]
            assert outcomes.count("DONE") == 1 and outcomes[-1] == "DONE", f"{where}: {outcomes}"
            assert [attempt["attempt"] for attempt in attempts] == list(range(1, len(attempts) + 1)), where
            # Ranks that never began, are stopped in order, or end because of a fault of the host, cost nothing.
            lost = [attempt for attempt in attempts if attempt["outcome"] == "LOST" and attempt["started_at"]]
            since = max((n for n, attempt in enumerate(lost) if attempt["checkpoint_step"] >= 0), default=0)
            assert trial["num_lost"] == len(lost[since:]), f"{where}: {outcomes}"
            rows = list(client.metrics(trial["study_id"], trial["number"]))
            every = spec["budget"]["report_every"]
            expected = list(range(every, spec["budget"]["steps"] + 1, every))
            assert [row["step"] for row in rows] == expected, f"{where}: each evaluation is there once"
            for row in rows:
                seen = self.metrics[trial["study_id"], trial["number"], row["step"], row["attempt"]]
                assert seen == row["values"], f"{where}: an acknowledged metric has changed"
            checked.append(trial | {"attempts": attempts, "metrics": rows})
        kept = {(trial["study_id"], trial["number"], row["step"]) for trial in checked for row in trial["metrics"]}
        assert {key[:3] for key in self.metrics} <= kept, "an acknowledged metric is missing"
        assert store.attempts.open() == []
        assert [(device["reserved_mib"], device["gangs"]) for device in client.cluster()["devices"]] == [(0, [])] * 2
        store.close()
        return checked


def _events(store: Any) -> Iterator[Any]:
    after = 0
    while page := store.events.page(after=after):
        yield from page
        after = page[-1].id


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests here: a service must find its way in the data of those before."""
    return tmp_path_factory.mktemp("service") / "data"


@pytest.fixture(scope="module")
def services(data_dir: Path) -> Iterator[list[Served]]:
    """The newest one runs. The first one has a proxy in its environment that nobody can reach."""
    services = [Served(data_dir, **CLUSTER, http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9")]
    yield services
    for service in services:
        service.abandon()


def live_through_kills(
    service: Served, seed: int, rounds: list[tuple[int, list[str]]], large_steps: int, report_every: int
) -> None:
    """Two studies that fill the cluster; ``rounds`` are the ranks of the gang that trains and what is killed then."""
    rng = random.Random(seed)
    watched = Watched(service, study(LARGE, trials=1, steps=large_steps, report_every=report_every))
    until(lambda: any(trial["num_ranks"] for trial in watched.trials()), "a plan for two ranks")
    watched.submit(study(SMALL, trials=2, steps=120))  # what runs now leaves no device free
    num_ranks = 0
    for gang, victims in rounds:
        until(partial(watched.trains_on, gang), f"a gang of {gang} that reports")
        for victim in rng.sample(victims, len(victims)):
            time.sleep(rng.uniform(0.0, 1.5))
            if victim == "rank":
                num_ranks += kill_a_rank(service, watched, rng)
            else:
                kill(service, {"controller": "scamp_service controller", "api": "-m api"}[victim])
            watched.trials()  # the API may be away for a moment: the client waits
    until(watched.finished, "the end of both studies")
    trials = watched.check()
    assert {trial["num_ranks"] for trial in trials} == {1, 2}
    lost = [attempt for trial in trials for attempt in trial["attempts"][:-1]]
    # A gang whose controller is killed between the launch of its ranks is not complete, and begins again.
    trained = [attempt["detail"] for attempt in lost if attempt["started_at"] is not None]
    assert len(trained) <= num_ranks, f"a new controller finds living gangs again, and yet: {trained}"
    assert trained, "no attempt was lost: the test shows nothing"
    resumed = [trial for trial in trials if trial["num_lost"] and trial["attempts"][0]["checkpoint_step"] > 0]
    for trial in resumed:
        first = trial["attempts"][0]["checkpoint_step"]
        assert min(row["step"] for row in trial["metrics"] if row["attempt"] > 1) > first, "it began anew"
    assert resumed, "no killed rank had a checkpoint: the test shows nothing"


def test_two_studies_that_fill_the_cluster_live_through_kills_at_any_moment(services: list[Served]) -> None:
    # A controller that finds a living gang again is killed beside a gang of two; that of one is a part of it.
    rounds = [(2, ["controller", "api", "rank"]), (1, ["rank"])]
    live_through_kills(services[-1], 2023, rounds, large_steps=30, report_every=5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_studies_live_through_many_kills(backend: str, seed: int, tmp_path: Path) -> None:
    with postgres() if backend == "postgresql" else nullcontext() as server:
        findings = UnderFire(tmp_path, seed, server).run(30)
    assert findings.all() == []
    assert len(findings.seconds) == 30


def test_a_killed_supervisor_takes_everything_with_it_and_the_next_one_goes_on(
    data_dir: Path, services: list[Served]
) -> None:
    first = services[-1]
    before = {view["id"]: view["summary"]["trials"] for view in map(_detail(first), _ids(first))}
    watched = Watched(first, study(SMALL, trials=1, steps=200))
    check_bad_input_changes_nothing(first)
    until(lambda: any(a["checkpoint_step"] > 0 for a in watched.attempts()), "a first checkpoint")
    first.kill()
    until(lambda: not pids_of(data_dir), "the end of every process")
    services.append(Served(data_dir, **CLUSTER))
    second = watched.service = services[-1]
    after = {view["id"]: view["summary"]["trials"] for view in map(_detail(second), before)}
    assert after == before, "earlier studies are kept"
    until(watched.finished, "the end of the interrupted study")
    (trial,) = watched.check()
    # The controller may have had the time to stop its ranks in order.
    assert trial["attempts"][0]["outcome"] in ("LOST", "STOPPED") and trial["attempts"][0]["checkpoint_step"] > 0
    steps = [row["step"] for row in trial["metrics"] if row["attempt"] == 2]
    assert steps[0] > trial["attempts"][0]["checkpoint_step"], "it resumes from its checkpoint"


@pytest.mark.parametrize("words", ["scamp_service controller", pytest.param("-m api", marks=pytest.mark.soak)])
def test_a_process_that_freezes_is_replaced_and_nothing_is_lost(services: list[Served], words: str) -> None:
    service = services[-1]
    watched = Watched(service, study(SMALL, trials=2, steps=100))
    until(lambda: watched.trains_on(1), "a gang that reports")
    (frozen,) = service.pids(words)
    os.kill(frozen, signal.SIGSTOP)
    until(lambda: frozen not in service.pids(words), "its end")
    until(watched.finished, "the end of the study")
    assert {trial["num_lost"] for trial in watched.check()} == {0}


def test_a_service_that_ends_leaves_no_process_and_the_next_one_goes_on_at_no_cost(
    data_dir: Path, services: list[Served]
) -> None:
    service = services[-1]
    watched = Watched(service, study(SMALL, trials=1, steps=300))
    until(lambda: any(a["checkpoint_step"] > 0 for a in watched.attempts()), "a first checkpoint")
    ranks = service.pids("ray::Rank")
    assert service.stop() == 0
    assert ranks and service.pids() == [], "something is left behind"
    services.append(Served(data_dir, **CLUSTER))
    watched.service = services[-1]
    until(watched.finished, "the end of the study")
    (trial,) = watched.trials()
    attempts = watched.service.client.trial(trial["study_id"], 0)["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["STOPPED", "DONE"]
    assert (trial["num_lost"], trial["step"]) == (0, 300)
    assert watched.service.stop() == 0 and watched.service.pids() == []


def test_a_run_whose_ray_dies_says_so_at_once_and_its_study_stays(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    (tmp_path / "study.yaml").write_text(json.dumps(study(SMALL, trials=1, steps=10_000)))
    command = [sys.executable, "-m", "scamp_service", "run", str(tmp_path / "study.yaml")]
    with subprocess.Popen(command, cwd=ROOT, env=environment(data_dir, **CLUSTER), stderr=subprocess.PIPE) as run:
        until((data_dir / "scamp.db").exists, "a database")
        store = Store(f"sqlite:///{data_dir}/scamp.db")
        until(lambda: store.attempts.open(), "an attempt")
        (pid,) = pids_of(data_dir, "raylet/raylet")
        os.kill(pid, signal.SIGKILL)
        said = run.communicate(timeout=PATIENCE_SECONDS)[1].decode()
    assert run.returncode == 1 and "`scamp serve` continues study 1" in said, said
    until(lambda: not pids_of(data_dir), "the end of its processes")
    assert store.studies.get(1).state is StudyState.RUNNING
    store.close()


def kill(service: Served, words: str) -> None:
    """SIGKILL; what the supervisor starts instead has another pid."""
    pid = until(lambda: next(iter(service.pids(words)), None), f"a process {words!r}")
    os.kill(pid, signal.SIGKILL)


def kill_a_rank(service: Served, watched: Watched, rng: random.Random) -> bool:
    """SIGKILL one of the ranks that train, once every running trial has a checkpoint; whether there was one."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not watched.finished():
        attempts = watched.attempts()
        assert time.monotonic() < deadline, f"no checkpoint: {attempts}"
        ready = attempts and all(attempt["checkpoint_step"] > 0 for attempt in attempts)
        if ready and (victims := [pid for pid in service.pids("ray::Rank") if trains(pid)]):
            os.kill(rng.choice(victims), signal.SIGKILL)
            return True
    return False


def check_bad_input_changes_nothing(service: Served) -> None:
    studies = _ids(service)
    url, as_json = f"{service.url}/v1/studies", {"Content-Type": "application/json"}
    for content, status, words in [
        (b"{", 422, "not JSON"),
        (b'{"spec": {"name": "' + b"x" * 2**21 + b'"}}', 413, "larger than"),
        (_body(STUDY | {"name": "wrong types", "budget": {"trials": "many"}}), 422, "budget.trials"),
        (_body(STUDY | {"name": "unknown workload", "workload": "resnet"}), 422, "workload"),
        (_body(STUDY | {"name": "nothing to tune", "space": {}}), 422, "space"),
        (_body(STUDY | {"name": "log of 0", "space": {"lr": {"low": 0, "high": 1, "log": True}}}), 422, "space.lr"),
    ]:
        answer = httpx.post(url, content=content, headers=as_json, timeout=PATIENCE_SECONDS)
        assert answer.status_code == status and answer.headers["content-type"] == "application/problem+json"
        assert words in answer.json()["detail"]
    assert _ids(service) == studies
    assert httpx.get(f"{service.url}/healthz").is_success


def _body(spec: dict[str, Any]) -> bytes:
    return json.dumps({"spec": spec}).encode()


def _ids(service: Served) -> list[int]:
    return [view["id"] for view in service.client.studies()]


def _detail(service: Served) -> Any:
    return service.client.study
