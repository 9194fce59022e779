"""Words the reason why a gang was placed where it is, or why it waits, for the user. Decides nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from placement.model import Gang, Queued
from placement.packing.shelf import Shelf, Spot


def why_here(chosen: Sequence[Spot], *, spread: bool) -> str:
    """The reason for a gang's devices. The gang must already be on ``chosen``."""
    nodes = {spot.device.node for spot in chosen}
    shared = sum(len(spot.gangs) > 1 for spot in chosen)
    left = ", ".join(f"{spot.device.id} ({spot.free_mib} of {spot.device.capacity_mib} MiB left)" for spot in chosen)
    where = (
        f"on node {nodes.pop()}" if len(nodes) == 1 else f"across {len(nodes)} nodes, because no single node has room"
    )
    how = f", {shared} of {len(chosen)} shared with other gangs" if shared else ""
    rule = "the devices with the fewest gangs, because none waits" if spread else "the fullest devices with enough room"
    return f"{rule}, {where}: {left}{how}"


def why_waiting(waiting: Sequence[Queued], shelf: Shelf, reserved: Mapping[str, Queued]) -> dict[str, str]:
    """Why each of these gangs waits at the end of the round, by gang id.

    ``reserved`` maps the id of each reserved device to the gang that it is kept for. Gangs with equal demands share one
    reason. It leaves out what changes with every gang that begins or ends, such as the free MiB of a device: thousands
    may wait, and each new reason is written to the database.
    """
    reasons: dict[str, str] = {}
    words: dict[tuple[int, int], str] = {}
    reserved_for = next(iter(reserved.values()), None)
    capacities = sorted(spot.device.capacity_mib for spot in shelf.spots)
    for queued in waiting:
        demand = queued.gang.num_ranks, queued.gang.mib_per_rank
        if demand not in words:
            words[demand] = _why_not(queued.gang, capacities)
        if queued is reserved_for:
            kept = f"{', '.join(reserved)} {_are(len(reserved))} now kept for it"
            reasons[queued.gang.id] = f"{words[demand]}; passed over {queued.passed_over} times, so {kept}"
        else:
            reasons[queued.gang.id] = words[demand]
    return reasons


def _why_not(gang: Gang, capacities: Sequence[int]) -> str:
    """``capacities`` are those of the cluster's devices, in ascending order."""
    if not capacities:
        return "the cluster has no devices now"
    demand = f"needs {gang.mib_per_rank} MiB on {_count(gang.num_ranks, 'device')} at once"
    num_large = len(capacities) - bisect_left(capacities, gang.mib_per_rank)
    if num_large < gang.num_ranks:
        few, verb = f"only {num_large}" if num_large else "none", "offers" if num_large < 2 else "offer"
        return f"{demand}, but {few} of {_count(len(capacities), 'device')} in the cluster {verb} that much"
    return f"{demand}; waits until other gangs leave that much free, or end where the limit of gangs is reached"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
