"""The one actor that writes what ranks report into the study database, and answers what they ask of it.

It decides nothing: the store accepts or refuses by the attempt's token. It may die at any time; a rank sends again
until it is answered, and what arrives twice counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from scamp_service.cluster.connection import NAMESPACE
from scamp_service.lifecycle import Outcome
from scamp_service.model import LogLine, Metric

NAME = "sink"
CONTROLLER_LEASE = "controller"  # the same as ``controller.LEASE``, which would load the samplers with it
ANSWER_SECONDS = 20.0
RETRY_SECONDS = 0.5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """One flush of a rank; -1 and 0 mean nothing new."""

    trial_id: int
    attempt: int
    token: str
    objective: str
    metrics: Sequence[Metric] = ()
    logs: Sequence[LogLine] = ()
    measured_bytes: int = 0
    checkpoint_step: int = -1


class Sink:
    """Runs as a detached Ray actor on the node of the database; its calls are served one after another."""

    def __init__(self, url: str) -> None:
        from scamp_service.store.store import Store  # ranks, which have no database, load this module for its client

        self._store = Store(url)

    def started(self, trial_id: int, attempt: int, token: str) -> bool:
        """Whether the attempt may begin; asked by each rank before it trains."""
        return self._store.report_started(trial_id, attempt, token, now=time.time())

    def flush(self, report: Report) -> bool:
        return self._store.report(
            report.trial_id,
            report.attempt,
            report.token,
            metrics=report.metrics,
            logs=report.logs,
            objective=report.objective,
            measured_bytes=report.measured_bytes,
            checkpoint_step=report.checkpoint_step,
            now=time.time(),
        )

    def outcome(self, trial_id: int, attempt: int, token: str, outcome: Outcome, detail: str) -> bool:
        return self._store.report_outcome(trial_id, attempt, token, outcome, detail, now=time.time())

    def blob(self, sha256: str) -> bytes:
        return self._store.blob(sha256)

    def lease_age(self) -> float | None:
        """Seconds since a controller last renewed its lease; None when there never was one."""
        return self._store.lease_age(CONTROLLER_LEASE, now=time.time())

    def ping(self) -> None:
        """Answered once the store is open."""


class SinkClient:
    """A rank's line to the sink: finds it by name, and asks again until it answers or ``give_up`` says so."""

    def __init__(self) -> None:
        self._actor: Any = None

    def ask(self, method: str, *args: Any, give_up: Callable[[], bool] = lambda: False) -> Any:
        """Raises ``TimeoutError`` once ``give_up()`` is True and the sink has still not answered."""
        while True:
            try:
                return self.try_once(method, *args)
            except (ray.exceptions.RayError, ValueError, ray.exceptions.GetTimeoutError) as error:
                self._actor = None
                if give_up():
                    raise TimeoutError(f"the sink does not answer: {error}") from error
                time.sleep(RETRY_SECONDS)

    def try_once(self, method: str, *args: Any) -> Any:
        if self._actor is None:
            self._actor = ray.get_actor(NAME, NAMESPACE)  # ValueError when there is none
        return ray.get(getattr(self._actor, method).remote(*args), timeout=ANSWER_SECONDS)


def ensure_sink(url: str, node_id: str) -> Any:
    """The living sink, made if there is none; it stays on ``node_id``, where the database file is."""
    return (
        ray.remote(Sink)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(url)
    )
