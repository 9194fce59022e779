"""The kinds of GPUs of a cluster in the policy ``pack``: which trials the slower ones get, and no gang of two kinds.

Gangs run at the pace of their slowest rank, so one that spans two kinds wastes the faster. So each kind is packed by
itself, the fastest first and with the longest trials. A slower kind gets those that still end by the common target
time there (``allotment``), which counts a device by its speed. Others wait for a faster kind, but not if no faster one
could ever hold them, nor if they were passed over too often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

from estimators.devices.catalogue import KINDS
from placement.model import Cluster, Device, Gang, Queued
from placement.packing.allotment import Allotment, least_target, narrowest_by, possible_shapes
from placement.packing.ledger import Ledger
from placement.packing.turns import PASSES_BEFORE_RESERVATION


@lru_cache(maxsize=64)
def speeds_of(kinds: frozenset[str]) -> Mapping[str, float]:
    """Speed of each kind relative to the fastest, by the matrix products of the catalogue.

    A kind that is not in it counts as fast as the fastest.
    """
    speeds = {kind.name: 1 / kind.rates["matmul"].per_flop for kind in KINDS if kind.name in kinds}
    fastest = max(speeds.values(), default=1.0)
    return {name: speeds.get(name, fastest) / fastest for name in kinds}


def spans_kinds(queued: Queued) -> bool:
    """Whether the trial's ranks take unlike shares, which are meant for devices of unlike speed or memory."""
    return any(shape.mibs for shape in queued.shapes)


def speeds_in(ledger: Ledger) -> Mapping[str, float]:
    """Speeds of the cluster's kinds; empty if all are equally fast."""
    speeds = speeds_of(ledger.kinds)
    return speeds if len(set(speeds.values())) > 1 else {}


def groups_of(speeds: Mapping[str, float]) -> list[tuple[float, list[str]]]:
    """Speeds with the kinds that have them, the fastest first."""
    return [(speed, [kind for kind in speeds if speeds[kind] == speed]) for speed in sorted({*speeds.values()})[::-1]]


def part(ledger: Ledger, kinds: Sequence[str], max_gangs_per_device: int) -> Ledger:
    """The devices of these kinds with what is on them, and another limit of gangs on each."""
    devices: Sequence[Device] = [device for device in ledger.devices if device.kind in kinds]
    here = {device.id for device in devices}
    ready = {device.id: ledger.ready_on(device.id) for device in devices} if ledger.is_any_ready else {}
    selected = Ledger(Cluster(tuple(devices)), max_gangs_per_device, ready)
    for gang in ledger.gangs:
        held = [device for device in ledger.devices_of(gang.id) if device in here]
        if held:
            selected.restore(held_part(ledger, gang.id, held), held)
    return selected


def held_part(ledger: Ledger, gang_id: str, devices: Sequence[str]) -> Gang:
    """The part of a gang that is on these of its devices, as a gang."""
    mibs = tuple(ledger.gangs_on(device)[gang_id] for device in devices)
    return Gang(gang_id, len(mibs), max(mibs), mibs if len(set(mibs)) > 1 else ())


def on_kind(queued: Queued, speed: float) -> Queued:
    """The trial as it would be on devices of this speed."""
    if speed == 1.0:
        return queued
    slower = (
        replace(shape, seconds=None if shape.seconds is None else shape.seconds / speed) for shape in queued.shapes
    )
    return replace(queued, shapes=tuple(slower))


def target_of(
    queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float], speeds: Mapping[str, float]
) -> float:
    """The least time by which all trials fit by their device-seconds, where a slow device counts as a part of one."""
    kind_of = {device.id: device.kind for device in ledger.devices}
    total_speed = sum(speeds[device.kind] for device in ledger.devices)
    busy = sum(
        seconds_left.get(gang.id, 0.0) * speeds[kind_of[device]]
        for gang in ledger.gangs
        for device in ledger.devices_of(gang.id)
        if device in kind_of
    )
    timed = [
        [queued.shapes[n] for n in possible_shapes(queued, ledger)]
        for queued in queue
        if all(shape.seconds is not None for shape in queued.shapes)
    ]
    return least_target([shapes for shapes in timed if shapes], total_speed, busy)


def allotted(queue: Sequence[Queued], ledger: Ledger, target: float) -> Allotment:
    """The narrowest shapes by which trials end by the target on the devices of this ledger."""
    first_choices = {
        queued.id: narrowest_by(target, queued.shapes, possible_shapes(queued, ledger)) for queued in queue
    }
    return Allotment(first_choices, target)


def suits(queued: Queued, ledger: Ledger, target: float) -> bool:
    """Whether a trial may start on these slower devices: in time, or because it was passed over too often."""
    able = possible_shapes(queued, ledger)
    if not able or queued.passed_over >= PASSES_BEFORE_RESERVATION:
        return bool(able)
    return min(
        inf if (shape_seconds := queued.shapes[n].seconds) is None else shape_seconds for n in able
    ) <= target or any(queued.shapes[n].seconds is None for n in able)
