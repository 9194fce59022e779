"""The devices of a Ray cluster: a pool of bundles on each node, or why a node offers none.

One detached placement group per node holds one bundle per device permanently. Ray does not track how many MiB of a
device are free; the ledger in ``placement`` does. So a node whose devices another ScaMP holds offers none to this one.
A Ray task on each node measures what its GPUs offer.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from placement.model import VIRTUAL_KIND, Cluster, Device
from scamp_service.cluster.devices.gpu_nodes import measure_gpus, usable_mib, why_nothing
from scamp_service.cluster.devices.gpus import Gpu
from scamp_service.cluster.devices.pool_table import ListedPool, list_pools, pool_name
from scamp_service.cluster.devices.virtual import VIRTUAL_DEVICE, is_virtual
from scamp_service.settings import Settings

log = logging.getLogger("scamp.ray")

MEASURE_AGAIN_SECONDS = 60.0  # after which a node whose GPUs were full is measured again


@dataclass(eq=False)
class Pool:
    """The devices of one node, and their bundles in the same order."""

    node_ip: str
    num_cpus: int
    group: PlacementGroup
    devices: tuple[Device, ...]
    ready: bool = False


class Pools:
    """Pools of all nodes. Not thread-safe: its owner holds a lock."""

    def __init__(self, settings: Settings, identity: str) -> None:
        """``identity`` is the name of the study database."""
        self._offers = Offers(settings)
        self._identity = identity
        self._pools: dict[str, Pool] = {}
        self._foreign: dict[str, str] = {}  # node id → database that holds its devices
        self.owners: dict[str, str] = {}  # database → whose it is, in words, as far as it is known
        self._saw_nodes = False
        self._given_back: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Pool]:
        """Iterate over the pools whose devices can be used, ordered by node."""
        return (pool for _, pool in sorted(self._pools.items()) if pool.ready)

    @property
    def cluster(self) -> Cluster:
        """The devices that can be used now."""
        return Cluster(tuple(device for pool in self for device in pool.devices))

    @property
    def status(self) -> str:
        """``ready``, ``starting``, or ``no devices``."""
        if any(self):
            return "ready"
        return "starting" if self._pools or not self._saw_nodes else "no devices"

    @property
    def detail(self) -> str:
        """Why there are no devices, and what to do about it; empty while there are some, or may be soon."""
        if self.status != "no devices":
            return ""
        if self._foreign:
            owners = {name: self.owners.get(name, f"database {name}") for name in self.foreign}
            held = (f"node {node_id[:8]} belongs to {owners[name]}" for node_id, name in self._foreign.items())
            return f"{'; '.join(held)}: wait until that ScaMP has ended, or end it"
        if self._given_back:
            return "idle nodes are given back to the autoscaler, until a trial needs them"
        if refused := self._offers.refused:
            return "; ".join(refused.values())
        return f"start nodes with GPUs, or with --resources='{{\"{VIRTUAL_DEVICE}\": 4}}'"

    @property
    def foreign(self) -> frozenset[str]:
        """Names of the databases to which devices of this cluster belong."""
        return frozenset(self._foreign.values())

    def num_devices(self, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """How many devices each of the living ``nodes`` has that this ScaMP uses, or would use if it were not given
        back."""
        return {
            node_id: number
            for node_id in nodes.keys() - self._foreign.keys()
            if (number := len(self._offers.devices(node_id, nodes[node_id]["Resources"])))
        }

    def follow(
        self, nodes: Mapping[str, Mapping[str, Any]], given_back: Collection[str] = frozenset()
    ) -> dict[str, Pool]:
        """Create a pool for each new one of the living ``nodes`` that offers devices and belongs to no other ScaMP.

        Returns the pools of nodes that have left the cluster, or are ``given_back``, by node id, after removing their
        placement groups.
        """
        self._given_back = frozenset(given_back) & nodes.keys()
        gone = {
            node_id: self._pools.pop(node_id) for node_id in [*self._pools] if node_id not in nodes.keys() - given_back
        }
        for pool in gone.values():
            remove_placement_group(pool.group)
        listed = list(list_pools())
        self._foreign = {node_id: owner for node_id in nodes if (owner := self._owner(node_id, listed))}
        for node_id in self._foreign.keys() & self._pools.keys():
            remove_placement_group(self._pools.pop(node_id).group)  # the other one came first
        self._offers.hear(nodes)
        for node_id in nodes.keys() - self._pools.keys() - self._foreign.keys() - self._given_back:
            if devices := self._offers.devices(node_id, nodes[node_id]["Resources"]):
                num_cpus = int(nodes[node_id]["Resources"].get("CPU", 1))
                group = _group(self._identity, node_id, devices)
                self._pools[node_id] = Pool(nodes[node_id]["NodeManagerAddress"], num_cpus, group, devices)
        self._saw_nodes = True
        created = {pool.node for pool in list_pools() if pool.is_created and pool.identity == self._identity}
        for node_id, pool in list(self._pools.items()):
            if pool.ready and node_id[:8] not in created:
                del self._pools[node_id]  # somebody has removed its group: the next call makes a new one
            pool.ready = node_id[:8] in created
        return gone

    def _owner(self, node_id: str, listed: Sequence[ListedPool]) -> str:
        """The other database that holds the node's devices; empty if none does."""
        held = (pool.identity for pool in listed if pool.node == node_id[:8] and pool.is_created)
        return next((identity for identity in held if identity != self._identity), "")

    @property
    def unit(self) -> str:
        """The Ray resource of which a device takes one: that of GPUs, unless there are only virtual devices."""
        devices = self.cluster.devices
        return VIRTUAL_DEVICE if devices and not self.cluster.has_gpus else "GPU"

    def options(self, device_id: str, share: float) -> dict[str, Any]:
        """Ray options of an actor that takes ``share`` of a device's bundle."""
        group, number, device = next(
            (pool.group, number, device)
            for pool in self
            for number, device in enumerate(pool.devices)
            if device.id == device_id
        )
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        taken = {"resources": {VIRTUAL_DEVICE: share}} if is_virtual(device) else {"num_gpus": share}
        return {"scheduling_strategy": strategy, **taken}

    def remove(self) -> None:
        """Remove all placement groups."""
        for pool in self._pools.values():
            remove_placement_group(pool.group)


