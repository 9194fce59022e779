"""Prometheus metrics: counts read from the study database at each scrape, and the requests of this process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.ready_probe import controller_silent_seconds
from estimators.model import MIB
from placement.packing.device_time import DeviceTime, day_of, month_began
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.store.store import Store

__all__ = ["CONTENT_TYPE_LATEST", "Measure", "Metrics"]

METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])


class Metrics:
    """The metrics of one app. Each app has its own registry, so two apps in a process do not share counts."""

    def __init__(self, store: Store) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Database(store))
        self.requests = Counter(
            "scamp_api_requests", "HTTP requests answered", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "scamp_api_request_duration_seconds",
            "Time to the first byte of the answer",
            ["route"],
            registry=self.registry,
        )
        self.event_clients = Gauge("scamp_api_event_clients", "Clients that follow events", registry=self.registry)

    def text(self) -> bytes:
        """The answer to a scrape, in Prometheus's text format."""
        return generate_latest(self.registry)


class Measure:
    """Middleware that counts and times requests by the route's template.

    It never uses the address itself: the number of labels must not grow with the requests.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()

        async def count_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._metrics.requests.labels(method, route, str(message["status"])).inc()
                self._metrics.seconds.labels(route).observe(time.monotonic() - began)
            await send(message)

        await self._app(scope, receive, count_start)


class _Database(Collector):
    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        return []  # registering must not read the database

    def collect(self) -> Iterable[Metric]:
        totals = self._store.counts.totals()
        yield _by_state(
            "scamp_studies",
            "Studies",
            {state.value: totals.studies.get(state, 0) for state in StudyState if state is not StudyState.DELETED},
        )
        yield _by_state(
            "scamp_trials",
            "Trials",
            {state.value: totals.trials.get(state, 0) for state in TrialState if state is not TrialState.DELETED},
        )
        yield GaugeMetricFamily("scamp_open_attempts", "Attempts that hold devices", value=totals.open_attempts)
        recorded = self._store.cluster.recorded()
        silent = controller_silent_seconds(self._store, recorded[1] if recorded else None)
        yield GaugeMetricFamily(
            "scamp_controller_silent_seconds",
            "Time since the controller was last heard; not a number before there was one",
            value=math.nan if silent is None else silent,
        )
        labels = ["device", "kind"]
        capacity = GaugeMetricFamily("scamp_device_capacity_bytes", "Memory of a device", labels=labels)
        reserved = GaugeMetricFamily("scamp_device_reserved_bytes", "Memory reserved on a device", labels=labels)
        attempts = self._store.attempts.open()
        for recorded_device in recorded[0].devices if recorded else ():
            device = recorded_device.device
            held_mib = sum(attempt.mib_on(device.id) for attempt in attempts)
            capacity.add_metric([device.id, device.kind], device.capacity_mib * MIB)
            reserved.add_metric([device.id, device.kind], held_mib * MIB)
        yield capacity
        yield reserved
        busy = GaugeMetricFamily(
            "scamp_gang_busy_ratio", "How busy a gang was in the last measured minute", labels=["study", "trial"]
        )
        trials = {trial.id: trial for trial in self._store.trials.live()}
        for attempt in attempts:
            if attempt.load and (trial := trials.get(attempt.trial_id)):
                busy.add_metric([str(trial.study_id), str(trial.number)], attempt.load[-1].busy_share)
        yield busy
        yield from self._used()

    def _used(self) -> Iterable[Metric]:
        """Device time of this month."""
        labels, now = ["project", "owner"], time.time()
        names = ("scamp_month_device_seconds", "scamp_month_watched_device_seconds", "scamp_month_busy_device_seconds")
        words = ("Device time that was held this month", "Part of it that was measured", "Part of that which was busy")
        families = [GaugeMetricFamily(*each, labels=labels) for each in zip(names, words, strict=True)]
        sums: dict[tuple[str, str], DeviceTime] = {}
        for use in self._store.usage.of_days(day_of(month_began(now)), day_of(now), now=now):
            sums[use.project, use.owner] = sums.get((use.project, use.owner), DeviceTime()) + use.time
        for holder, held in sorted(sums.items()):
            seconds = (held.device_seconds, held.watched_seconds, held.busy_seconds)
            for family, value in zip(families, seconds, strict=True):
                family.add_metric(list(holder), value)
        return families


def _by_state(name: str, words: str, counts: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, f"{words} by state", labels=["state"])
    for state, count in counts.items():
        family.add_metric([state], count)
    return family
