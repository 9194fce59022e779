"""One round of a policy: places gangs into a ledger one after another, and takes all of them back at its end.

It also keeps devices for one blocked gang at a time, and says at the end why the others wait. Of equal devices it takes
those where an idle rank is ready: a gang that finds none must start one, which takes seconds of a core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop
from math import inf
from types import TracebackType
from typing import Self

from placement.model import Placement, Queued, Shape
from placement.packing.kinds import speeds_of
from placement.packing.ledger import Ledger
from placement.packing.policy import Decision
from placement.packing.reasons import BY_SHARE, WHERE_READY, DeviceRule, why_here, why_ranks, why_waiting

_FINDERS = {
    DeviceRule.FULLEST: Ledger.find,
    DeviceRule.FEWEST_GANGS: Ledger.find_least_shared,
    DeviceRule.IDLE: Ledger.find_idle,
}


_NONE, _CLEAN, _SAME_CODE = range(3)


class Round:
    """A context manager: when it is left, the ledger is as it was before."""

    def __init__(
        self,
        ledger: Ledger,
        rule: DeviceRule,
        *,
        is_near: bool = False,
        why_so_many: Callable[[Queued, int], str] = lambda queued, choice: "",
    ) -> None:
        """With ``is_near``, a gang starts on as few nodes as it needs, unless ``start`` has ``may_be_far``.

        ``why_so_many`` says in words why a gang has the number of devices of its shape at this position.
        """
        self._why_so_many = why_so_many
        self._is_near = is_near
        self._far: dict[int, int] = {}  # as _failed, for gangs that would have to span more nodes
        self._far_ids: set[str] = set()
        self._near_in: dict[int, float] = {}
        self.ledger, self._rule, self._find = ledger, rule, _FINDERS[rule]
        self._placements: list[Placement] = []
        self.waiting: list[Queued] = []
        """The gangs that do not start, so far."""
        self._failed: dict[int, int] = {}  # ranks → the least MiB that failed: as much or more fails too
        self.kept: tuple[str, ...] = ()
        """Devices that are kept for ``kept_for``."""
        self.kept_for: Queued | None = None
        self._beside: int | None = None  # MiB of a rank of ``kept_for``, where others may start beside it
        self.kept_in = 0.0
        """Seconds until ``kept_for`` can start there; infinite if that is not known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ledger.give_back(self.kept)
        self.ledger.release(*(placement.gang.id for placement in self._placements))

    def start(self, queued: Queued, choice: int, *, may_be_far: bool = False) -> bool:
        """Place the gang in one of its shapes; False if it does not fit now, or only on more nodes than it needs."""
        shape = queued.shapes[choice]
        assert not self.ledger.holds(queued.id), f"gang {queued.id} is queued but already holds devices"
        assert queued.may_use(self.ledger.kinds), f"gang {queued.id} may not use all of {self.ledger.kinds}"
        if shape.mibs:
            return self._start_uneven(queued, choice)
        must_be_near = self._is_near and not may_be_far and shape.num_ranks > 1
        devices = self._devices_now(queued, shape, must_be_near=must_be_near)
        if devices is None:
            return self._start_before(queued, choice, must_be_near=must_be_near)
        self._place_where_ready(queued, choice, devices)
        return True

    def _devices_now(self, queued: Queued, shape: Shape, *, must_be_near: bool) -> tuple[str, ...] | None:
        """Devices on which the gang can start; without any, no gang that needs as much is looked for again."""
        num_ranks, mib = shape.num_ranks, shape.mib_per_rank
        for ranks, least in self._failed.items():
            if num_ranks >= ranks and mib >= least:
                return None
        if must_be_near and mib >= self._far.get(num_ranks, mib + 1):
            self._far_ids.add(queued.id)
            return None
        devices = self._find(self.ledger, num_ranks, mib)
        if devices is None:
            self._failed[num_ranks] = mib
        elif must_be_near and self._is_far(devices, mib):
            self._far[num_ranks] = mib
            self._far_ids.add(queued.id)
            return None
        return devices

    def _start_uneven(self, queued: Queued, choice: int) -> bool:
        """Place a gang whose ranks take unlike shares, on as many nodes as there are."""
        ledger, shape = self.ledger, queued.shapes[choice]
        devices = ledger.find_uneven(shape, speeds_of(ledger.kinds), idle=self._rule is DeviceRule.IDLE)
        if devices is not None:
            self._place(queued, choice, devices, BY_SHARE)
        return devices is not None

    def is_far(self, queued: Queued) -> bool:
        """Whether a shape of this gang did not start although enough devices are free, on more nodes than it needs."""
        return queued.id in self._far_ids

    def near_in(self, shape: Shape, seconds_left: Mapping[str, float]) -> float:
        """Seconds until a gang of this shape can start on as few nodes as it needs.

        They are computed once for each number of ranks, with the MiB of the first such shape.
        """
        ranks = shape.num_ranks
        if ranks not in self._near_in:
            self._near_in[ranks] = soonest(self.ledger, ranks, shape.mib_per_rank, seconds_left)[0]
        return self._near_in[ranks]

    def _is_far(self, devices: Sequence[str], mib: int) -> bool:
        return self.ledger.num_nodes(devices) > self.ledger.fewest_nodes(len(devices), mib)

    def _start_before(self, queued: Queued, choice: int, *, must_be_near: bool) -> bool:
        """Start a gang on kept devices if it ends before these are needed."""
        shape = queued.shapes[choice]
        if not self.kept or shape.seconds is None or shape.seconds > self.kept_in or self.kept_in == inf:
            return False
        self.ledger.give_back(self.kept)
        devices = self._find(self.ledger, shape.num_ranks, shape.mib_per_rank)
        if devices is not None and must_be_near and self._is_far(devices, shape.mib_per_rank):
            devices = None
        if devices is not None:
            self._place_where_ready(queued, choice, devices)
        self.ledger.keep(self.kept, self._beside)
        return devices is not None

    def _place_where_ready(self, queued: Queued, choice: int, devices: tuple[str, ...]) -> None:
        """Place the gang on these devices, or on equal ones where an idle rank is more suitable."""
        readier = readiest(self.ledger, devices, queued.code)
        self._place(queued, choice, readier, self._rule if readier == devices else f"{self._rule}{WHERE_READY}")

    def _place(self, queued: Queued, choice: int, devices: tuple[str, ...], rule: str) -> None:
        gang = queued.gang(choice)
        self.ledger.place(gang, devices)
        reason = why_here(self.ledger, devices, rule)
        reason += why_ranks(queued, choice, self._why_so_many(queued, choice))
        self._placements.append(Placement(gang, devices, reason, choice))

    def wait(self, queued: Queued, choice: int | None = None) -> None:
        """Note that the gang does not start in this round; it waits for the shape ``choice`` alone, or else for any."""
        self.waiting.append(queued if choice is None else replace(queued, shapes=(queued.shapes[choice],)))

    def keep(self, queued: Queued, shape: Shape, devices: Sequence[str], start_in: float) -> None:
        """Keep devices for a gang in this shape, which can start there in this many seconds."""
        assert self.kept_for is None, "one reservation at a time"
        self.kept_for, self.kept, self.kept_in = queued, tuple(devices), start_in
        self._beside = None if shape.mibs or start_in < inf else shape.mib_per_rank
        self.ledger.keep(self.kept, self._beside)

    def decision(self) -> Decision:
        """The gangs that start, and why the others wait."""
        alone = self._rule is DeviceRule.IDLE
        waits = why_waiting(self.waiting, self.ledger, self.kept, self.kept_for, far=self._far_ids, alone=alone)
        return Decision(tuple(self._placements), waits, self.kept)


