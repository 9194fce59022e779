"""Words the reason why a gang was placed where it is, or why it waits, for the user. Decides nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from placement.model import Gang, Queued, Wait
from placement.packing.shelf import Shelf, Spot


def why_here(chosen: Sequence[Spot]) -> str:
    """The reason for a gang's devices. The gang must already be on ``chosen``."""
    nodes = {spot.device.node for spot in chosen}
    shared = sum(len(spot.gangs) > 1 for spot in chosen)
    left = ", ".join(f"{spot.device.id} ({spot.free_mib} of {spot.device.capacity_mib} MiB left)" for spot in chosen)
    where = (
        f"on node {nodes.pop()}" if len(nodes) == 1 else f"across {len(nodes)} nodes, because no single node has room"
    )
    how = f", {shared} of {len(chosen)} shared with other gangs" if shared else ""
    return f"the fullest devices with enough room, {where}: {left}{how}"


def why_waiting(waiting: Sequence[Queued], shelf: Shelf, reserved: Mapping[str, Queued]) -> Iterator[Wait]:
    """Yield each waiting gang with its reason at the end of the round.

    ``reserved`` maps the id of each reserved device to the gang that it is kept for. Gangs with equal demands share one
    reason.
    """
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
            why = _why_not(queued.gang, free, num_large, shelf, {})
            kept = f"{', '.join(reserved)} {_are(len(reserved))} now kept for it"
            yield Wait(queued.gang, f"{why}; passed over {queued.passed_over} times, so {kept}")
            continue
        if (ranks, mib) not in words:
            words[ranks, mib] = _why_not(queued.gang, free, num_large, shelf, reserved)
        yield Wait(queued.gang, words[ranks, mib])


def _why_not(gang: Gang, free: Sequence[Spot], num_large: int, shelf: Shelf, reserved: Mapping[str, Queued]) -> str:
    if not shelf.spots:
        return "the cluster has no devices now"
    demand = f"needs {gang.mib_per_rank} MiB on {_count(gang.num_ranks, 'device')} at once"
    if num_large < gang.num_ranks:
        few, verb = f"only {num_large}" if num_large else "none", "offers" if num_large < 2 else "offer"
        return f"{demand}, but {few} of {_count(len(shelf.spots), 'device')} in the cluster {verb} that much"
    if not free:
        return f"{demand}; {_fullness(shelf)}"
    have = f"{len(free)} {'has' if len(free) == 1 else 'have'} that much free ("
    have += ", ".join(f"{spot.device.id}: {spot.free_mib} MiB" for spot in free[:4]) + (", …)" if free[4:] else ")")
    kept = [spot.device.id for spot in free if spot.device.id in reserved]
    if kept:
        have += f", but {', '.join(kept)} {_are(len(kept))} kept for {_name(reserved[kept[0]].gang)}"
    return f"{demand}; {have}"


def _fullness(shelf: Shelf) -> str:
    """Why no device can take even one rank."""
    full = [spot for spot in shelf.spots if len(spot.gangs) >= shelf.max_gangs]
    limit = f"{_count(len(full), 'device')} {_are(len(full))} at the limit of {_count(shelf.max_gangs, 'gang')}"
    if len(full) == len(shelf.spots):
        return limit
    rest = (spot for spot in shelf.spots if len(spot.gangs) < shelf.max_gangs)
    most = max(rest, key=lambda spot: (spot.free_mib, -spot.position))
    return f"{most.device.id} has the most free memory, {most.free_mib} MiB" + (f", and {limit}" if full else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _name(gang: Gang) -> str:
    return gang.name or gang.id
