"""The devices of a Ray cluster: a pool of bundles on each node, or why a node offers none.

One detached placement group per node holds one bundle per device permanently. Ray does not track how many MiB of a
device are free; the ledger in ``placement`` does. So a node whose devices another ScaMP holds offers none to this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from placement.model import VIRTUAL_KIND, Cluster, Device
from scamp_service.cluster.devices.bundles import Bundle, GpuBundle, VirtualBundle
from scamp_service.cluster.devices.pool_table import ListedPool, list_pools, pool_name
from scamp_service.cluster.devices.virtual import VIRTUAL_DEVICE, is_virtual
from scamp_service.settings import Settings

GPU = "GPU"
"""Ray's resource of GPUs."""


@dataclass(eq=False)
class Pool:
    """The bundles of one node. ``ready`` means that Ray has made them."""

    node_ip: str
    num_cpus: int
    group: PlacementGroup
    bundles: tuple[Bundle, ...]
    ready: bool = False

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the node offers now, by index."""
        offered = (bundle.device for bundle in self.bundles if bundle.device is not None)
        return tuple(sorted(offered, key=lambda device: device.index))

    @property
    def is_known(self) -> bool:
        """Whether every bundle has a device, or has said why not."""
        return self.ready and all(bundle.device is not None or bundle.why for bundle in self.bundles)


class Pools:
    """Pools of all nodes. Not thread-safe: its owner holds a lock."""

    def __init__(self, settings: Settings, identity: str) -> None:
        """``identity`` is the name of the study database."""
        self._settings, self._identity = settings, identity
        self._pools: dict[str, Pool] = {}
        self._foreign: dict[str, str] = {}  # node id → database that holds its devices
        self.owners: dict[str, str] = {}  # database → whose it is, in words, as far as it is known
        self.leaving: Mapping[str, str] = {}  # living node → why it is about to leave
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
        if self.cluster.devices:
            return "ready"
        is_starting = not self._saw_nodes or any(not pool.is_known for pool in self._pools.values())
        return "starting" if is_starting else "no devices"

    @property
    def detail(self) -> str:
        """Why there are no devices, or why some GPUs offer none, and what to do about it; that this is a rehearsal; and
        which nodes are about to leave.

        Empty when there is nothing to say.
        """
        file = self._settings.rehearsal_gpus
        rehearsal = f"this is a rehearsal: its GPUs are those of {file}, and its ranks train on the CPU" if file else ""
        refused = [bundle.why for pool in self for bundle in pool.bundles]
        why_none = self._why_none() if self.status == "no devices" and not any(refused) else ""
        return "; ".join(dict.fromkeys(filter(None, (rehearsal, why_none, *refused, *self.leaving.values()))))

    def _why_none(self) -> str:
        if self._foreign:
            owners = {name: self.owners.get(name, f"database {name}") for name in self.foreign}
            held = (f"node {node_id[:8]} belongs to {owners[name]}" for node_id, name in self._foreign.items())
            return f"{'; '.join(held)}: wait until that ScaMP has ended, or end it"
        if self._given_back - self.leaving.keys():
            return "idle nodes are given back to the autoscaler, until a trial needs them"
        return f"start nodes with GPUs, or with --resources='{{\"{VIRTUAL_DEVICE}\": 4}}'"

    @property
    def foreign(self) -> frozenset[str]:
        """Names of the databases to which devices of this cluster belong."""
        return frozenset(self._foreign.values())

    @property
    def leaving_devices(self) -> dict[str, str]:
        """Devices whose nodes are about to leave, and why."""
        return {
            device.id: f"its node is leaving: {why}"
            for node_id, why in self.leaving.items()
            if node_id in self._pools
            for device in self._pools[node_id].devices
        }

    def num_devices(self, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """How many devices each of the living ``nodes`` has that this ScaMP uses, or would use if it were not given
        back."""
        return {
            node_id: number
            for node_id in nodes.keys() - self._foreign.keys()
            if (number := len(self._bundles(node_id, nodes[node_id]["Resources"])))
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
        for node_id in nodes.keys() - self._pools.keys() - self._foreign.keys() - self._given_back:
            resources = nodes[node_id]["Resources"]
            if bundles := self._bundles(node_id, resources):
                num_cpus = int(resources.get("CPU", 1))
                group = _group(self._identity, node_id, GPU if GPU in resources else VIRTUAL_DEVICE, len(bundles))
                self._pools[node_id] = Pool(nodes[node_id]["NodeManagerAddress"], num_cpus, group, bundles)
        self._saw_nodes = True
        created = {pool.node for pool in list_pools() if pool.is_created and pool.identity == self._identity}
        for node_id, pool in list(self._pools.items()):
            if pool.ready and node_id[:8] not in created:
                del self._pools[node_id]  # somebody has removed its group: the next call makes a new one
            pool.ready = node_id[:8] in created
            for bundle in pool.bundles if pool.ready else ():
                bundle.look(pool.group)
        return gone

    def _bundles(self, node_id: str, resources: Mapping[str, float]) -> tuple[Bundle, ...]:
        """New bundles for a node with these Ray resources: one for each GPU, or else for each virtual device."""
        node, settings = node_id[:8], self._settings
        if num_gpus := int(resources.get(GPU, 0)):
            most, rehearsal = settings.max_gangs_per_device, settings.rehearsal_gpus
            return tuple(GpuBundle(node, number, most, rehearsal) for number in range(num_gpus))
        count, mib_of = min(int(resources.get(VIRTUAL_DEVICE, 0)), settings.virtual_devices), settings.mib_of_device
        return tuple(VirtualBundle(Device(f"{node}/{i}", node, i, VIRTUAL_KIND, mib_of(i))) for i in range(count))

    def _owner(self, node_id: str, listed: Sequence[ListedPool]) -> str:
        """The other database that holds the node's devices; empty if none does."""
        held = (pool.identity for pool in listed if pool.node == node_id[:8] and pool.is_created)
        return next((identity for identity in held if identity != self._identity), "")

    @property
    def unit(self) -> str:
        """The Ray resource of which a device takes one: that of GPUs, unless there are only virtual devices."""
        devices = self.cluster.devices
        return VIRTUAL_DEVICE if devices and not self.cluster.has_gpus else GPU

    def options(self, device_id: str, share: float) -> dict[str, Any]:
        """Ray options of an actor that takes ``share`` of a device's bundle."""
        group, number, device = next(
            (pool.group, number, bundle.device)
            for pool in self
            for number, bundle in enumerate(pool.bundles)
            if bundle.device is not None and bundle.device.id == device_id
        )
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        taken = {"resources": {VIRTUAL_DEVICE: share}} if is_virtual(device) else {"num_gpus": share}
        return {"scheduling_strategy": strategy, **taken}

    def remove(self) -> None:
        """Remove all placement groups."""
        for pool in self._pools.values():
            remove_placement_group(pool.group)


def _group(identity: str, node_id: str, unit: str, number: int) -> PlacementGroup:
    name = pool_name(identity, node_id)
    try:
        group: PlacementGroup = ray.util.get_placement_group(name)
    except ValueError:
        group = placement_group(
            [{unit: 1.0}] * number,
            name=name,
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node_id}] * number,
        )
        group.wait(1)  # usually takes milliseconds
    return group
