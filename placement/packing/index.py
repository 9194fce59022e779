"""An index of devices by free MiB, and of nodes by the devices that they have free: finds devices in microseconds.

Numbers stand for devices and nodes: their positions in the cluster. A device is *in* the index while a gang may start
there. Everything is kept in sorted lists, whose insertions move a few kilobytes even with ten thousand devices.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

_SHIFT = 24  # bits for a position: at most 16 million devices
_MASK = (1 << _SHIFT) - 1
ABSENT = -1
"""Free MiB of a device that is not in the index."""


class FreeIndex:
    """Devices by free MiB. ``_ranked[k - 1]`` holds each node with at least k devices, by the k-th largest of these."""

    def __init__(self, node_of: Sequence[int]) -> None:
        """``node_of`` has the node of each device; no device is in the index yet."""
        self._node_of = node_of
        self._free = [ABSENT] * len(node_of)
        self.total_mib = 0
        """Free MiB of all devices together."""
        self._devices: list[int] = []  # free MiB and position of each device, as one number
        self._on_node: list[list[int]] = [[] for _ in range(max(node_of, default=-1) + 1)]  # the same by node
        self._ranked: list[list[int]] = []

    def free(self, device: int) -> int:
        """Free MiB of a device; ``ABSENT`` if it is not in the index."""
        return self._free[device]

    def set(self, device: int, free_mib: int) -> None:
        """Change the free MiB of a device, or take it out (``ABSENT``)."""
        old_mib = self._free[device]
        if old_mib == free_mib:
            return
        self._free[device] = free_mib
        self.total_mib += max(0, free_mib) - max(0, old_mib)
        node = self._node_of[device]
        on_node = self._on_node[node]
        before = on_node[::-1]
        if old_mib >= 0:
            key = old_mib << _SHIFT | device
            del self._devices[bisect_left(self._devices, key)]
            del on_node[bisect_left(on_node, key)]
        if free_mib >= 0:
            key = free_mib << _SHIFT | device
            insort(self._devices, key)
            insort(on_node, key)
        self._rank(node, before, on_node[::-1])

    def _rank(self, node: int, before: Sequence[int], after: Sequence[int]) -> None:
        """Enter the node again where its k-th largest has changed; both hold its devices, the emptiest first."""
        while len(self._ranked) < len(after):
            self._ranked.append([])
        for place in range(max(len(before), len(after))):
            old = before[place] >> _SHIFT if place < len(before) else ABSENT
            new = after[place] >> _SHIFT if place < len(after) else ABSENT
            if old != new:
                ranked = self._ranked[place]
                if old >= 0:
                    del ranked[bisect_left(ranked, old << _SHIFT | node)]
                if new >= 0:
                    insort(ranked, new << _SHIFT | node)

    def devices_with(self, mib: int) -> list[int]:
        """All devices with so much free, the fullest first."""
        return [key & _MASK for key in self._devices[bisect_left(self._devices, mib << _SHIFT) :]]

    def num_with(self, mib: int) -> int:
        """Number of devices with so much free."""
        return len(self._devices) - bisect_left(self._devices, mib << _SHIFT)

    def find(self, num_ranks: int, mib: int) -> list[int] | None:
        """The fullest devices with ``mib`` free for all ranks, on one node if any has room; None if there are too few.

        Otherwise they are on as few nodes as possible.
        """
        devices = self._devices
        at = bisect_left(devices, mib << _SHIFT)
        if len(devices) - at < num_ranks:
            return None
        if num_ranks == 1:
            return [devices[at] & _MASK]
        if num_ranks <= len(self._ranked):
            ranked = self._ranked[num_ranks - 1]
            place = bisect_left(ranked, mib << _SHIFT)
            if place < len(ranked):
                return self.on_node(ranked[place] & _MASK, mib)[:num_ranks]
        return self._across(num_ranks, mib)

    def on_node(self, node: int, mib: int) -> list[int]:
        """Devices of a node with so much free, the fullest first."""
        keys = self._on_node[node]
        return [key & _MASK for key in keys[bisect_left(keys, mib << _SHIFT) :]]

    def _across(self, num_ranks: int, mib: int) -> list[int]:
        """Nodes with the most devices that have room come first: no other choice spans fewer."""
        found: list[int] = []
        taken: set[int] = set()
        for ranked in reversed(self._ranked[: num_ranks - 1]):
            for key in ranked[bisect_left(ranked, mib << _SHIFT) :]:
                node = key & _MASK
                if node not in taken:
                    taken.add(node)
                    found += self.on_node(node, mib)
                    if len(found) >= num_ranks:
                        return found[:num_ranks]
        raise AssertionError("the devices of all nodes together have room")
