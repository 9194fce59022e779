"""Keeps the forecast of the live queue for a while, because pages ask for the cluster after every event."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from estimators.devices.kind import DeviceKind
from placement.model import Cluster
from placement.packing.policies import policy_named
from scamp_service.settings import Settings
from scamp_service.simulation.forecast import Forecast, Load, forecast, load_of, recorded_cluster
from scamp_service.sizing.calibration import device_kind_of
from scamp_service.sizing.cluster_file import cluster_named
from scamp_service.store.store import Store

KEPT_SECONDS = 5.0
NO_KINDS: Mapping[str, DeviceKind] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Now:
    """The live queue, the devices that it has, its forecast, when it was made by a monotonic clock, and how long that
    took."""

    load: Load
    cluster: Cluster
    forecast: Forecast
    made_at: float
    took_seconds: float


@dataclass
class Forecasts:
    """The newest forecast. Safe for threads: one is made at a time."""

    store: Store
    settings: Settings
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: Now | None = None

    def now(self) -> Now:
        """The forecast of the live queue, at most ``KEPT_SECONDS`` old, or 20 times as long as it took to make."""
        with self._lock:
            kept_forecast, began = self._known, time.monotonic()
            if kept_forecast is None or began - kept_forecast.made_at > max(
                KEPT_SECONDS, 20 * kept_forecast.took_seconds
            ):
                load, cluster = load_of(self.store, now=self.store.now()), recorded_cluster(self.store)
                kept_forecast = self._known = Now(load, cluster, self._forecast(load, cluster), began, 0.0)
                kept_forecast = self._known = replace(kept_forecast, took_seconds=time.monotonic() - began)
            return kept_forecast

    def with_more(self, add: str) -> tuple[Cluster, Forecast]:
        """The devices ``add`` and the forecast with them. Raises ``InvalidInput`` for text that names no cluster."""
        now, more = self.now(), cluster_named(add, self.settings)
        added = Cluster(
            tuple(
                replace(device, id=f"added-{device.id}", node=f"added-{device.node}") for device in more.cluster.devices
            )
        )
        cluster = Cluster((*now.cluster.devices, *added.devices))
        return added, self._forecast(now.load, cluster, more.kinds)

    def _forecast(self, load: Load, cluster: Cluster, kinds: Mapping[str, DeviceKind] = NO_KINDS) -> Forecast:
        own_kind = device_kind_of(self.settings.data_dir, cluster) if cluster.devices else None
        all_kinds = {cluster.devices[0].kind: own_kind, **kinds} if own_kind else kinds
        cores = own_kind.cores.value if own_kind and own_kind.cores else math.inf
        most = self.settings.max_gangs_per_device
        policy = policy_named(self.settings.policy)
        return forecast(load, cluster, kinds=all_kinds, policy=policy, max_gangs_per_device=most, cores=cores)
