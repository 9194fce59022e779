"""A real service, real Ray, real trainings; its processes are killed at moments drawn from a seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from scamp_service.client import Client
from scamp_service.errors import ScampError
from scamp_service.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_SECONDS = 240.0
T = TypeVar("T")

STUDY = {
    "workload": "vit_digits",
    "objective": {"metric": "accuracy"},
    "space": {"lr": {"low": 1e-3, "high": 1e-2, "log": True}},
    "fixed": {"depth": 2, "width": 32, "patch": 4},
    "search": {"sampler": "random"},
    "stopping": {"rule": "none"},
    "budget": {"trials": 4, "steps": 400, "report_every": 20},
}


class Service:
    """``scamp serve`` with a data directory of its own, which marks all its processes."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.output = (data_dir.parent / "serve.out").open("w+")
        environment = {**os.environ, "SCAMP_DATA_DIR": str(data_dir), "SCAMP_PORT": "8700", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scamp_service", "serve"], cwd=ROOT, env=environment, stdout=self.output
        )
        self.client = Client(until(self._url), timeout=60.0)

    def _url(self) -> str | None:
        text = Path(self.output.name).read_text()
        assert self.process.poll() is None, f"the service ended: {text}"
        return text.split("ScaMP is at ")[1].split()[0] if "ScaMP is at " in text else None

    def kill(self, words: str) -> int:
        """SIGKILL one process of the service whose command line has ``words``; returns its pid."""
        pid = until(lambda: next(iter(self.pids(words)), None))
        os.kill(pid, signal.SIGKILL)
        return pid

    def pids(self, words: str = "") -> list[int]:
        mark, found = str(self.data_dir).encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                ours = mark in (entry / "environ").read_bytes() and int(entry.name) != os.getpid()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if ours and command and words in command:
                found.append(int(entry.name))
        return sorted(found)

    def ask(self, call: Callable[[], T]) -> T:
        """The API is killed too: ask until it answers."""

        def attempt() -> list[T] | None:
            try:
                return [call()]
            except ScampError:
                return None

        return until(attempt)[0]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.close()

    def close(self) -> None:
        self.client.close()
        self.output.close()


def until(condition: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {PATIENCE_SECONDS:.0f} s: {condition}")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "data")
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()


def test_two_studies_live_through_kills_of_controller_api_and_a_rank(service: Service) -> None:
    rng = random.Random(5)
    ids = [service.client.submit({"name": f"study {n}", **STUDY})["id"] for n in range(2)]
    until(lambda: any(trial["step"] >= 20 for trial in service.client.trials(ids[0])))
    acknowledged: dict[tuple[int, int, int], dict[str, Any]] = {}

    def remember() -> None:
        for study in ids:
            for trial in service.ask(lambda study=study: list(service.client.trials(study))):
                number = trial["number"]
                for row in service.ask(lambda s=study, n=number: list(service.client.metrics(s, n))):
                    acknowledged[study, number, row["step"]] = row["values"]

    for words in ("scamp_service controller", "-m api", "ray::Rank"):
        time.sleep(rng.uniform(0.0, 2.0))
        remember()
        service.kill(words)
    until(lambda: all(service.ask(lambda s=study: service.client.study(s))["finished_at"] for study in ids))
    service.stop()
    assert service.pids() == [], "nothing is left behind"
    check_database(Store(f"sqlite:///{service.data_dir}/scamp.db"), ids, acknowledged)


def check_database(store: Store, ids: list[int], acknowledged: dict[tuple[int, int, int], dict[str, Any]]) -> None:
    assert store.open_attempts() == [], "no MiB is held"
    assert acknowledged
    for study in ids:
        trials = store.trials(study)
        assert [trial.number for trial in trials] == [0, 1, 2, 3], "none lost, none doubled"
        assert {trial.state.value for trial in trials} == {"COMPLETED"}
        for trial in trials:
            done = [attempt for attempt in store.attempts(trial.id) if attempt.outcome == "DONE"]
            assert [attempt.attempt for attempt in done] == [trial.attempt], "completed once"
            steps = [metric.step for metric in store.metrics(trial.id)]
            assert steps == list(range(20, 401, 20)), "each evaluation once"
            seen = {step for s, number, step in acknowledged if (s, number) == (study, trial.number)}
            assert seen <= set(steps), "what was acknowledged is there"
    store.close()


def test_when_the_supervisor_is_killed_everything_ends_by_itself(tmp_path: Path) -> None:
    service = Service(tmp_path / "data")
    until(lambda: service.pids("ray::Rank"))
    service.process.kill()
    service.process.wait()
    until(lambda: not service.pids() or None)
    service.close()
