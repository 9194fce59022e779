"""Names the resource that a waiting gang lacks, as a code beside the reason in words. Decides nothing."""

from __future__ import annotations

from enum import StrEnum

from placement.model import Gang
from placement.packing.ledger import Ledger


class Blocked(StrEnum):
    """What keeps a trial from running now."""

    PLAN = "PLAN"
    """It has no plan yet: its candidate is being traced."""
    VERDICT = "VERDICT"
    """The stopping rule has paused it until others have reported."""
    RETRY = "RETRY"
    """A fault of the host ended its last attempt, and it runs again later."""
    CONCURRENCY = "CONCURRENCY"
    """Its study runs as many trials as its ``max_concurrent`` allows."""
    QUOTA = "QUOTA"
    """Its project holds as much as its quota allows."""
    DEVICES = "DEVICES"
    """The cluster has too few devices that offer so much memory, even when all are free."""
    GANG_LIMIT = "GANG_LIMIT"
    """Enough devices have the memory free, but some of them hold as many gangs as may share a device."""
    FRAGMENTATION = "FRAGMENTATION"
    """The cluster has enough memory free in all, but not so much on as many devices."""
    MEMORY = "MEMORY"
    """The cluster has too little memory free."""
    RESERVATION = "RESERVATION"
    """It would fit now, but only on devices that are kept for a gang that has waited longer."""


def blocked_by(gang: Gang, ledger: Ledger) -> Blocked:
    """The resource that keeps a queued gang from starting beside the reservations of ``ledger``."""
    devices, wanted = ledger.devices, gang.mib_per_rank
    if sum(device.capacity_mib >= wanted for device in devices) < gang.num_ranks:
        return Blocked.DEVICES
    if sum(ledger.fits(gang, device.id) for device in devices) >= gang.num_ranks:
        return Blocked.RESERVATION
    free = [ledger.free_mib(device.id) for device in devices]
    if sum(mib >= wanted for mib in free) >= gang.num_ranks:
        return Blocked.GANG_LIMIT
    return Blocked.FRAGMENTATION if sum(free) >= wanted * gang.num_ranks else Blocked.MEMORY
