"""Decides how many devices to ask an autoscaler for, and which idle nodes it may take back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def devices_wanted(num_in_use: int, waiting: Sequence[int], most: int) -> int:
    """Devices in use, and those for as many waiting gangs as fit with them into ``most``; each gang counts whole.

    ``waiting`` are the ranks of the gangs in the order in which they would start. One that is too large is left out.
    """
    num_wanted = num_in_use
    for num_ranks in waiting:
        if num_wanted + num_ranks <= most:
            num_wanted += num_ranks
    return num_wanted


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
