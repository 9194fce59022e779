"""An index of devices by free MiB, and of nodes by the devices that they have free: finds devices in microseconds.

Numbers stand for devices and nodes: their positions in the cluster. A device is *in* the index while a gang may start
there. The index is two arrays that are searched as a whole: ten thousand numbers take numpy a few microseconds, and a
change writes only a few of them. All changes of one gang are entered together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

ABSENT = -1
"""Free MiB of a device that is not in the index."""
_FEW = 16
"""Up to this many devices are looked at one by one; numpy takes a few microseconds for any number of them."""


class FreeIndex:
    """Devices by free MiB. ``_ranked[k - 1]`` holds the k-th largest free MiB of each node."""

    def __init__(self, node_of: Sequence[int]) -> None:
        """``node_of`` has the node of each device; no device is in the index yet."""
        self._node_of, self._nodes = node_of, np.array(node_of, np.int32)
        self._on_node: list[list[int]] = [[] for _ in range(max(node_of, default=-1) + 1)]
        for device, node in enumerate(node_of):
            self._on_node[node].append(device)
        self._free = [ABSENT] * len(node_of)
        self._of_devices = np.full(len(node_of), ABSENT, np.int32)  # equal to _free, which is faster to read one by one
        self._of_node = [[ABSENT] * len(devices) for devices in self._on_node]  # the largest first
        most = max(map(len, self._on_node), default=0)
        self._ranked = [np.full(len(self._on_node), ABSENT, np.int32) for _ in range(most)]

    def free(self, device: int) -> int:
        """Free MiB of a device; ``ABSENT`` if it is not in the index."""
        return self._free[device]

    def set(self, changes: Iterable[tuple[int, int]]) -> None:
        """Change the free MiB of devices, or take them out (``ABSENT``)."""
        nodes: set[int] = set()
        free, of_devices, node_of = self._free, self._of_devices, self._node_of
        for device, free_mib in changes:
            if free[device] != free_mib:
                free[device] = of_devices[device] = free_mib
                nodes.add(node_of[device])
        for node in nodes:
            before = self._of_node[node]
            self._of_node[node] = after = [free[device] for device in self._on_node[node]]
            after.sort(reverse=True)
            for ranked, old_mib, free_mib in zip(self._ranked, before, after):  # noqa: B905 (other nodes may have more)
                if old_mib != free_mib:
                    ranked[node] = free_mib

    def free_mibs(self) -> list[int]:
        """Free MiB of all devices in the index."""
        mibs: list[int] = self._of_devices[self._of_devices >= 0].tolist()
        return mibs

    def devices_with(self, mib: int) -> list[int]:
        """All devices with so much free, the fullest first."""
        able = np.flatnonzero(self._of_devices >= mib)
        positions: list[int] = able[np.argsort(self._of_devices[able], kind="stable")].tolist()
        return positions

    def num_with(self, mib: int) -> int:
        """Number of devices with so much free."""
        return int(np.count_nonzero(self._of_devices >= mib))

    def find(self, num_ranks: int, mib: int) -> list[int] | None:
        """The fullest devices with ``mib`` free for all ranks, on one node if any has room; None if there are too few.

        Otherwise they are on as few nodes as possible.
        """
        if num_ranks == 1:
            device = _least(self._of_devices, mib)
            return None if device is None else [device]
        if num_ranks <= len(self._ranked):
            node = _least(self._ranked[num_ranks - 1], mib)
            if node is not None:
                return self._able_on(node, mib)[:num_ranks]
        return self._across(num_ranks, mib)

    def _able_on(self, node: int, mib: int) -> list[int]:
        """Devices of a node with so much free, the fullest first."""
        free = self._free
        return sorted([device for device in self._on_node[node] if free[device] >= mib], key=free.__getitem__)

    def _across(self, num_ranks: int, mib: int) -> list[int] | None:
        """Nodes with the most devices that have room come first: no other choice spans fewer."""
        able = (self._of_devices >= mib).nonzero()[0]
        if len(able) < num_ranks:
            return None
        if len(able) > _FEW:
            return self._among_many(num_ranks, mib, able)
        nodes: dict[int, list[int]] = {}
        for device in able.tolist():
            nodes.setdefault(self._node_of[device], []).append(device)
        free = self._free.__getitem__
        for on_node in nodes.values():
            if len(on_node) > 1:
                on_node.sort(key=free)
        by_number = sorted(nodes.values(), key=lambda on_node: (-len(on_node), free(on_node[0]), on_node[0]))
        return [device for on_node in by_number for device in on_node][:num_ranks]

    def _among_many(self, num_ranks: int, mib: int, able: npt.NDArray[np.int64]) -> list[int]:
        """Finds nodes where many devices have room: of those with equally many, the first ones are taken."""
        numbers = np.bincount(self._nodes[able])
        positions: list[int] = []
        while len(positions) < num_ranks:
            node = int(numbers.argmax())
            numbers[node] = 0
            positions += self._able_on(node, mib)
        return positions[:num_ranks]


def _least(free: npt.NDArray[np.int32], mib: int) -> int | None:
    """Position of the least number that is at least ``mib``, the first of equal ones; None if none is."""
    if not len(free):
        return None
    beyond = (free - mib).view(np.uint32)  # a number that is too small becomes larger than any other
    place = int(beyond.argmin())
    return place if free[place] >= mib else None
