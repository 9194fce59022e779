"""The devices during one round of packing: which of them a gang takes or reserves, and what is then left on each.

It starts from the ledger and does not change it. ``packer`` decides which gang comes first, and whether gangs spread.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from placement.model import Device, Gang
from placement.packing.ledger import Ledger


class Spot:
    """One device during a round: the reservations of the ledger, and those that the round has added."""

    __slots__ = ("device", "free_mib", "gangs", "position")

    def __init__(self, device: Device, position: int, gangs: dict[str, int]) -> None:
        self.device, self.position, self.gangs = device, position, gangs
        self.free_mib = max(0, device.capacity_mib - sum(gangs.values()))

    @property
    def key(self) -> tuple[int, int]:
        """Free MiB, then the position in the cluster: sorts the fullest devices first."""
        return self.free_mib, self.position

    def ends_needed(self, mib: int, max_gangs: int) -> int:
        """The fewest gangs that must end before ``mib`` are free and a gang may start; the largest end first."""
        free, slots, ends = self.free_mib, max_gangs - len(self.gangs), 0
        for held in sorted(self.gangs.values(), reverse=True):
            if free >= mib and slots > 0:
                break
            free, slots, ends = free + held, slots + 1, ends + 1
        return ends


class Shelf:
    """The devices that may take a gang. Gangs get the fullest that have room, or first those with the fewest gangs if
    they ``spread``.

    During a round memory is only taken, never freed, so a demand that failed once fails for the rest of the round.
    """

    def __init__(self, ledger: Ledger, *, spread: bool = False) -> None:
        self.spread = spread
        self.max_gangs = ledger.max_gangs_per_device
        self.spots = [Spot(device, n, ledger.gangs_on(device.id)) for n, device in enumerate(ledger.devices)]
        self.placed = {gang.id for gang in ledger.gangs}
        self._order = sorted(spot.key for spot in self.spots if len(spot.gangs) < self.max_gangs)
        self._failed: list[tuple[int, int]] = []  # (ranks, MiB) that failed: as much or more fails too

    def take(self, gang: Gang) -> list[Spot] | None:
        """Devices for the whole gang, which now holds its memory there; None if it does not fit."""
        assert gang.id not in self.placed, f"gang {gang.id} is queued but already holds devices"
        if any(gang.num_ranks >= ranks and gang.mib_per_rank >= mib for ranks, mib in self._failed):
            return None
        candidates = self._candidates(gang.mib_per_rank)
        if len(candidates) < gang.num_ranks:
            self._failed.append((gang.num_ranks, gang.mib_per_rank))
            return None
        chosen = candidates[:1] if gang.num_ranks == 1 else self._near_each_other(candidates, gang.num_ranks)
        self.placed.add(gang.id)
        for spot in chosen:
            self._close(spot)
            spot.gangs[gang.id] = gang.mib_per_rank
            spot.free_mib -= gang.mib_per_rank
            if len(spot.gangs) < self.max_gangs:
                insort(self._order, spot.key)
        return chosen

    def reserve(self, gang: Gang) -> list[Spot]:
        """Close and return the devices on which ``gang`` can start soonest.

        Empty if even the empty cluster is too small for the gang.
        """
        large = [spot for spot in self.spots if spot.device.capacity_mib >= gang.mib_per_rank]
        if len(large) < gang.num_ranks:
            return []
        # Ties are broken by position: with free MiB the reservation would move each time that another gang ends.
        large.sort(key=lambda spot: (spot.ends_needed(gang.mib_per_rank, self.max_gangs), spot.position))
        for spot in large[: gang.num_ranks]:
            self._close(spot)
        return large[: gang.num_ranks]

    def _candidates(self, mib: int) -> list[Spot]:
        """Devices with ``mib`` free that may take another gang, the best first."""
        able = [self.spots[position] for _, position in self._order[bisect_left(self._order, (mib, -1)) :]]
        return sorted(able, key=lambda spot: len(spot.gangs)) if self.spread else able  # stable: then the fullest

    def _close(self, spot: Spot) -> None:
        at = bisect_left(self._order, spot.key)
        if at < len(self._order) and self._order[at] == spot.key:
            del self._order[at]

    def _near_each_other(self, candidates: Sequence[Spot], num_ranks: int) -> list[Spot]:
        """``num_ranks`` devices on the one node where they are best, or else on as few nodes as possible."""
        nodes: dict[str, list[Spot]] = {}
        for spot in candidates:
            nodes.setdefault(spot.device.node, []).append(spot)
        whole = [spots[:num_ranks] for spots in nodes.values() if len(spots) >= num_ranks]
        if whole:
            return min(whole, key=self._cost)
        # Nodes with the most candidates first: no other choice spans fewer.
        by_size = sorted(nodes.values(), key=lambda spots: (-len(spots), spots[0].key))
        return [spot for spots in by_size for spot in spots][:num_ranks]

    def _cost(self, spots: Sequence[Spot]) -> tuple[int, int, int]:
        """The better, the smaller."""
        num_gangs = sum(len(spot.gangs) for spot in spots) if self.spread else 0
        return num_gangs, sum(spot.free_mib for spot in spots), spots[0].position
