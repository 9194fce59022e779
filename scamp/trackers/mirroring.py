"""Follows a study by the REST API and writes its trials to trackers, with the credentials of whoever runs this."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from scamp.client import Client
from scamp.errors import InvalidInput, NotFound, Unavailable
from scamp.installed import NotInstalled
from scamp.trackers.run import Evaluation, Run, Tracker

BATCH_SECONDS = 1.0
"""Events of this time are written together."""
TRACKERS = {
    "tensorboard": ("TensorBoard", "tensorboard"),
    "mlflow": ("Mlflow", "mlflow-skinny"),
    "wandb": ("Wandb", "wandb"),
    "otlp": ("Otlp", "opentelemetry-exporter-otlp-proto-http"),
}
"""Name of a tracker → its class in the module of that name, and the package that it needs."""


def mirror(client: Client, study_id: int, *targets: str, dashboard: str | None = None) -> None:
    """Write a study to trackers, and follow it to its end.

    ``targets`` are ``tensorboard=DIR``, ``mlflow=URI``, ``wandb=PROJECT`` and ``otlp=URL``. It may be interrupted and
    called again: nothing is written twice. ``dashboard`` is the service's address in links, by default the client's.
    Raises ``InvalidInput``, ``NotFound``, ``Unavailable``, and ``NotInstalled`` if a package is missing.
    """
    study = client.study(study_id)
    root = f"{dashboard or client.address}/studies/{study_id}/trials"
    numbers: dict[int, int] = {}
    with ExitStack() as stack:
        trackers = {target: _tracker_of(target, study) for target in dict.fromkeys(targets)}
        for tracker in trackers.values():
            stack.callback(tracker.close)

        def write(trial: dict[str, Any]) -> None:
            number = numbers[trial["id"]] = trial["number"]
            run = Run(
                study,
                trial,
                f"{root}/{number}",
                cache(lambda after: _evaluations(client, trial, after)),
                cache(lambda: trial["attempts"] if "attempts" in trial else client.trial(study_id, number)["attempts"]),
            )
            for target, tracker in trackers.items():
                with _in_words(target, tracker.errors):
                    tracker.write(run)

        for trial in client.trials(study_id):
            write(trial)
        if study["finished_at"] is not None:
            return
        for events in _batches(client.events(study["last_event_id"], study_id=study_id)):
            numbers |= {event["trial_id"]: event["data"]["number"] for event in events if event["kind"] == "trial"}
            for number in {numbers[event["trial_id"]]: None for event in events if event["trial_id"] in numbers}:
                with suppress(NotFound):  # it may have been deleted meanwhile; what was written of it stays
                    write(client.trial(study_id, number))
            if any(event["kind"] == "study" for event in events) and client.study(study_id)["finished_at"]:
                break
        for trial in client.trials(study_id):
            write(trial)


def _tracker_of(target: str, study: dict[str, Any]) -> Tracker:
    name, _, place = target.partition("=")
    if name not in TRACKERS or not place:
        raise InvalidInput(f"a tracker is NAME=PLACE with a name of {', '.join(TRACKERS)}; got {target!r}")
    class_name, package = TRACKERS[name]
    try:
        kind = getattr(import_module(f"scamp.trackers.{name}"), class_name)
    except ModuleNotFoundError as error:
        raise NotInstalled(f"{name} needs a package that is not installed here: pip install {package}") from error
    with _in_words(target, kind.errors):
        tracker: Tracker = kind(place, study)
    return tracker


@contextmanager
def _in_words(target: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise Unavailable(f"cannot write to {target}: {error}; repeat the command to continue") from error


def _evaluations(client: Client, trial: dict[str, Any], after: int) -> list[Evaluation]:
    if trial["step"] <= after:
        return []
    return [
        Evaluation(
            row["step"],
            row["time"],
            {name: math.nan if value is None else value for name, value in row["values"].items()},
        )
        for row in client.metrics(trial["study_id"], trial["number"], after=after)
    ]


def _batches(events: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The events that have come meanwhile, again and again."""
    queue: SimpleQueue[dict[str, Any] | Exception] = SimpleQueue()

    def read() -> None:
        try:
            for event in events:
                queue.put(event)
        except Exception as error:  # raised where the events are used
            queue.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        first = queue.get()
        time.sleep(BATCH_SECONDS)
        batch = [first, *(queue.get() for _ in range(queue.qsize()))]
        yield [event for event in batch if not isinstance(event, Exception)]
        for error in batch:
            if isinstance(error, Exception):
                raise error
