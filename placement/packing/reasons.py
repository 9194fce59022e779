"""Words the reason why a gang was placed where it is, or why it waits, for the user. Decides nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import lru_cache

from placement.model import Queued, Shape
from placement.packing.ledger import Ledger
from placement.packing.policy import Blocked, Wait


class DeviceRule(StrEnum):
    """How devices are chosen for a gang, in words."""

    FULLEST = "the fullest devices with enough room"
    FEWEST_GANGS = "the devices with the fewest gangs, as no other trial waited"
    IDLE = "devices without other gangs"


BY_SHARE = "the larger a rank's share of the batch, the faster its device, of those with room for it"
"""How devices are chosen for ranks with unlike shares, whatever the rule of the round."""


WHERE_READY = ", and of equal ones those where a rank is ready"
"""Follows a ``DeviceRule`` where devices were exchanged for such ones."""


TOO_FAR = Wait(
    Blocked.FRAGMENTED,
    "enough devices are free, but on more nodes than it needs, where it would be slower: waits until a node is free",
)


def why_here(ledger: Ledger, devices: Sequence[str], rule: str) -> str:
    """The reason for a gang's devices, which were chosen by ``rule``. The gang must already be on them."""
    chosen = [ledger.device(device_id) for device_id in devices]
    nodes = {device.node for device in chosen}
    shared = sum(len(ledger.gangs_on(device_id)) > 1 for device_id in devices)
    left = ", ".join(
        f"{device.id} ({ledger.free_mib(device.id)} of {device.capacity_mib} MiB left)" for device in chosen
    )
    why_far = "" if rule == BY_SHARE else ", because no single node has room"
    where = f"on node {nodes.pop()}" if len(nodes) == 1 else f"across {len(nodes)} nodes{why_far}"
    how_many = "" if shared == len(chosen) else f"{shared} of {len(chosen)} "
    how = f", {how_many}shared with other trials" if shared else ""
    return f"{_on(rule, len(chosen))}, {where}: {left}{how}"


def _on(rule: str, num_devices: int) -> str:
    if rule == BY_SHARE:
        return rule
    is_one = num_devices == 1 and rule.startswith("the ")
    return f"on {rule.replace('devices', 'device', 1) if is_one else rule}"


def why_ranks(queued: Queued, choice: int, why: str) -> str:
    """Words for the number of devices of the gang, which ends its reason; empty without a ``why``.

    ``why`` says why it has the shape at position ``choice``.
    """
    if not why:
        return ""
    numbers = sorted({shape.num_ranks for shape in queued.shapes})
    counts = str(numbers[0]) if len(numbers) == 1 else f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
    return f"; {_count(queued.shapes[choice].num_ranks, 'device')}, of plans for {counts}: {why}"


def why_waiting(
    waiting: Sequence[Queued],
    ledger: Ledger,
    kept: Sequence[str],
    kept_for: Queued | None,
    *,
    far: Collection[str] = (),
    alone: bool = False,
) -> dict[str, Wait]:
    """Why each of these gangs waits at the end of the round, by gang id: what its smallest shape lacks.

    The devices ``kept`` are reserved for ``kept_for``. Gangs whose ids are in ``far`` would span more nodes than they
    need on free devices. ``alone``: gangs only take devices without others. Gangs with equal demands share one reason.
    It leaves out what changes with every gang that begins or ends, such as the free
    MiB of a device: thousands may wait, and each new reason is written to the database.
    """
    waits: dict[str, Wait] = {}
    free_mibs = ledger.free_mibs() if waiting else []
    free_in_all, num_devices = sum(free_mibs), len(ledger.devices)
    words: dict[tuple[int, int] | tuple[int, ...], Wait] = {}
    kept_words = _kept_for(kept_for)
    for queued in waiting:
        shape = _smallest(queued)
        demand = shape.num_ranks, shape.mib_per_rank
        if shape.mibs:
            words.setdefault(shape.mibs, _why_not_uneven(shape, ledger))
        elif demand not in words:
            num_free = len(free_mibs) - bisect_left(free_mibs, shape.mib_per_rank)
            if alone:
                blocked = Blocked.BUSY
            elif num_free >= shape.num_ranks:
                blocked = Blocked.RESERVED
            else:
                blocked = Blocked.FRAGMENTED if free_in_all >= shape.num_ranks * shape.mib_per_rank else Blocked.BUSY
            words[demand] = _why_not(
                *demand, num_devices, ledger.num_offering(shape.mib_per_rank), blocked, alone, kept_words
            )
        wait = words[shape.mibs or demand]
        if wait.blocked is Blocked.RESERVED and queued.id in far:
            wait = TOO_FAR
        if queued is kept_for:
            times = f"passed over {queued.passed_over} times, so " if queued.passed_over else ""
            reason = f"{wait.reason}; {times}{', '.join(kept)} {_are(len(kept))} now kept for it"
            wait = Wait(Blocked.OWN_RESERVATION, reason)
        waits[queued.id] = wait
    return waits


@lru_cache(maxsize=2**14)
def _why_not(
    num_ranks: int, mib: int, num_devices: int, num_large: int, blocked: Blocked, alone: bool, kept_words: str
) -> Wait:
    """``num_large`` devices offer ``mib`` when they are free. Kept, as thousands may wait in every round."""
    if not num_devices:
        return Wait(Blocked.NO_DEVICES, "the cluster has no devices now")
    demand = _needs(num_ranks, mib)
    if num_large < num_ranks:
        few, verb = f"only {num_large}" if num_large else "none", "offers" if num_large < 2 else "offer"
        reason = f"{demand}, but {few} of {_count(num_devices, 'device')} in the cluster {verb} that much"
        return Wait(Blocked.TOO_LARGE, reason)
    busy = "waits until other gangs leave that much free, or end where the limit of gangs is reached"
    if alone:
        busy = "waits, by its policy, for devices without other gangs"
    elif blocked is Blocked.RESERVED:
        busy = kept_words
    return Wait(blocked, f"{demand}; {busy}")


def _kept_for(kept_for: Queued | None) -> str:
    """Words for a gang that could start on devices that are kept for another one."""
    if kept_for is None:
        return "what has that much free is kept for another trial"
    shape = _smallest(kept_for)
    needs = _needs_uneven(shape) if shape.mibs else _needs(shape.num_ranks, shape.mib_per_rank)
    return f"what has that much free is kept for {kept_for.name or f'gang {kept_for.id}'}, which {needs}"


def _smallest(queued: Queued) -> Shape:
    return min(queued.shapes, key=lambda shape: shape.num_ranks * shape.mib_per_rank)


def _needs(num_ranks: int, mib: int) -> str:
    return f"needs {mib} MiB on {_count(num_ranks, 'device')} at once"


def _needs_uneven(shape: Shape) -> str:
    return f"needs {min(shape.mibs)} to {max(shape.mibs)} MiB on {_count(shape.num_ranks, 'device')} at once"


def _why_not_uneven(shape: Shape, ledger: Ledger) -> Wait:
    if not ledger.devices:
        return Wait(Blocked.NO_DEVICES, "the cluster has no devices now")
    demand = _needs_uneven(shape)
    if not ledger.could_hold(shape):
        in_all = _count(len(ledger.devices), "device")
        return Wait(Blocked.TOO_LARGE, f"{demand}, one amount for each rank, and {in_all} in the cluster offer less")
    return Wait(Blocked.BUSY, f"{demand}; waits until other gangs leave that much free")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
