"""The devices during one round of packing: which of them a gang takes or reserves, and what is left of each then.

It starts from the ledger and does not change it. Which gang comes first is decided in ``packer``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from placement.model import Device, Gang
from placement.packing.ledger import Ledger


class Spot:
    """One device as this round goes on: what the ledger says, and what the round has added."""

    __slots__ = ("device", "free_mib", "gangs", "position")

    def __init__(self, device: Device, position: int, gangs: dict[str, int]) -> None:
        self.device, self.position, self.gangs = device, position, gangs
        self.free_mib = max(0, device.capacity_mib - sum(gangs.values()))

    @property
    def key(self) -> tuple[int, int]:
        return self.free_mib, self.position

    def ends_needed(self, mib: int, max_gangs: int) -> int:
        """The fewest gangs that must end until ``mib`` are free: the largest first."""
        free, slots, ends = self.free_mib, max_gangs - len(self.gangs), 0
        for held in sorted(self.gangs.values(), reverse=True):
            if free >= mib and slots > 0:
                break
            free, slots, ends = free + held, slots + 1, ends + 1
        return ends


class Shelf:
    """The devices that may take a gang, ordered by free MiB. It only shrinks: what fails once, fails for the round."""

    def __init__(self, ledger: Ledger) -> None:
        self.max_gangs = ledger.max_gangs_per_device
        self.spots = [Spot(device, n, ledger.gangs_on(device.id)) for n, device in enumerate(ledger.devices)]
        self.placed = {gang.id for gang in ledger.gangs}
        self._order = sorted(spot.key for spot in self.spots if len(spot.gangs) < self.max_gangs)
        self._failed: list[tuple[int, int]] = []  # (ranks, MiB): no gang that wants as much or more fits

    def take(self, gang: Gang) -> list[Spot] | None:
        """Devices for the whole gang, now used by it; None when it does not fit."""
        assert gang.id not in self.placed, f"gang {gang.id} is queued, and holds devices already"
        if any(gang.num_ranks >= ranks and gang.mib_per_rank >= mib for ranks, mib in self._failed):
            return None
        candidates = self._candidates(gang.mib_per_rank)
        if len(candidates) < gang.num_ranks:
            self._failed.append((gang.num_ranks, gang.mib_per_rank))
            return None
        chosen = candidates[:1] if gang.num_ranks == 1 else _near_each_other(candidates, gang.num_ranks)
        self.placed.add(gang.id)
        for spot in chosen:
            self._close(spot)
            spot.gangs[gang.id] = gang.mib_per_rank
            spot.free_mib -= gang.mib_per_rank
            if len(spot.gangs) < self.max_gangs:
                insort(self._order, spot.key)
        return chosen

    def reserve(self, gang: Gang) -> list[Spot]:
        """Close the devices on which ``gang`` can start soonest; none when even the empty cluster is too small."""
        large = [spot for spot in self.spots if spot.device.capacity_mib >= gang.mib_per_rank]
        if len(large) < gang.num_ranks:
            return []
        # By position among equals: free MiB would move the reservation each time that something else ends.
        large.sort(key=lambda spot: (spot.ends_needed(gang.mib_per_rank, self.max_gangs), spot.position))
        for spot in large[: gang.num_ranks]:
            self._close(spot)
        return large[: gang.num_ranks]

    def _candidates(self, mib: int) -> list[Spot]:
        """Devices with ``mib`` free and room for a gang, fullest first."""
        return [self.spots[position] for _, position in self._order[bisect_left(self._order, (mib, -1)) :]]

    def _close(self, spot: Spot) -> None:
        at = bisect_left(self._order, spot.key)
        if at < len(self._order) and self._order[at] == spot.key:
            del self._order[at]


def _near_each_other(candidates: Sequence[Spot], num_ranks: int) -> list[Spot]:
    """The fullest ``num_ranks`` devices of the one node where they are fullest, else of as few nodes as possible."""
    nodes: dict[str, list[Spot]] = {}
    for spot in candidates:
        nodes.setdefault(spot.device.node, []).append(spot)
    whole = [spots[:num_ranks] for spots in nodes.values() if len(spots) >= num_ranks]
    if whole:
        return min(whole, key=lambda spots: (sum(spot.free_mib for spot in spots), spots[0].position))
    # Nodes with the most candidates first: no other choice spans fewer.
    by_size = sorted(nodes.values(), key=lambda spots: (-len(spots), spots[0].key))
    return [spot for spots in by_size for spot in spots][:num_ranks]
