"""The one actor that writes the reports of all ranks into the study database, and answers their questions about it.

It decides nothing: the store accepts or refuses a report by the attempt's token. The sink may die at any time. A rank
repeats a report until it is acknowledged, and a report that arrives twice counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from scamp_service.cluster.connection import NAMESPACE
from scamp_service.errors import Unavailable
from scamp_service.lifecycle import Outcome
from scamp_service.model import LogLine, Metric

NAME = "sink"
CONTROLLER_LEASE = "controller"  # the same as ``controller.LEASE``, which would load the samplers with it
ANSWER_SECONDS = 20.0
RETRY_SECONDS = 0.5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """Rows that a rank sends at once. ``step_seconds`` is the median of ``timed_steps`` steps.

    A ``measured_bytes`` or ``timed_steps`` of 0, or a ``checkpoint_step`` of -1, means nothing new.
    """

    trial_id: int
    attempt: int
    token: str
    objective: str
    metrics: Sequence[Metric] = ()
    logs: Sequence[LogLine] = ()
    measured_bytes: int = 0
    checkpoint_step: int = -1
    step_seconds: float = 0.0
    timed_steps: int = 0


class Sink:
    """Writes reports into the study database: a detached Ray actor on the database's node, with one call at a time."""

    def __init__(self, url: str) -> None:
        """Open the study database at ``url``. Raises ``Unavailable`` when that fails."""
        from scamp_service.store.store import Store  # not for ranks: they import this module only for its client

        self._store = Store(url)

    def started(self, trial_id: int, attempt: int, token: str) -> bool:
        """Record the start of an attempt; returns whether it may begin. Each rank asks before it trains."""
        return self._store.report_started(trial_id, attempt, token, now=time.time())

    def flush(self, report: Report) -> bool:
        """Store a report; False when the attempt is stale."""
        return self._store.report(
            report.trial_id,
            report.attempt,
            report.token,
            metrics=report.metrics,
            logs=report.logs,
            objective=report.objective,
            measured_bytes=report.measured_bytes,
            checkpoint_step=report.checkpoint_step,
            step_seconds=report.step_seconds,
            timed_steps=report.timed_steps,
            now=time.time(),
        )

    def outcome(self, trial_id: int, attempt: int, token: str, outcome: Outcome, detail: str) -> bool:
        """Store how an attempt ended; False when the attempt is stale."""
        return self._store.report_outcome(trial_id, attempt, token, outcome, detail, now=time.time())

    def blob(self, sha256: str) -> bytes:
        """Zip of a study's own code, by its SHA-256. Raises ``NotFound``."""
        return self._store.blob(sha256)

    def lease_age(self) -> float | None:
        """Seconds since a controller last renewed its lease; None when there never was one."""
        return self._store.lease_age(CONTROLLER_LEASE, now=time.time())

    def ping(self) -> None:
        """Return once the store is open."""


class SinkClient:
    """A rank's connection to the sink, which it finds by name. Calls are repeated until the sink answers."""

    def __init__(self) -> None:
        self._actor: Any = None

    def ask(self, method: str, *args: Any, give_up: Callable[[], bool] = lambda: False) -> Any:
        """Answer of the sink's ``method``. Raises ``TimeoutError`` when there is none and ``give_up()`` is True.

        Calls are repeated while the sink or its database cannot be reached. Any other error that the sink itself
        raises would be raised again by every repetition, and is passed on.
        """
        while True:
            try:
                return self.try_once(method, *args)
            except ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, (Unavailable, OSError)):
                    raise
                if give_up():
                    raise TimeoutError(f"the sink cannot store anything: {error.cause}") from error
                time.sleep(RETRY_SECONDS)
            except (ray.exceptions.RayError, ValueError, ray.exceptions.GetTimeoutError) as error:
                self._actor = None
                if give_up():
                    raise TimeoutError(f"the sink does not answer: {error}") from error
                time.sleep(RETRY_SECONDS)

    def try_once(self, method: str, *args: Any) -> Any:
        """Answer of the sink's ``method`` within ``ANSWER_SECONDS``. Raises ``RayError`` or ``ValueError``: no sink."""
        if self._actor is None:
            self._actor = ray.get_actor(NAME, NAMESPACE)  # ValueError when there is none
        return ray.get(getattr(self._actor, method).remote(*args), timeout=ANSWER_SECONDS)


def ensure_sink(url: str, node_id: str) -> Any:
    """Actor handle of the sink, which is created if it does not run. It stays on ``node_id``, next to the database."""
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
