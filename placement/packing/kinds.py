"""The kinds of GPUs of a cluster in the policy ``pack``: which trials the slower ones get, and no gang of two kinds.

Gangs run at the pace of their slowest rank, so one that spans two kinds wastes the faster. So each kind is packed by
itself, the fastest first and with the largest trials. A slower kind gets those that still end there by a common target
time, the least in which all could end if trials were divided at will (``fluid_seconds``). Others wait for a faster
kind, but not if no faster one could ever hold them, or if nobody knows when running gangs end; where they were passed
over too often, devices of the fastest are kept for them. Nothing starts in a shape that ends after the target, if
another shape of the trial would not.

The target is a linear program: each trial is divided between its shapes, the device-seconds on each kind fit into the
time, and the parts of a trial last no longer than that together. It is the relaxation of scheduling on unrelated
machines, as in Lenstra, Shmoys and Tardos, "Approximation algorithms for scheduling unrelated parallel machines",
Mathematical Programming 46, 1990, with shapes of several devices.

A trial that may use some kinds alone is packed on these. Where a policy does not pack kinds by themselves, trials
that may use the same ones share them, as if there were no others (``within_kinds``).

On each kind a trial offers the shapes that were planned for it. On one for which none was, it offers those of the first
kind, as much slower as that kind is by the matrix products of the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps

import numpy as np

from estimators.devices.catalogue import KINDS
from placement.model import Cluster, Device, Gang, Placement, Queued, Shape
from placement.packing.allotment import Allotment, narrowest_by, possible_shapes
from placement.packing.ledger import Ledger
from placement.packing.policy import Decision, Policy, Wait

MOST_TRIALS = 128
"""More trials are represented by so many of them, evenly drawn: one program then takes some milliseconds."""


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


def groups_of(speeds: Mapping[str, float], *, apart: bool) -> list[tuple[float, list[str]]]:
    """Speeds with the kinds that have them, the fastest first; ``apart``: each kind alone."""
    if apart:
        return [(speeds[kind], [kind]) for kind in sorted(speeds, key=lambda kind: (-speeds[kind], kind))]
    return [(speed, [kind for kind in speeds if speeds[kind] == speed]) for speed in sorted({*speeds.values()})[::-1]]


def part(ledger: Ledger, kinds: Sequence[str], max_gangs_per_device: int, kept: Iterable[str] = ()) -> Ledger:
    """The devices of these kinds with what is on them, and another limit of gangs on each; gangs start on none of those
    that are ``kept``."""
    devices: Sequence[Device] = [device for device in ledger.devices if device.kind in kinds]
    here = {device.id for device in devices}
    ready = {device.id: ledger.ready_on(device.id) for device in devices} if ledger.is_any_ready else {}
    selected = Ledger(Cluster(tuple(devices)), max_gangs_per_device, ready)
    for gang in ledger.gangs:
        held = [device for device in ledger.devices_of(gang.id) if device in here]
        if held:
            selected.restore(held_part(ledger, gang.id, held), held)
    selected.keep(here.intersection(kept))
    return selected


def held_part(ledger: Ledger, gang_id: str, devices: Sequence[str]) -> Gang:
    """The part of a gang that is on these of its devices, as a gang."""
    mibs = tuple(ledger.gangs_on(device)[gang_id] for device in devices)
    return Gang(gang_id, len(mibs), max(mibs), mibs if len(set(mibs)) > 1 else ())


def within_kinds(policy: Policy) -> Policy:
    """Make a policy respect ``Queued.kinds``.

    Trials that may use the same kinds are placed in one round, which sees only devices of these kinds. The trials with
    the fewest kinds go first.
    """

    @wraps(policy)
    def decide(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
        if not any(queued.kinds for queued in queue):
            return policy(queue, ledger, seconds_left)
        able = {queued.id: frozenset(ledger.kinds & queued.kinds if queued.kinds else ledger.kinds) for queued in queue}
        placements: list[Placement] = []
        waits: dict[str, Wait] = {}
        kept: set[str] = set()
        try:
            for kinds in sorted(set(able.values()), key=lambda kinds: (len(kinds), sorted(kinds))):
                those = [queued for queued in queue if able[queued.id] == kinds]
                here = part(ledger, [*kinds], ledger.max_gangs_per_device, kept)
                decision = policy(those, here, seconds_left)
                enter(decision.placements, ledger, placements)
                waits |= {
                    queued.id: within(queued, wait) for queued in those if (wait := decision.waits.get(queued.id))
                }
                kept |= {*decision.kept_devices}
        finally:
            ledger.release(*(placement.gang.id for placement in placements))
        return Decision(tuple(placements), waits, tuple(sorted(kept)))

    return decide


def within(queued: Queued, wait: Wait) -> Wait:
    """Why the gang waits, with the kinds to which it is bound."""
    if not queued.kinds:
        return wait
    return replace(wait, reason=f"{wait.reason}; its study may use {' or '.join(sorted(queued.kinds))} alone")


def enter(decided: Sequence[Placement], ledger: Ledger, placements: list[Placement]) -> None:
    """Reserve what was decided, and add it to ``placements``, until the decision is complete."""
    for placement in decided:
        ledger.place(placement.gang, placement.devices)
        placements.append(placement)


@dataclass(frozen=True, slots=True)
class OnKind:
    """A trial as it would be on devices of one kind; ``choices`` are the positions of its shapes among all of them."""

    queued: Queued
    choices: Sequence[int]


def on_kind(queued: Queued, kind: str, speeds: Mapping[str, float]) -> OnKind:
    """The trial on devices of this kind, by the ``speeds`` of kinds relative to the fastest."""
    shapes = queued.shapes
    planned_for = kind if any(shape.kind == kind for shape in shapes) else shapes[0].kind
    choices = [n for n, shape in enumerate(shapes) if shape.kind == planned_for]
    speed = 1.0 if planned_for == kind else speeds[kind] / speeds.get(planned_for, 1.0)
    if speed == 1.0 and len(choices) == len(shapes):
        return OnKind(queued, choices)
    there = (
        replace(shapes[n], seconds=None if (seconds := shapes[n].seconds) is None else seconds / speed) for n in choices
    )
    return OnKind(replace(queued, shapes=tuple(there)), choices)


def timed_shapes(
    there: Mapping[str, Mapping[str, OnKind]], parts: Mapping[str, Ledger]
) -> dict[str, dict[str, Sequence[Shape]]]:
    """Gang id → kind → shapes of the trial, as they would be ``there``, that this part of the ledger could hold.

    Trials whose seconds are not known are left out."""
    timed: dict[str, dict[str, Sequence[Shape]]] = {}
    for kind, devices in parts.items():
        for here in there[kind].values():
            shapes = here.queued.shapes
            possible = [shapes[n] for n in possible_shapes(here.queued, devices)]
            if possible and all(shape.seconds is not None for shape in shapes):
                timed.setdefault(here.queued.id, {})[kind] = possible
    return timed


def busy_seconds(ledger: Ledger, seconds_left: Mapping[str, float]) -> float:
    """Device-seconds until the gangs of this ledger have ended, as far as they are predicted."""
    return sum(seconds_left.get(gang.id, 0.0) * gang.num_ranks for gang in ledger.gangs)


def allotted(queue: Sequence[Queued], ledger: Ledger, target: float) -> Allotment:
    """The narrowest shapes by which trials end by the target on the devices of this ledger."""
    first_choices = {
        queued.id: narrowest_by(target, queued.shapes, possible_shapes(queued, ledger)) for queued in queue
    }
    return Allotment(first_choices, target)


def least_seconds(queued: Queued, ledger: Ledger) -> float | None:
    """The least seconds of a trial on the empty devices of this ledger, which could hold it; None: not known."""
    seconds = [queued.shapes[n].seconds for n in possible_shapes(queued, ledger)]
    predicted = [value for value in seconds if value is not None]
    return min(predicted) if len(predicted) == len(seconds) else None


def is_half_as_fast(seconds: float | None, before: float | None, speed: float) -> bool:
    """Whether a trial takes at most twice the seconds ``before``, on a faster kind; where they are not known, whether
    the ``speed`` of the kind says so."""
    return speed >= 0.5 if seconds is None or before is None else seconds <= 2 * before


def suits(queued: Queued, ledger: Ledger, target: float) -> bool:
    """Whether a trial ends in time on these slower devices, which could hold it."""
    seconds = least_seconds(queued, ledger)
    return seconds is None or seconds <= target


def fluid_seconds(
    trials: Sequence[Mapping[str, Sequence[Shape]]], devices: Mapping[str, int], busy: Mapping[str, float]
) -> float:
    """The least seconds; ``trials`` have their shapes with known seconds by kind, at least one, ``devices`` are the
    numbers of each kind, and ``busy`` the device-seconds until what runs on it has ended."""
    from scipy.optimize import linprog  # it takes a third of a second to load, and few clusters have several kinds
    from scipy.sparse import coo_array

    kinds = [*devices]
    chosen = trials[:: -(-len(trials) // MOST_TRIALS)] if trials else trials
    weight = len(trials) / len(chosen) if chosen else 1.0
    column, rows, columns, values = 0, list[int](), list[int](), list[float]()
    ones: list[int] = []
    for n, shapes in enumerate(chosen):
        for kind, offered in shapes.items():
            for shape in offered:
                seconds = shape.seconds or 0.0
                rows += [kinds.index(kind), len(kinds) + n]
                columns += [column, column]
                values += [weight * shape.num_ranks * seconds, seconds]
                ones.append(n)
                column += 1
    num_rows = len(kinds) + len(chosen)
    rows += range(num_rows)
    columns += [column] * num_rows
    values += [*(-float(devices[kind]) for kind in kinds), *(-1.0 for _ in chosen)]
    limits = [*(-busy.get(kind, 0.0) for kind in kinds), *(0.0 for _ in chosen)]
    of_trials = coo_array((np.ones(column), (ones, range(column))), shape=(len(chosen), column + 1))
    costs = np.zeros(column + 1)
    costs[-1] = 1.0
    solved = linprog(
        costs,
        A_ub=coo_array((values, (rows, columns)), shape=(num_rows, column + 1)).tocsc(),
        b_ub=limits,
        A_eq=of_trials.tocsc() if chosen else None,
        b_eq=np.ones(len(chosen)) if chosen else None,
        method="highs",
    )
    assert solved.success, solved.message
    return float(solved.x[-1])
