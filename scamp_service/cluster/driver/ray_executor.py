"""Runs gangs on Ray: warm ranks in the bundles of ``pools``, which outlive this process and are found by their names.

Nothing here decides what to run, and no method waits for a rank: a background thread takes the answers.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from placement.model import Cluster, Ready
from scamp_service.cluster.devices.autoscaler import Autoscaler
from scamp_service.cluster.devices.pools import Pools
from scamp_service.cluster.driver.calls import Calls
from scamp_service.cluster.driver.rank_actors import RankActors
from scamp_service.cluster.driver.rank_processes import leaving_nodes, nodes, owner_of
from scamp_service.cluster.driver.sink_keeper import SinkKeeper
from scamp_service.cluster.driver.states import events
from scamp_service.cluster.driver.states.events import Node
from scamp_service.cluster.driver.states.rank_states import RankStates
from scamp_service.cluster.local.connection import connect, is_ours, namespace_of
from scamp_service.cluster.sink import ensure_sink
from scamp_service.cluster.worker.folders import Folders
from scamp_service.cluster.worker.rank import rank_class
from scamp_service.control.executor import GangStatus, Order
from scamp_service.host import source_hash
from scamp_service.remote.copies import stored_at
from scamp_service.settings import Settings
from scamp_service.store.recorded_cluster import RecordedCluster, RecordedDevice

log = logging.getLogger("scamp.ray")

SHARE = 0.01  # share of a bundle that one rank takes: at most 100 ranks on a device
EXPECTED_TERMINATION = 1  # Ray's reason for the death of a node: it was stopped by SIGTERM
PAUSE_SECONDS = 5.0  # between two looks: this process was frozen meanwhile, so no silence counts
TURN_SECONDS = 0.05  # between two looks at what is due, without any answer
REFRESH_SECONDS = 1.0
MAX_ATTEMPTS = 200


@dataclass(frozen=True, slots=True)
class Term:
    """The term of a leading controller. ``identity`` is the name of its study database, ``number`` that of its lease.

    Ranks are started and ended only while ``may_act()``, which says that no other controller can lead now.
    """

    identity: str
    number: int
    may_act: Callable[[], bool] = lambda: True


class RayExecutor:
    """Implements ``executor.Executor``. One background thread handles ends and deaths; no method waits for a rank."""

    def __init__(
        self,
        settings: Settings,
        store_url: str,
        checkpoint_root: Path,
        term: Term,
        *,
        has_news: Callable[[], None] = lambda: None,
        lease_seconds: float = 60.0,
    ) -> None:
        """Connect to ``settings.ray_address`` and take over the living ranks. Raises ``Unavailable`` or ``Refused``.

        ``has_news`` is called, in any thread, when a rank has answered.
        """
        self._settings, self._store_url, self._lease_seconds = settings, store_url, lease_seconds
        self._folders = Folders.of_controller(settings, checkpoint_root, stored_at(settings, term.identity))
        self._identity, self._namespace = term.identity, namespace_of(term.identity)
        self._term, self._may_act = term.number, term.may_act
        self._has_news = has_news
        self._lock = threading.RLock()
        self._closed = threading.Event()
        can_scale = settings.autoscale_devices > 0 and not is_ours(settings.ray_address, settings.data_dir)
        self._autoscaler = Autoscaler() if can_scale else None
        self._pools = Pools(settings, term.identity)
        self._calls = Calls()
        self._states = RankStates(
            new_id=lambda: secrets.token_hex(4),
            version=source_hash(),
            lease_seconds=lease_seconds,
            max_per_device=settings.max_gangs_per_device,
        )
        self._looked = time.monotonic()
        self._refreshed = 0.0
        self._rank_class: Any = rank_class()
        self._thread = threading.Thread(target=self._watch, name="ray-executor", daemon=True)
        connect(settings.ray_address, settings.data_dir, self._namespace)
        try:
            self._take_stock()
        except BaseException:
            ray.shutdown()  # a process connects only once at a time: the next executor could not begin
            raise

    def _take_stock(self) -> None:
        self._node_id = ray.get_runtime_context().get_node_id()
        self._sink = SinkKeeper(
            lambda: ensure_sink(self._store_url, self._identity, self._node_id, self._namespace),
            self._calls,
            node_id=self._node_id,
            may_act=self._may_act,
            now=time.monotonic(),
        )
        self._actors = RankActors(
            self._states,
            self._create,
            self._calls,
            node_id=self._node_id,
            term=self._term,
            may_act=self._may_act,
        )
        self._adopt()
        self._refresh_pools()
        self._thread.start()

    # --- what exists now --------------------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        """The devices that can be used now; empty while the cluster starts."""
        with self._lock:
            return self._pools.cluster

    def describe(self) -> RecordedCluster:
        """The cluster's status and devices, for ``Store.record_cluster``."""
        with self._lock:
            status, detail = self._pools.status, self._pools.detail
        closed = self.closed()
        devices = (RecordedDevice(device, closed.get(device.id, "")) for device in self.cluster().devices)
        return RecordedCluster(status, detail, tuple(devices))

    def gangs(self) -> Mapping[str, GangStatus]:
        """Status of every attempt (``trial/attempt``) that has a rank."""
        with self._lock:
            return self._states.gangs(self._looked)

    def silent(self) -> frozenset[str]:
        """Devices with a rank whose present activity nobody knows."""
        with self._lock:
            return self._states.ranks.silent()

    def put_off(self) -> frozenset[str]:
        """Attempts whose launch waits until their nodes have started other ranks."""
        with self._lock:
            return self._states.put_off(self._looked)

    def closed(self) -> Mapping[str, str]:
        """Devices on which nothing new may start now, and why."""
        with self._lock:
            return {**self._states.closed(), **self._pools.leaving_devices}

    def leaving(self) -> Mapping[str, str]:
        """Devices whose nodes are about to leave, and why."""
        with self._lock:
            return self._pools.leaving_devices

    def ready(self) -> Ready:
        """Where idle ranks have started, and which archives of user code they have run."""
        with self._lock:
            return self._states.ranks.ready()

    # --- what is asked for -------------------------------------------------------------------------------------------

    def launch(self, order: Order) -> None:
        """Start an attempt. No effect when it exists, a device has left, or another controller may lead.

        It is put off while a node starts other ranks.
        """
        with self._lock:
            nodes_there = {device: node for node in self._nodes() for device in node.devices}
            if missing := [device for device in order.devices if device not in nodes_there]:
                log.warning("attempt %s is not launched: %s has left, or is leaving", order.key, ", ".join(missing))
                return
            self._actors.handle(events.LaunchOrdered(order, tuple(nodes_there[device] for device in order.devices)))

    def stop(self, key: str, *, keep: bool = False) -> None:
        """Ask the ranks of an attempt to stop; they are killed if the gang is broken or they take too long."""
        self._stop(key, self._settings.keep_seconds if keep else 0.0)

    def _stop(self, key: str, keep_seconds: float) -> None:
        with self._lock:
            self._actors.handle(events.StopOrdered(key, keep_seconds))

    def close(self) -> None:
        """Disconnect from Ray. Ranks and gangs keep running."""
        self._closed.set()
        self._thread.join()
        ray.shutdown()

    def stop_all(self) -> None:
        """Ask every gang to stop with a checkpoint, and wait for those that can do so within ``stop_seconds``."""
        deadline = time.monotonic() + self._settings.stop_seconds
        for key in self.gangs() if self._may_act() else ():
            self._stop(key, self._settings.stop_seconds)
        while self._may_act() and self.gangs() and time.monotonic() < deadline:
            time.sleep(0.05)

    def shutdown(self, seconds: float = 20.0) -> None:
        """End every rank, the sink and the pools, then disconnect.

        Waits up to ``seconds`` for the ranks on this host to end. Ray ends the others, and ranks whose host is unknown.
        """
        if not self._may_act():
            self.close()
            return
        deadline = time.monotonic() + seconds
        self._closed.set()
        self._thread.join()
        with self._lock:
            self._actors.handle(events.EndOrdered())
            while self._actors.any_live_here() and time.monotonic() < deadline:
                time.sleep(0.02)
            with contextlib.suppress(ray.exceptions.RayError):
                self._sink.end()
                self._pools.remove()
                if self._autoscaler is not None:
                    self._autoscaler.end()
        ray.shutdown()

    # --- the background thread -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                self._turn()
            except Exception:
                log.exception("error in the Ray executor; it continues")
                self._closed.wait(0.5)

    def _turn(self) -> None:
        ready = self._calls.answered(TURN_SECONDS)
        with self._lock:
            for ref in ready:
                if called := self._calls.take(ref):
                    self._actors.receive(*called, ref)
                else:
                    self._sink.receive(ref)
            self._maintain()
        if ready:
            self._has_news()
        if time.monotonic() - self._refreshed > REFRESH_SECONDS:
            self._refreshed = time.monotonic()
            self._refresh()

    def _maintain(self) -> None:
        now = time.monotonic()
        pause, self._looked = now - self._looked, now
        if pause > PAUSE_SECONDS:
            self._sink.excuse(pause)
            self._actors.handle(events.Paused(pause))
        self._actors.look(self._nodes())

    def _refresh(self) -> None:
        with self._lock:
            self._actors.handle(events.ProbeDue())
            self._sink.check(time.monotonic())
        self._refresh_pools()

    # --- ranks and devices of the cluster ----------------------------------------------------------------------------

    def _nodes(self) -> tuple[Node, ...]:
        """The nodes whose devices can be used now."""
        pools, leaving = list(self._pools), self._pools.leaving_devices
        return tuple(
            Node(
                pool.node_ip,
                pool.num_cpus,
                {device.id: device.capacity_mib for device in pool.devices if device.id not in leaving},
            )
            for pool in pools
        )

    def _create(self, name: str, device: str) -> Any:
        """The actor of a new rank."""
        return self._rank_class.options(
            name=name,
            namespace=self._namespace,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            max_concurrency=16,
            **self._pools.options(device, SHARE),
        ).remote(
            self._folders,
            self._lease_seconds,
            MAX_ATTEMPTS,
            self._namespace,
            self._term,
            self._settings.pass_environment,
        )

    def _adopt(self) -> None:
        """Find the ranks of an earlier controller, and ask them what they do."""
        for listed in ray.util.list_named_actors(all_namespaces=True):
            name = listed["name"]
            if listed["namespace"] == self._namespace and name.startswith("rank/"):
                with contextlib.suppress(ValueError):  # it has just died
                    self._actors.find(name, ray.get_actor(name, self._namespace))

    @property
    def can_scale(self) -> bool:
        """Whether Ray's autoscaler may be asked for devices."""
        return self._autoscaler is not None

    def want_devices(self, num_devices: int) -> None:
        """Tell Ray's autoscaler how many devices the trials want, where the settings allow it."""
        if self._autoscaler is not None:
            with self._lock:
                self._autoscaler.want(num_devices)

    def _given_back(self, alive: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
        """The idle nodes that are about to leave, or that the autoscaler may end."""
        used = {rank.node for rank in self._states.ranks.values() if rank.keys or not rank.is_known}
        in_use = frozenset(node_id for node_id in alive if node_id[:8] in used)
        leaving = frozenset(self._pools.leaving)
        if self._autoscaler is None:
            return leaving - in_use
        stay = {node_id: node for node_id, node in alive.items() if node_id not in leaving}
        self._autoscaler.follow(self._pools.num_devices(stay), in_use, self._pools.unit)
        return (leaving - in_use) | self._autoscaler.given_back

    def _refresh_pools(self) -> None:
        listed = nodes()
        alive = {node["NodeID"]: node for node in listed if node["Alive"]}
        drained = (node["NodeID"][:8] for node in listed if node.get("DeathReason") == EXPECTED_TERMINATION)
        leaving = {node_id: why for node_id, why in leaving_nodes().items() if node_id in alive}
        with self._lock:
            names = {node_id[:8]: node_id for node_id in alive}
            self._actors.handle(events.NodesSeen(names, frozenset(drained)))
            self._pools.leaving = leaving
            for node_id, pool in self._pools.follow(alive, self._given_back(alive)).items():
                devices = tuple(device.id for device in pool.devices)
                why = "is idle, and is given back" if node_id in alive else "has left the cluster"
                log.warning("node %s %s, with devices %s", node_id[:8], why, ", ".join(devices))
                self._actors.handle(events.DevicesLeft(devices, f"node {node_id[:8]} {why}"))
            unknown = self._pools.foreign - self._pools.owners.keys()
        for identity in unknown:
            if owner := owner_of(identity):
                with self._lock:
                    self._pools.owners[identity] = owner
