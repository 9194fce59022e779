"""A ScaMP that is served from a temporary folder, as ``scamp serve`` does, and the studies that it has run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.living.processor import Processor
from estimators.model import Plan
from scamp.client import Client
from scamp_service.lifecycle import LIVE_STUDIES, TrialState
from scamp_service.model import Attempt, Study, Trial
from scamp_service.processes.supervise import Service
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from scamp_service.study.user_code.bundling import bundle_code

FOLDER = Path(__file__).parent / "workloads"
START_SECONDS = 300.0
IDLE_SECONDS, IDLE_SHARE = 3.0, 0.15
"""A service is settled when its processes have used less than this share of one core for so long."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A study that has ended, with its trials and attempts by age, and processor seconds meanwhile by process."""

    study: Study
    trials: list[Trial]
    attempts: list[Attempt]
    processor: Mapping[str, float]
    started: Mapping[str, float]
    """Processor seconds by process before it was submitted."""
    reported: Mapping[int, float]
    """When each trial has reported its last metric, by its id."""
    growth: float
    """The most that the controller or a rank has grown since a tenth of the trials had ended, as a share."""

    @property
    def seconds(self) -> float:
        """Seconds from the submission to the end."""
        assert self.study.finished_at is not None
        return self.study.finished_at - self.study.created_at

    def plan_of(self, number: int) -> Plan:
        """The plan with which a trial has ended."""
        trial_id = next(trial.id for trial in self.trials if trial.number == number)
        return next(attempt.plan for attempt in reversed(self.attempts) if attempt.trial_id == trial_id)

    def values(self) -> dict[int, float]:
        """The objective of each trial by number. Raises ``RuntimeError`` if one has not completed."""
        for trial in self.trials:
            if trial.state != "COMPLETED" or trial.value is None:
                raise RuntimeError(f"trial {trial.number} is {trial.state}: {trial.reason}")
        return {trial.number: trial.value for trial in self.trials if trial.value is not None}


class Served:
    """A running service."""

    def __init__(self, service: Service, processor: Processor) -> None:
        self._service, self._processor = service, processor

    def settle(self) -> None:
        """Wait until devices are there, and everything that starts ahead of a study has started."""
        deadline, quiet = time.monotonic() + START_SECONDS, 0.0
        with Client(self._service.url) as client:
            while client.cluster()["status"] != "ready" or "ranks" not in self._processor.seconds():
                self._wait(0.5, deadline)
        while quiet < IDLE_SECONDS:
            before, began = sum(self._processor.seconds().values()), time.monotonic()
            self._wait(1.0, deadline)
            used = sum(self._processor.seconds().values()) - before
            quiet = quiet + 1.0 if used < IDLE_SHARE * (time.monotonic() - began) else 0.0

    def run(self, spec: Mapping[str, Any], seconds: float, folder: Path = FOLDER) -> Ran:
        """Submit a study of a workload in ``folder``, and wait for its end.

        Raises ``TimeoutError`` after ``seconds``.
        """
        before, deadline = self._processor.seconds(), time.monotonic() + seconds
        with Client(self._service.url) as client:
            study_id = client.submit(spec, code=bundle_code(folder / "study.yaml", spec["workload"]))["id"]
        store = Store(self._service.settings.url)
        try:
            warm: Mapping[int, int] = {}
            while store.studies.get(study_id).state in LIVE_STUDIES:
                self._wait(0.5, deadline)
                if (
                    not warm
                    and store.counts.states(study_id).get(TrialState.COMPLETED, 0) > spec["budget"]["trials"] / 10
                ):
                    warm = self._processor.resident()
            after = self._processor.resident()
            growth = max((after[pid] / warm[pid] - 1 for pid in warm.keys() & after.keys()), default=0.0)
            used = {kind: n - before.get(kind, 0.0) for kind, n in self._processor.seconds().items()}
            attempts = sorted(store.attempts.of_study(study_id), key=lambda attempt: attempt.created_at)
            trials = store.trials.every(study_id)
            reported = {
                trial.id: max((row.time for row in store.reports.metrics(trial.id)), default=0.0) for trial in trials
            }
            return Ran(store.studies.get(study_id), trials, attempts, used, before, reported, growth)
        finally:
            store.close()

    def _wait(self, seconds: float, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError("the service is not done in time: allow more with --seconds")
        self._service.watch()
        time.sleep(seconds)


@contextmanager
def serving(**settings: Any) -> Iterator[Served]:
    """A settled service with these settings, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="scamp-live-") as folder:
        with Service(Settings(data_dir=Path(folder), **settings), next_port=True) as service, Processor() as processor:
            served = Served(service, processor)
            served.settle()
            yield served
