"""One round of a policy: places gangs into a ledger one after another, and takes all of them back at its end.

It also keeps devices for one blocked gang at a time, and says at the end why the others wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import TracebackType
from typing import Self

from placement.model import Placement, Queued
from placement.packing.ledger import Ledger
from placement.packing.policy import Decision
from placement.packing.reasons import Rule, why_here, why_waiting

_FINDERS = {Rule.FULLEST: Ledger.find, Rule.FEWEST_GANGS: Ledger.find_least_shared, Rule.IDLE: Ledger.find_idle}


class Round:
    """A context manager: when it is left, the ledger is as it was before."""

    def __init__(self, ledger: Ledger, rule: Rule) -> None:
        self.ledger, self._rule, self._find = ledger, rule, _FINDERS[rule]
        self._placements: list[Placement] = []
        self.waiting: list[Queued] = []
        """The gangs that do not start, so far."""
        self._failed: list[tuple[int, int]] = []  # (ranks, MiB) that failed: as much or more fails too
        self.kept: tuple[str, ...] = ()
        """Devices that are kept for ``kept_for``."""
        self.kept_for: Queued | None = None
        self.kept_in = 0.0
        """Seconds until ``kept_for`` can start there; infinite if that is not known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ledger.give_back(self.kept)
        for placement in self._placements:
            self.ledger.release(placement.gang.id)

    def start(self, queued: Queued, choice: int) -> bool:
        """Place the gang in one of its shapes; False if it does not fit now."""
        ledger, shape = self.ledger, queued.shapes[choice]
        assert not ledger.holds(queued.id), f"gang {queued.id} is queued but already holds devices"
        num_ranks, mib = shape.num_ranks, shape.mib_per_rank
        if any(num_ranks >= ranks and mib >= least for ranks, least in self._failed):
            return self._start_before(queued, choice)
        devices = self._find(ledger, num_ranks, mib)
        if devices is None:
            self._failed.append((num_ranks, mib))
            return self._start_before(queued, choice)
        self._place(queued, choice, devices)
        return True

    def _start_before(self, queued: Queued, choice: int) -> bool:
        """Start a gang on kept devices if it ends before these are needed."""
        shape = queued.shapes[choice]
        if not self.kept or shape.seconds is None or shape.seconds > self.kept_in or self.kept_in == inf:
            return False
        self.ledger.give_back(self.kept)
        devices = self._find(self.ledger, shape.num_ranks, shape.mib_per_rank)
        if devices is not None:
            self._place(queued, choice, devices)
        self.ledger.keep(self.kept)
        return devices is not None

    def _place(self, queued: Queued, choice: int, devices: tuple[str, ...]) -> None:
        gang = queued.gang(choice)
        self.ledger.place(gang, devices)
        self._placements.append(Placement(gang, devices, why_here(self.ledger, devices, self._rule), choice))

    def wait(self, queued: Queued) -> None:
        """Note that the gang does not start in this round."""
        self.waiting.append(queued)

    def keep(self, queued: Queued, devices: Sequence[str], start_in: float) -> None:
        """Keep devices for a gang, which can start there in so many seconds."""
        assert self.kept_for is None, "one reservation at a time"
        self.kept_for, self.kept, self.kept_in = queued, tuple(devices), start_in
        self.ledger.keep(self.kept)

    def decision(self) -> Decision:
        """The gangs that start, and why the others wait."""
        return Decision(tuple(self._placements), why_waiting(self.waiting, self.ledger, self.kept, self.kept_for))


def soonest(
    ledger: Ledger, num_ranks: int, mib: int, seconds_left: Mapping[str, float]
) -> tuple[float, tuple[str, ...]]:
    """In how many seconds such a gang could start if no other began, and where; infinite if that is not known."""
    free = {device.id: ledger.free_mib(device.id) for device in ledger.devices}
    room = {device.id: ledger.max_gangs_per_device - len(ledger.gangs_on(device.id)) for device in ledger.devices}
    able = {device for device, mib_free in free.items() if mib_free >= mib and room[device] > 0}
    ends = sorted(
        (seconds_left[gang.id], gang.id, gang.mib_per_rank) for gang in ledger.gangs if gang.id in seconds_left
    )
    for seconds, gang_id, held_mib in ends:
        for device in ledger.devices_of(gang_id):
            if device in free:
                free[device] += held_mib
                room[device] += 1
                if free[device] >= mib and room[device] > 0:
                    able.add(device)
        if len(able) >= num_ranks:
            return seconds, _near_each_other(ledger, able, num_ranks)
    return inf, ()


def _near_each_other(ledger: Ledger, able: set[str], num_ranks: int) -> tuple[str, ...]:
    nodes: dict[str, list[str]] = {}
    for device in ledger.devices:
        if device.id in able:
            nodes.setdefault(device.node, []).append(device.id)
    fitting = [names for names in nodes.values() if len(names) >= num_ranks]
    if fitting:
        return tuple(min(fitting, key=len)[:num_ranks])
    by_size = sorted(nodes.values(), key=len, reverse=True)
    return tuple(name for names in by_size for name in names)[:num_ranks]


def fewest_ends(ledger: Ledger, num_ranks: int, mib: int) -> tuple[str, ...]:
    """The devices on which the fewest gangs must end before such a gang can start, whenever they end.

    Empty if even the empty cluster is too small. Ties are broken by the cluster's order: with free MiB the choice would
    change each time that another gang ends.
    """
    large = [device for device in ledger.devices if device.capacity_mib >= mib]
    if len(large) < num_ranks:
        return ()
    ends = {device.id: _ends_needed(ledger, device.id, mib) for device in large}
    large.sort(key=lambda device: ends[device.id])  # stable
    return tuple(device.id for device in large[:num_ranks])


def _ends_needed(ledger: Ledger, device_id: str, mib: int) -> int:
    """The fewest gangs that must end before ``mib`` are free and a gang may start; the largest end first."""
    held = ledger.gangs_on(device_id)
    if len(held) <= 1:  # most devices of a large cluster
        return int(bool(held) and (ledger.max_gangs_per_device == 1 or ledger.free_mib(device_id) < mib))
    free, slots, ends = ledger.free_mib(device_id), ledger.max_gangs_per_device - len(held), 0
    for held_mib in sorted(held.values(), reverse=True):
        if free >= mib and slots > 0:
            break
        free, slots, ends = free + held_mib, slots + 1, ends + 1
    return ends
