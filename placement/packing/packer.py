"""Decides which queued gangs start now and on which devices, and why the others wait.

Pure and deterministic: it only reads the ledger, and the caller reserves what was placed. Gangs are tried in queue
order. A gang that does not fit may be passed over by later ones, a bounded number of times. Run times are not known
here. ``shelf`` carries out the first three rules below, and ``reasons`` words the reasons.

- A gang gets all its devices or none, on one node if possible.
- Best fit: the fullest devices that still fit, so that as many gangs as possible start.
- Spread: if every gang of the queue can start, each gets the devices with the fewest gangs instead. Gangs on one device
  slow each other, and a device that nobody waits for is idle.
- Reservation: a gang that has been passed over ``PASSES_BEFORE_RESERVATION`` times moves to the front of the queue. The
  first such gang that does not fit now, but would fit on the empty cluster, reserves the devices on which the fewest
  gangs must end before it can start. No gang behind it may take these devices. This bounds the wait: a reserved device
  gets no new gang, and is exchanged only for one where fewer gangs must end (or equally many, if that device comes
  first in the cluster). So the number of gangs that must still end never rises, and it is zero at the latest when all
  gangs now on the reserved devices have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from placement.model import Placement, Queued
from placement.packing.ledger import Ledger
from placement.packing.policy import Decision, Wait
from placement.packing.reasons import why_here, why_waiting
from placement.packing.shelf import Shelf

# A reservation leaves memory idle while its devices drain. Without one, small gangs could delay a large one forever.
# Eight passes are two rounds of small gangs over the default cluster of four devices.
PASSES_BEFORE_RESERVATION = 8


NOT_KNOWN: Mapping[str, float] = MappingProxyType({})


def pack(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float] = NOT_KNOWN) -> Decision:
    """Place every gang that fits, unless it fits only on reserved devices. ``ledger`` is not changed."""
    placements, waits = _pack(queue, Shelf(ledger))
    if not waits:
        spread, crowded_out = _pack(queue, Shelf(ledger, spread=True))
        return Decision(placements, waits) if crowded_out else Decision(spread)
    return Decision(placements, waits)


def _pack(queue: Sequence[Queued], shelf: Shelf) -> tuple[list[Placement], dict[str, Wait]]:
    placements: list[Placement] = []
    waiting: list[Queued] = []
    reserved: dict[str, Queued] = {}
    for queued in _starved_first(queue):
        if (placement := _first_that_fits(queued, shelf)) is not None:
            placements.append(placement)
            continue
        waiting.append(queued)
        if not reserved and queued.passed_over >= PASSES_BEFORE_RESERVATION:
            reserved = {spot.device.id: queued for spot in shelf.reserve(queued.gang())}
    return placements, why_waiting(waiting, shelf, reserved)


def _first_that_fits(queued: Queued, shelf: Shelf) -> Placement | None:
    for choice in range(len(queued.shapes)):
        gang = queued.gang(choice)
        if (chosen := shelf.take(gang)) is not None:
            devices = tuple(spot.device.id for spot in chosen)
            return Placement(gang, devices, why_here(chosen, spread=shelf.spread), choice)
    return None


def passed_over(queue: Iterable[Queued], started: Collection[str]) -> dict[str, int]:
    """How often each gang that still waits has been passed over, by gang id, once the gangs ``started`` have begun."""
    counts, later = {}, 0
    for queued in reversed(sorted(queue, key=lambda queued: queued.arrival)):  # noqa: C413 (ties stay in queue order)
        if queued.id in started:
            later += 1
        else:
            counts[queued.id] = queued.passed_over + later
    return counts


def _starved_first(queue: Sequence[Queued]) -> Sequence[Queued]:
    """The gangs in queue order, except that those passed over too often come first, the oldest of them in front."""
    starved = [queued for queued in queue if queued.passed_over >= PASSES_BEFORE_RESERVATION]
    if not starved:
        return queue
    others = [queued for queued in queue if queued.passed_over < PASSES_BEFORE_RESERVATION]
    return sorted(starved, key=lambda queued: queued.arrival) + others
