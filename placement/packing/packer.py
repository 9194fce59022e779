"""Decides which queued gangs start now, on which devices, and says why; or why they wait.

Pure and deterministic: the ledger is only read, and reserving what was placed is the caller's. Gangs are taken in
queue order; one that does not fit is passed over by others, a bounded number of times. It knows no run times.

- A gang gets all its devices or none, on one node where that is possible.
- Best fit: the fullest devices that still fit, so that whole devices stay free for large gangs.
- Reservation: a gang that has been passed over ``PASSES_BEFORE_RESERVATION`` times goes to the front of the queue. The
  first such gang that does not fit, but would were the cluster empty, gets the devices that need the fewest gangs to
  end, and nobody behind may take those. It ends the wait: a reserved device gets no gang from behind, and is given up
  only for one where fewer gangs must end (or as few, and it comes first in the cluster). So the number of ends still
  needed never rises, and it is zero at the latest when all gangs now on the reserved devices have ended.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placement.model import Device, Gang, Placement, Wait
from placement.packing.ledger import Ledger

# A reservation leaves memory idle while it drains; without one, small gangs would hold up a large one for ever. Eight
# passes are two rounds of small gangs over the default cluster of four devices.
PASSES_BEFORE_RESERVATION = 8


@dataclass(frozen=True, slots=True)
class Queued:
    """A gang that wants to start.

    ``passed_over`` counts the gangs that arrived later and have started since it was queued. ``arrival`` orders gangs
    by age where the queue's order is another one; those that arrived together count by their place in the queue.
    """

    gang: Gang
    passed_over: int = 0
    arrival: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """One run of a gang: when it began, and when it ended (None: it runs). Times are seconds on one clock."""

    arrival: int
    began_at: float
    ended_at: float | None


def pack(queue: Sequence[Queued], ledger: Ledger) -> tuple[list[Placement], list[Wait]]:
    """What starts now and what waits, each in the order in which the gangs were tried. ``ledger`` is not changed.

    Every gang that fits is placed, but for those that only reserved devices could take.
    """
    shelf = _Shelf(ledger)
    placements: list[Placement] = []
    waiting: list[Queued] = []
    reserved: dict[str, Queued] = {}
    for queued in _starved_first(queue):
        chosen = shelf.take(queued.gang)
        if chosen is not None:
            placements.append(Placement(queued.gang, tuple(spot.device.id for spot in chosen), _why(chosen)))
            continue
        waiting.append(queued)
        if not reserved and queued.passed_over >= PASSES_BEFORE_RESERVATION:
            reserved = {spot.device.id: queued for spot in shelf.reserve(queued.gang)}
    return placements, [Wait(queued.gang, reason) for queued, reason in _reasons(waiting, shelf, reserved)]


def passed_over(arrived_at: Mapping[int, float], starts: Iterable[Start]) -> dict[int, int]:
    """Arrival → how many gangs that arrived later have started while this one waited.

    ``arrived_at`` gives the time at which each waiting gang arrived. One that has run before waits since its last run
    ended. ``starts`` are all starts of the waiting gangs and of those that arrived after the oldest of them.
    """
    waits_since = dict(arrived_at)
    by_arrival = sorted(starts, key=lambda start: start.arrival)
    for start in by_arrival:
        if start.arrival in waits_since:
            waits_since[start.arrival] = max(waits_since[start.arrival], start.ended_at or start.began_at)
    later: list[float] = []  # times of the starts of all gangs that arrived after the current one
    counts = {}
    for arrival in sorted(arrived_at, reverse=True):
        while by_arrival and by_arrival[-1].arrival > arrival:
            insort(later, by_arrival.pop().began_at)
        counts[arrival] = len(later) - bisect_right(later, waits_since[arrival])
    return counts


def _starved_first(queue: Sequence[Queued]) -> list[Queued]:
    """In queue order, but for those passed over too often: they go first, the oldest of them before all."""
    starved = [queued for queued in queue if queued.passed_over >= PASSES_BEFORE_RESERVATION]
    others = [queued for queued in queue if queued.passed_over < PASSES_BEFORE_RESERVATION]
    return sorted(starved, key=lambda queued: queued.arrival) + others


class _Spot:
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


class _Shelf:
    """The devices that may take a gang, ordered by free MiB. It only shrinks: what fails once, fails for the round."""

    def __init__(self, ledger: Ledger) -> None:
        self.max_gangs = ledger.max_gangs_per_device
        self.spots = [_Spot(device, n, ledger.gangs_on(device.id)) for n, device in enumerate(ledger.devices)]
        self.placed = {gang.id for gang in ledger.gangs}
        self._order = sorted(spot.key for spot in self.spots if len(spot.gangs) < self.max_gangs)
        self._failed: list[tuple[int, int]] = []  # (ranks, MiB): no gang that wants as much or more fits

    def take(self, gang: Gang) -> list[_Spot] | None:
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

    def reserve(self, gang: Gang) -> list[_Spot]:
        """Close the devices on which ``gang`` can start soonest; none when even the empty cluster is too small."""
        large = [spot for spot in self.spots if spot.device.capacity_mib >= gang.mib_per_rank]
        if len(large) < gang.num_ranks:
            return []
        # By position among equals: free MiB would move the reservation each time that something else ends.
        large.sort(key=lambda spot: (spot.ends_needed(gang.mib_per_rank, self.max_gangs), spot.position))
        for spot in large[: gang.num_ranks]:
            self._close(spot)
        return large[: gang.num_ranks]

    def _candidates(self, mib: int) -> list[_Spot]:
        """Devices with ``mib`` free and room for a gang, fullest first."""
        return [self.spots[position] for _, position in self._order[bisect_left(self._order, (mib, -1)) :]]

    def _close(self, spot: _Spot) -> None:
        at = bisect_left(self._order, spot.key)
        if at < len(self._order) and self._order[at] == spot.key:
            del self._order[at]


def _near_each_other(candidates: Sequence[_Spot], num_ranks: int) -> list[_Spot]:
    """The fullest ``num_ranks`` devices of the one node where they are fullest, else of as few nodes as possible."""
    nodes: dict[str, list[_Spot]] = {}
    for spot in candidates:
        nodes.setdefault(spot.device.node, []).append(spot)
    whole = [spots[:num_ranks] for spots in nodes.values() if len(spots) >= num_ranks]
    if whole:
        return min(whole, key=lambda spots: (sum(spot.free_mib for spot in spots), spots[0].position))
    # Nodes with the most candidates first: no other choice spans fewer.
    by_size = sorted(nodes.values(), key=lambda spots: (-len(spots), spots[0].key))
    return [spot for spots in by_size for spot in spots][:num_ranks]


# --- the words -----------------------------------------------------------------------------------------------------
def _why(chosen: Sequence[_Spot]) -> str:
    nodes = {spot.device.node for spot in chosen}
    shared = sum(len(spot.gangs) > 1 for spot in chosen)
    left = ", ".join(f"{spot.device.id} ({spot.free_mib} of {spot.device.capacity_mib} MiB left)" for spot in chosen)
    where = f"on node {nodes.pop()}" if len(nodes) == 1 else f"over {len(nodes)} nodes, as no single one has room"
    how = f", {shared} of {len(chosen)} shared with other gangs" if shared else ""
    return f"fullest devices that fit {where}: {left}{how}"


def _reasons(waiting: Sequence[Queued], shelf: _Shelf, reserved: Mapping[str, Queued]) -> Iterable[tuple[Queued, str]]:
    """Each waiting gang with its reason, as things stand at the end of the round; equal demands share the words."""
    words: dict[tuple[int, int], str] = {}
    reserved_for = next(iter(reserved.values()), None)
    open_spots = sorted((spot for spot in shelf.spots if len(spot.gangs) < shelf.max_gangs), key=lambda s: s.key)
    frees = [spot.free_mib for spot in open_spots]
    capacities = sorted(spot.device.capacity_mib for spot in shelf.spots)
    for queued in waiting:
        ranks, mib = queued.gang.num_ranks, queued.gang.mib_per_rank
        free = open_spots[bisect_left(frees, mib) :]
        num_large = len(capacities) - bisect_left(capacities, mib)
        if queued is reserved_for:
            yield (
                queued,
                (
                    f"{_why_not(queued.gang, free, num_large, shelf, {})}; passed over {queued.passed_over} times, "
                    f"so {', '.join(reserved)} {_are(len(reserved))} now kept for it"
                ),
            )
            continue
        if (ranks, mib) not in words:
            words[ranks, mib] = _why_not(queued.gang, free, num_large, shelf, reserved)
        yield queued, words[ranks, mib]


def _why_not(gang: Gang, free: Sequence[_Spot], num_large: int, shelf: _Shelf, reserved: Mapping[str, Queued]) -> str:
    if not shelf.spots:
        return "the cluster has no devices now"
    demand = f"needs {gang.mib_per_rank} MiB on {_devices(gang.num_ranks)} at once"
    if num_large < gang.num_ranks:
        return f"{demand}, but only {num_large} of {_devices(len(shelf.spots))} in the cluster offer so much"
    if not free:
        return f"{demand}; {_fullness(shelf)}"
    have = f"{len(free)} {'has' if len(free) == 1 else 'have'} that free ("
    have += ", ".join(f"{spot.device.id}: {spot.free_mib} MiB" for spot in free[:4]) + (", …)" if free[4:] else ")")
    kept = [spot.device.id for spot in free if spot.device.id in reserved]
    if kept:
        have += f", but {', '.join(kept)} {_are(len(kept))} kept for {_name(reserved[kept[0]].gang)}"
    return f"{demand}; {have}"


def _fullness(shelf: _Shelf) -> str:
    """Why no device can take even one rank."""
    full = [spot for spot in shelf.spots if len(spot.gangs) >= shelf.max_gangs]
    limit = f"{_devices(len(full))} {_are(len(full))} at the limit of {shelf.max_gangs} gangs"
    if len(full) == len(shelf.spots):
        return limit
    rest = (spot for spot in shelf.spots if len(spot.gangs) < shelf.max_gangs)
    most = max(rest, key=lambda spot: (spot.free_mib, -spot.position))
    return f"most free is {most.device.id} with {most.free_mib} MiB" + (f", and {limit}" if full else "")


def _devices(number: int) -> str:
    return f"{number} device" if number == 1 else f"{number} devices"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _name(gang: Gang) -> str:
    return gang.name or gang.id
