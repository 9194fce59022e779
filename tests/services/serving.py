"""The real API for tests: in this process without a socket, or served by uvicorn on a free port of the loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from api.__main__ import server_for
from api.app import create_app
from estimators.model import Plan
from placement.model import Device
from scamp.addresses import url_of
from scamp_service.lifecycle import TrialState
from scamp_service.model import Json, Metric, Report, Study
from scamp_service.settings import Settings
from scamp_service.store.recorded_cluster import RecordedDevice
from scamp_service.store.store import Store
from tests.values import new_attempt, sized
from tests.waiting import PATIENCE_SECONDS, until

SPEC: Json = {
    "name": "a study",
    "workload": "vit_digits",
    "objective": {"metric": "accuracy"},
    "space": {"lr": {"low": 0.001, "high": 0.1, "log": True}},
}
DEVICE = RecordedDevice(Device("n/0", "n", 0, "virtual", 96))
SECRET = "attempt-token-that-nobody-may-read"


class InProcess:
    """Requests that the app answers directly; each is complete when it returns."""

    def __init__(self, settings: Settings) -> None:
        self.app = create_app(settings)
        self.store: Store = self.app.state.store
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8100")

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._http.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def together(self, path: str, num_requests: int) -> list[httpx.Response]:
        async def answers() -> list[httpx.Response]:
            return await asyncio.gather(*(self._http.get(path) for _ in range(num_requests)))

        return self._runner.run(answers())

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def submit(self, spec: Any = SPEC, **headers: str) -> httpx.Response:
        return self.post("/v1/studies", json={"spec": spec}, headers=headers)

    def close(self) -> None:
        self._runner.run(self._http.aclose())
        self._runner.close()
        self.store.close()


def settings_in(folder: Path, **options: Any) -> Settings:
    return Settings(data_dir=folder, **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def served(settings: Settings) -> Iterator[tuple[str, Store]]:
    """A uvicorn in a thread; yields its address and the store that it uses."""
    server = server_for(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    def has_started() -> bool:
        assert thread.is_alive(), "the API did not start"
        return server.started

    until(has_started, "the API")
    try:
        yield url_of(settings.host, settings.port), server.config.app.state.store  # type: ignore[union-attr]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the API did not stop"


def fill(store: Store, num_trials: int = 3, **fields: Any) -> Study:
    """A study whose trial 0 has completed, trial 1 runs on a device, and the rest wait."""
    study = store.studies.create(full_spec(**fields), now=time.time())
    store.trials.create(
        study.id, [(number, {"lr": 0.01 * (number + 1)}) for number in range(num_trials)], now=time.time()
    )
    first, second, *_ = store.trials.page(study.id)
    for trial in (first, second):
        queued: dict[str, Any] = {"sized": sized(Plan(8), 4, 3 * 2**20), "reason": "fits"}
        assert store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.QUEUED, now=time.time(), **queued)
        assert store.attempts.begin(
            new_attempt(trial.id, token=SECRET, reserved_mib=4, predicted_bytes=3 * 2**20,
                        placement_reason="first free device", now=time.time())
        )  # fmt: skip
        assert store.reports.start(trial.id, 1, SECRET, now=time.time())
    report(store, first.id, steps=[10, 20, 30])
    end(store, first.id)
    return study


def fill_several(store: Store) -> Study:
    """A study with two objectives, of which trials 0 and 1 have completed, and trial 2 runs."""
    from scamp_service.study.parse import parse_study

    fields = {name: value for name, value in SPEC.items() if name != "objective"}
    objectives = [{"metric": "accuracy"}, {"metric": "predicted.peak_mib", "direction": "minimize"}]
    spec = parse_study({**fields, "objectives": objectives})
    study = store.studies.create(spec.to_json(), now=time.time())
    store.trials.create(study.id, [(number, {"lr": 0.01}) for number in range(4)], now=time.time())
    for trial, mib in zip(store.trials.page(study.id)[:3], (30, 20, 10), strict=True):
        queued: dict[str, Any] = {"sized": sized(Plan(8), mib, mib * 2**20), "reason": "fits"}
        assert store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.QUEUED, now=time.time(), **queued)
        assert store.attempts.begin(
            new_attempt(trial.id, token=SECRET, reserved_mib=mib, predicted_bytes=mib * 2**20, now=time.time())
        )
        assert store.reports.start(trial.id, 1, SECRET, now=time.time())
        row = Metric(trial.id, 1, 1, 10, {"accuracy": mib / 100}, time.time())
        names = spec.every_objective.names
        assert store.reports.add(Report(trial.id, 1, SECRET, metrics=[row], objectives=names), now=time.time())
        if mib > 10:
            end(store, trial.id)
    return study


def report(store: Store, trial_id: int, steps: list[int], value: float = 0.5) -> None:
    rows = [Metric(trial_id, 1, step, step, {"accuracy": value + step / 1000}, time.time()) for step in steps]
    assert store.reports.add(
        Report(trial_id, 1, SECRET, metrics=rows, objectives=["accuracy"], measured_bytes=2 * 2**20),
        now=time.time(),
    )


def end(store: Store, trial_id: int) -> None:
    from scamp_service.lifecycle import AttemptState, Outcome

    assert store.reports.end(trial_id, 1, SECRET, Outcome.DONE, "", now=time.time())
    assert store.attempts.move(trial_id, 1, [AttemptState.RUNNING], AttemptState.ENDED, now=time.time())
    assert store.trials.move(trial_id, TrialState.RUNNING, 1, TrialState.COMPLETED, now=time.time())


def full_spec(**fields: Any) -> Json:
    from scamp_service.study.parse import parse_study

    return parse_study({**SPEC, **fields}).to_json()


WORKLOAD = """
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 1
    build_model = train_batch = eval_batch = loss = evaluate = None
"""
"""A file of a user's that loads; nothing in it trains."""
