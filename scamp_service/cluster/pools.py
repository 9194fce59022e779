"""The devices of a Ray cluster: a pool of bundles on each node, or why a node offers none.

One detached placement group per node holds one bundle per device permanently. Ray does not track how many MiB of a
device are free; the ledger in ``placement`` does. A Ray task on each node measures what its GPUs offer.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from placement.model import VIRTUAL_KIND, Cluster, Device
from scamp_service.cluster.gpu_nodes import measure_gpus, usable_mib, why_nothing
from scamp_service.cluster.gpus import Gpu
from scamp_service.cluster.local_ray import VIRTUAL_DEVICE
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

    def __init__(self, settings: Settings) -> None:
        self._offers = Offers(settings)
        self._pools: dict[str, Pool] = {}
        self._saw_nodes = False

    def __iter__(self) -> Iterator[Pool]:
        """Iterate over the pools whose devices can be used, ordered by node."""
        return (pool for _, pool in sorted(self._pools.items()) if pool.ready)

    @property
    def cluster(self) -> Cluster:
        """The devices that can be used now."""
        return Cluster(tuple(device for pool in self for device in pool.devices))

    @property
    def status(self) -> str:
        """``ready``, ``starting``, or why there is no device."""
        if any(self):
            return "ready"
        if self._pools or not self._saw_nodes:
            return "starting"
        if refused := self._offers.refused:
            return f"no devices: {'; '.join(refused.values())}"
        return f"no devices: start nodes with GPUs, or with --resources='{{\"{VIRTUAL_DEVICE}\": 4}}'"

    def follow(self, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Pool]:
        """Create a pool for each new one of the living ``nodes`` that offers devices.

        Returns the pools of nodes that have left the cluster, by node id, after removing their placement groups.
        """
        gone = {node_id: self._pools.pop(node_id) for node_id in set(self._pools) - set(nodes)}
        for pool in gone.values():
            remove_placement_group(pool.group)
        self._offers.hear(nodes)
        for node_id, node in nodes.items():
            if node_id not in self._pools and (devices := self._offers.devices(node_id, node["Resources"])):
                num_cpus = int(node["Resources"].get("CPU", 1))
                self._pools[node_id] = Pool(node["NodeManagerAddress"], num_cpus, _group(node_id, devices), devices)
        self._saw_nodes = True
        for pool in self._pools.values():
            pool.ready = pool.ready or _is_created(pool.group)
        return gone

    def options(self, device_id: str, share: float) -> dict[str, Any]:
        """Ray options of an actor that takes ``share`` of a device's bundle."""
        group, number, device = next(
            (pool.group, number, device)
            for pool in self
            for number, device in enumerate(pool.devices)
            if device.id == device_id
        )
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        taken = {"resources": {VIRTUAL_DEVICE: share}} if _is_virtual(device) else {"num_gpus": share}
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
        for known in (self.refused, self._measured, self._asked, self._answers):
            for node_id in set(known) - set(nodes):
                del known[node_id]
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
        return tuple(Device(f"{node}/{i}", node, i, VIRTUAL_KIND, self._settings.device_mib) for i in range(count))

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


def _group(node_id: str, devices: tuple[Device, ...]) -> PlacementGroup:
    name = f"pool/{node_id[:8]}"
    try:
        group: PlacementGroup = ray.util.get_placement_group(name)
    except ValueError:
        group = placement_group(
            [{VIRTUAL_DEVICE if _is_virtual(device) else "GPU": 1.0} for device in devices],
            name=name,
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node_id} for _ in devices],
        )
        group.wait(1)  # usually takes milliseconds
    return group


def _is_virtual(device: Device) -> bool:
    return device.kind == VIRTUAL_KIND


def _is_created(group: PlacementGroup) -> bool:
    """Read from Ray's table: ``PlacementGroup.wait`` rounds down to whole seconds, and with 0 its answer is random."""
    table: dict[str, Any] = placement_group_table(group)
    return table.get("state") == "CREATED"
