"""Chooses the number of ranks for every trial of a queue: as few as let all of them end by a common target time.

Wider gangs end sooner, but use more device-seconds. So the target is the least time by which the trials, each in its
narrowest shape that ends in time, take no more device-seconds than there are. This is the canonical allotment of
Mounié, Rapine and Trystram, "A 3/2-approximation algorithm for scheduling independent monotonic malleable tasks", SIAM
Journal on Computing 37(2), 2007, with the work of gangs that run already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from placement.model import Queued, Shape
from placement.packing.ledger import Ledger

CLEARLY_MORE = 1.1
"""Ratio of device-seconds below which their predictions do not differ. Where virtual devices share the cores of a
machine, a trial takes about as many on all of them as on one; without this, chance would let the others wait for it."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """Position of the wanted shape by gang id, and the seconds by which all trials should have ended."""

    first_choices: Mapping[str, int]
    seconds: float


def allot(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float], slack: float = 1.0) -> Allotment:
    """Allot devices to the queue; ``slack`` times the least target is taken.

    Trials whose seconds are not known want their first shape that the empty cluster could take.
    """
    possible = {queued.id: possible_shapes(queued, ledger) for queued in queue}
    timed = [
        [shapes[n] for n in able] for queued in queue if (able := possible[queued.id]) if (shapes := _timed(queued))
    ]
    busy = sum(gang.num_ranks * seconds_left.get(gang.id, 0.0) for gang in ledger.gangs)
    target = slack * least_target(timed, len(ledger.devices) or 1, busy)
    first_choices = {queued.id: narrowest_by(target, queued.shapes, possible[queued.id]) for queued in queue}
    return Allotment(first_choices, target)


def no_choice(queue: Sequence[Queued]) -> Allotment:
    """The allotment of trials that offer one shape each, which costs no look at what runs."""
    return Allotment({queued.id: 0 for queued in queue}, inf)


def possible_shapes(queued: Queued, ledger: Ledger) -> Sequence[int]:
    """Positions of the shapes that the empty cluster could take; none if it has devices of a kind that the trial may
    not use."""
    if not queued.may_use(ledger.kinds):
        return []
    return [n for n, shape in enumerate(queued.shapes) if ledger.could_hold(shape)]


def narrowest_by(target: float, shapes: Sequence[Shape], able: Sequence[int]) -> int:
    """The first of the shapes that ends by the target, or else the fastest one; the first one if none is known.

    A shape counts only if no wider one takes clearly fewer device-seconds.
    """
    if not able:
        return 0
    able = _efficient(shapes, able)
    seconds = {n: inf if (shape_seconds := shapes[n].seconds) is None else shape_seconds for n in able}
    return next((n for n in able if seconds[n] <= target), min(able, key=seconds.__getitem__))


def _efficient(shapes: Sequence[Shape], able: Sequence[int]) -> Sequence[int]:
    """Positions of the shapes without a wider one, which is faster as well, that takes clearly fewer device-seconds."""
    narrowing: list[int] = []
    least = inf
    for n in reversed(able):
        area = shapes[n].device_seconds
        if area is None:
            return able
        if area <= least * CLEARLY_MORE:
            narrowing.append(n)
            least = min(least, area)
    return narrowing[::-1]


def least_target(timed: Sequence[Sequence[Shape]], num_devices: float, busy: float = 0.0) -> float:
    """The least time by which the device-seconds of all trials, and ``busy`` ones, fit. Seconds must be known."""
    slowest, area = 0.0, busy
    changes: list[tuple[float, float]] = []  # (seconds, device-seconds that a trial takes more below them)
    for offered in timed:
        shapes = [offered[n] for n in _efficient(offered, range(len(offered)))]
        ends, areas = [shape.seconds or 0.0 for shape in shapes], [shape.device_seconds or 0.0 for shape in shapes]
        slowest = max(slowest, min(ends))
        area += areas[0]
        changes += [(end, areas[n + 1] - areas[n]) for n, end in enumerate(ends[:-1])]
    least, upper = max(area / num_devices, slowest), inf
    for end, more in sorted(changes, reverse=True):
        if least >= end:
            break
        area, upper = area + more, end
        least = max(area / num_devices, slowest)
    return min(least, upper)


def _timed(queued: Queued) -> Sequence[Shape]:
    return queued.shapes if all(shape.seconds is not None for shape in queued.shapes) else ()
