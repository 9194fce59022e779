"""Words the reason why a gang was placed where it is, or why it waits, for the user. Decides nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from placement.model import Queued
from placement.packing.policy import Blocked, Wait
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


def why_waiting(waiting: Sequence[Queued], shelf: Shelf, reserved: Mapping[str, Queued]) -> dict[str, Wait]:
    """Why each of these gangs waits at the end of the round, by gang id: what its smallest shape lacks.

    ``reserved`` maps the id of each reserved device to the gang that it is kept for. Gangs with equal demands share one
    reason. It leaves out what changes with every gang that begins or ends, such as the free MiB of a device: thousands
    may wait, and each new reason is written to the database.
    """
    waits: dict[str, Wait] = {}
    words: dict[tuple[int, int], Wait] = {}
    reserved_for = next(iter(reserved.values()), None)
    capacities = sorted(spot.device.capacity_mib for spot in shelf.spots)
    for queued in waiting:
        shape = min(queued.shapes, key=lambda shape: shape.num_ranks * shape.mib_per_rank)
        demand = shape.num_ranks, shape.mib_per_rank
        if demand not in words:
            words[demand] = _why_not(*demand, capacities)
        wait = words[demand]
        if queued is reserved_for:
            kept = f"{', '.join(reserved)} {_are(len(reserved))} now kept for it"
            wait = Wait(Blocked.OWN_RESERVATION, f"{wait.reason}; passed over {queued.passed_over} times, so {kept}")
        waits[queued.id] = wait
    return waits


def _why_not(num_ranks: int, mib: int, capacities: Sequence[int]) -> Wait:
    """``capacities`` are those of the cluster's devices, in ascending order."""
    if not capacities:
        return Wait(Blocked.NO_DEVICES, "the cluster has no devices now")
    demand = f"needs {mib} MiB on {_count(num_ranks, 'device')} at once"
    num_large = len(capacities) - bisect_left(capacities, mib)
    if num_large < num_ranks:
        few, verb = f"only {num_large}" if num_large else "none", "offers" if num_large < 2 else "offer"
        return Wait(
            Blocked.TOO_LARGE,
            f"{demand}, but {few} of {_count(len(capacities), 'device')} in the cluster {verb} that much",
        )
    return Wait(
        Blocked.BUSY,
        f"{demand}; waits until other gangs leave that much free, or end where the limit of gangs is reached",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
