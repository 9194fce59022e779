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
            known, began = self._known, time.monotonic()
            if known is None or began - known.made_at > max(KEPT_SECONDS, 20 * known.took_seconds):
                load, cluster = load_of(self.store, now=self.store.now()), recorded_cluster(self.store)
                known = self._known = Now(load, cluster, self._forecast(load, cluster), began, 0.0)
                known = self._known = replace(known, took_seconds=time.monotonic() - began)
            return known

    def with_more(self, add: str) -> tuple[Cluster, Forecast]:
        """The devices ``add`` and the forecast with them. Raises ``InvalidInput`` for text that names no cluster."""
        now, more = self.now(), cluster_named(add, self.settings)
        added = Cluster(
            tuple(replace(one, id=f"added-{one.id}", node=f"added-{one.node}") for one in more.cluster.devices)
        )
        cluster = Cluster((*now.cluster.devices, *added.devices))
        return added, self._forecast(now.load, cluster, more.kinds)

    def _forecast(self, load: Load, cluster: Cluster, kinds: Mapping[str, DeviceKind] = NO_KINDS) -> Forecast:
        own = device_kind_of(self.settings.data_dir, cluster) if cluster.devices else None
        known = {cluster.devices[0].kind: own, **kinds} if own else kinds
        cores = own.cores.value if own and own.cores else math.inf
        most = self.settings.max_gangs_per_device
        policy = policy_named(self.settings.policy)
        return forecast(load, cluster, kinds=known, policy=policy, max_gangs_per_device=most, cores=cores)
