"""Decides how many devices to ask an autoscaler for, which it may add, and which idle nodes it may take back. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from placement.model import Cluster, Device


def devices_wanted(num_in_use: int, waiting: Sequence[int], most: int) -> int:
    """Devices in use, and those for as many waiting gangs as fit with them into ``most``; each gang counts whole.

    ``waiting`` are the ranks of the gangs in the order in which they would start. One that is too large is left out.
    """
    num_wanted = num_in_use
    for num_ranks in waiting:
        if num_wanted + num_ranks <= most:
            num_wanted += num_ranks
    return num_wanted


def with_devices_to_come(cluster: Cluster, most: int) -> Cluster:
    """The cluster with the devices that an autoscaler may add, up to ``most`` devices in all.

    They are taken to be on nodes like the one that has the most devices now. An empty cluster stays empty, as nothing
    is known of its devices.
    """
    nodes: defaultdict[str, list[Device]] = defaultdict(list)
    for device in cluster.devices:
        nodes[device.node].append(device)
    largest = max(nodes.values(), key=len, default=[])
    num_to_come = max(0, most - len(cluster.devices)) if largest else 0
    to_come = [
        replace(largest[index], id=f"to-come-{node}/{index}", node=f"to-come-{node}", index=index)
        for node, index in (divmod(number, len(largest)) for number in range(num_to_come))
    ]
    return Cluster((*cluster.devices, *to_come)) if to_come else cluster


def nodes_to_give_back(num_devices: Mapping[str, int], in_use: frozenset[str], num_wanted: int) -> frozenset[str]:
    """The idle nodes without which there still are ``num_wanted`` devices, the smallest ones first.

    ``num_devices`` are those of each node; nodes ``in_use`` are kept.
    """
    left = sum(num_devices.values())
    given_back: set[str] = set()
    for node in sorted(num_devices.keys() - in_use, key=lambda node: (num_devices[node], node)):
        if left - num_devices[node] >= num_wanted:
            given_back.add(node)
            left -= num_devices[node]
    return frozenset(given_back)