def readiest(ledger: Ledger, devices: Sequence[str], code: str | None) -> tuple[str, ...]:
    """The devices of a gang, each exchanged for an equal one of its node if an idle rank there is more suitable.

    The most suitable rank has run the same code (None: that of built-in workloads), which it need not import again. The
    next best has run no user's code yet.
    """
    if not ledger.is_any_ready:
        return tuple(devices)
    chosen = list(devices)
    for rank, device in enumerate(devices):
        most = _readiness(ledger, device, code)
        if most == _SAME_CODE:
            continue
        for other in ledger.ready_beside(device):
            if other in chosen or (readiness := _readiness(ledger, other, code)) <= most:
                continue
            if ledger.are_equal(device, other):
                chosen[rank], most = other, readiness
    return tuple(chosen)


def _readiness(ledger: Ledger, device: str, code: str | None) -> int:
    ready = ledger.ready_on(device)
    return _SAME_CODE if code in ready else _CLEAN if None in ready else _NONE


def soonest(
    ledger: Ledger, num_ranks: int, mib: int, seconds_left: Mapping[str, float]
) -> tuple[float, tuple[str, ...]]:
    """In how many seconds such a gang could start if no other began, and where; infinite if that is not known.

    It starts on as few nodes as it needs on the empty cluster.
    """
    most = ledger.fewest_nodes(num_ranks, mib)
    able = ledger.with_room(mib)
    on_nodes = Counter(ledger.device(device).node for device in able)
    free: dict[str, int] = {}
    room: dict[str, int] = {}
    ends = [(seconds_left[gang.id], gang.id) for gang in ledger.gangs if gang.id in seconds_left]
    heapify(ends)  # most ends do not matter
    while ends:
        seconds, gang_id = heappop(ends)
        for device in ledger.devices_of(gang_id):
            if not ledger.has(device):
                continue
            held_mib = ledger.gangs_on(device)[gang_id]
            if device not in free:
                free[device] = ledger.free_mib(device)
                room[device] = ledger.max_gangs_per_device - len(ledger.gangs_on(device))
            free[device] += held_mib
            room[device] += 1
            if free[device] >= mib and room[device] > 0 and device not in able:
                able.add(device)
                on_nodes[ledger.device(device).node] += 1
        if len(able) >= num_ranks and sum(count for _, count in on_nodes.most_common(most)) >= num_ranks:
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
