"""An index of devices by free MiB, and of nodes by the devices that they have free: finds devices in microseconds.

Numbers stand for devices and nodes: their positions in the cluster. A device is *in* the index while a gang may start
there. All changes of one gang are entered together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

_SHIFT = 24  # bits for a position: at most 16 million devices
_MASK = (1 << _SHIFT) - 1
_PER_BUCKET = 10  # bits of free MiB that one bucket holds: 1 GiB
ABSENT = -1
"""Free MiB of a device that is not in the index."""


class _Sorted:
    """Positions by free MiB, in buckets: insertion into one long list would move all that comes behind.

    The bits of ``_filled`` say which buckets hold anything.
    """

    __slots__ = ("_buckets", "_filled", "_size")

    def __init__(self) -> None:
        self._buckets: list[list[int]] = []
        self._filled = self._size = 0

    def add(self, free_mib: int, position: int) -> None:
        place = free_mib >> _PER_BUCKET
        while place >= len(self._buckets):
            self._buckets.append([])
        insort(self._buckets[place], free_mib << _SHIFT | position)
        self._filled |= 1 << place
        self._size += 1

    def remove(self, free_mib: int, position: int) -> None:
        place = free_mib >> _PER_BUCKET
        bucket = self._buckets[place]
        del bucket[bisect_left(bucket, free_mib << _SHIFT | position)]
        if not bucket:
            self._filled &= ~(1 << place)
        self._size -= 1

    def first(self, mib: int) -> int | None:
        """The position with the least free MiB that are at least ``mib``."""
        place = mib >> _PER_BUCKET
        if place < len(self._buckets):
            bucket = self._buckets[place]
            at = bisect_left(bucket, mib << _SHIFT)
            if at < len(bucket):
                return bucket[at] & _MASK
        above = self._filled >> (place + 1)
        if not above:
            return None
        return self._buckets[place + 1 + (above & -above).bit_length() - 1][0] & _MASK

    def all_from(self, mib: int) -> Iterator[int]:
        """All positions with at least so much free, those with the least first."""
        place = mib >> _PER_BUCKET
        if place < len(self._buckets):
            bucket = self._buckets[place]
            yield from (key & _MASK for key in bucket[bisect_left(bucket, mib << _SHIFT) :])
        for bucket in self._buckets[place + 1 :]:
            yield from (key & _MASK for key in bucket)

    def count_from(self, mib: int) -> int:
        """Number of positions with at least so much free."""
        place = mib >> _PER_BUCKET
        if place >= len(self._buckets):
            return 0
        bucket = self._buckets[place]
        return len(bucket) - bisect_left(bucket, mib << _SHIFT) + sum(map(len, self._buckets[place + 1 :]))


class FreeIndex:
    """Devices by free MiB. ``_ranked[k - 1]`` holds each node with at least k devices, by the k-th largest of these."""

    def __init__(self, node_of: Sequence[int]) -> None:
        """``node_of`` has the node of each device; no device is in the index yet."""
        self._node_of = node_of
        self._free = [ABSENT] * len(node_of)
        self.total_mib = 0
        """Free MiB of all devices together."""
        self._devices = _Sorted()
        self._on_node: list[list[int]] = [[] for _ in range(max(node_of, default=-1) + 1)]  # free MiB and position
        self._ranked: list[_Sorted] = []

    def free(self, device: int) -> int:
        """Free MiB of a device; ``ABSENT`` if it is not in the index."""
        return self._free[device]

    def set(self, changes: Iterable[tuple[int, int]]) -> None:
        """Change the free MiB of devices, or take them out (``ABSENT``)."""
        before: dict[int, list[int]] = {}
        for device, free_mib in changes:
            old_mib = self._free[device]
            if old_mib == free_mib:
                continue
            self._free[device] = free_mib
            self.total_mib += max(0, free_mib) - max(0, old_mib)
            node = self._node_of[device]
            on_node = self._on_node[node]
            if node not in before:
                before[node] = on_node[::-1]
            if old_mib >= 0:
                self._devices.remove(old_mib, device)
                del on_node[bisect_left(on_node, old_mib << _SHIFT | device)]
            if free_mib >= 0:
                self._devices.add(free_mib, device)
                insort(on_node, free_mib << _SHIFT | device)
        for node, old in before.items():
            self._rank(node, old, self._on_node[node][::-1])

    def _rank(self, node: int, before: Sequence[int], after: Sequence[int]) -> None:
        """Enter the node again where its k-th largest has changed; both hold its devices, the emptiest first."""
        while len(self._ranked) < len(after):
            self._ranked.append(_Sorted())
        for place in range(max(len(before), len(after))):
            old = before[place] >> _SHIFT if place < len(before) else ABSENT
            new = after[place] >> _SHIFT if place < len(after) else ABSENT
            if old != new:
                ranked = self._ranked[place]
                if old >= 0:
                    ranked.remove(old, node)
                if new >= 0:
                    ranked.add(new, node)

    def devices_with(self, mib: int) -> list[int]:
        """All devices with so much free, the fullest first."""
        return list(self._devices.all_from(mib))

    def num_with(self, mib: int) -> int:
        """Number of devices with so much free."""
        return self._devices.count_from(mib)

    def find(self, num_ranks: int, mib: int) -> list[int] | None:
        """The fullest devices with ``mib`` free for all ranks, on one node if any has room; None if there are too few.

        Otherwise they are on as few nodes as possible.
        """
        if num_ranks == 1:
            device = self._devices.first(mib)
            return None if device is None else [device]
        if num_ranks <= len(self._ranked):
            node = self._ranked[num_ranks - 1].first(mib)
            if node is not None:
                return self.on_node(node, mib)[:num_ranks]
        return self._across(num_ranks, mib) if self.num_with(mib) >= num_ranks else None

    def on_node(self, node: int, mib: int) -> list[int]:
        """Devices of a node with so much free, the fullest first."""
        keys = self._on_node[node]
        return [key & _MASK for key in keys[bisect_left(keys, mib << _SHIFT) :]]

    def _across(self, num_ranks: int, mib: int) -> list[int]:
        """Nodes with the most devices that have room come first: no other choice spans fewer."""
        found: list[int] = []
        taken: set[int] = set()
        for ranked in reversed(self._ranked[: num_ranks - 1]):
            for node in ranked.all_from(mib):
                if node not in taken:
                    taken.add(node)
                    found += self.on_node(node, mib)
                    if len(found) >= num_ranks:
                        return found[:num_ranks]
        raise AssertionError("the devices of all nodes together have room")