class Offers:
    """Devices that nodes offer. ``refused`` holds, by node id, why a node with GPUs offers none."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.refused: dict[str, str] = {}
        self._measured: dict[str, tuple[str, Gpu | None]] = {}
        self._asked: dict[str, float] = {}
        self._answers: dict[str, Any] = {}  # pending

    def hear(self, nodes: Mapping[str, Any]) -> None:
        """Collect the measurements that have arrived, and forget nodes that have left."""
        for table in (self.refused, self._measured, self._asked, self._answers):
            for node_id in set(table) - set(nodes):
                del table[node_id]
        for node_id, answer in list(self._answers.items()):
            answered, _ = ray.wait([answer], timeout=0)
            if answered:
                del self._answers[node_id]
                with contextlib.suppress(ray.exceptions.RayError):  # it is measured again
                    self._measured[node_id] = ray.get(answer)

    def devices(self, node_id: str, resources: Mapping[str, float]) -> tuple[Device, ...]:
        """Devices of a node with these Ray resources; empty until its GPUs are measured, and when it offers none."""
        node = node_id[:8]
        if num_gpus := int(resources.get("GPU", 0)):
            return self._gpus(node_id, num_gpus)
        count = min(int(resources.get(VIRTUAL_DEVICE, 0)), self._settings.virtual_devices)
        mib_of = self._settings.mib_of_device
        return tuple(Device(f"{node}/{i}", node, i, VIRTUAL_KIND, mib_of(i)) for i in range(count))

    def _gpus(self, node_id: str, num_gpus: int) -> tuple[Device, ...]:
        """Empty until the node has answered, and while it has nothing to offer."""
        if node_id not in self._measured:
            self._ask(node_id, num_gpus)
            return ()
        node, (kind, least) = node_id[:8], self._measured[node_id]
        if reason := why_nothing(node, least, self._settings.max_gangs_per_device):
            if node_id not in self.refused:
                log.warning("%s", reason)
            self.refused[node_id] = reason
            if time.monotonic() - self._asked[node_id] > MEASURE_AGAIN_SECONDS:
                self._ask(node_id, num_gpus)
            return ()
        self.refused.pop(node_id, None)
        assert least is not None
        usable = usable_mib(least.free_mib, self._settings.max_gangs_per_device)
        return tuple(Device(f"{node}/{i}", node, i, kind, usable) for i in range(num_gpus))

    def _ask(self, node_id: str, num_gpus: int) -> None:
        if node_id not in self._answers:
            self._asked[node_id] = time.monotonic()
            self._answers[node_id] = self._measure(node_id, num_gpus)

    def _measure(self, node_id: str, num_gpus: int) -> Any:
        strategy: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)
        task = ray.remote(measure_gpus).options(num_cpus=0, scheduling_strategy=strategy)
        return task.remote(num_gpus)


def _group(identity: str, node_id: str, devices: tuple[Device, ...]) -> PlacementGroup:
    name = pool_name(identity, node_id)
    try:
        group: PlacementGroup = ray.util.get_placement_group(name)
    except ValueError:
        group = placement_group(
            [{VIRTUAL_DEVICE if is_virtual(device) else "GPU": 1.0} for device in devices],
            name=name,
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node_id} for _ in devices],
        )
        group.wait(1)  # usually takes milliseconds
    return group
