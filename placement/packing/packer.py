"""Decides which queued gangs start now, on which devices, and says why; or why they wait.

Pure and deterministic: the ledger is only read, and reserving what was placed is the caller's. Gangs are taken in
queue order; one that does not fit is passed over by others, a bounded number of times. It knows no run times. The
first two rules below are carried out in ``shelf``, the reasons are worded in ``reasons``.

- A gang gets all its devices or none, on one node where that is possible.
- Best fit: the fullest devices that still fit, so that whole devices stay free for large gangs.
- Reservation: a gang that has been passed over ``PASSES_BEFORE_RESERVATION`` times goes to the front of the queue. The
  first such gang that does not fit, but would were the cluster empty, gets the devices that need the fewest gangs to
  end, and nobody behind may take those. It ends the wait: a reserved device gets no gang from behind, and is given up
  only for one where fewer gangs must end (or as few, and it comes first in the cluster). So the number of ends still
  needed never rises, and it is zero at the latest when all gangs now on the reserved devices have ended.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placement.model import Placement, Queued, Wait
from placement.packing.ledger import Ledger
from placement.packing.reasons import why_here, why_waiting
from placement.packing.shelf import Shelf

# A reservation leaves memory idle while it drains; without one, small gangs would hold up a large one for ever. Eight
# passes are two rounds of small gangs over the default cluster of four devices.
PASSES_BEFORE_RESERVATION = 8


@dataclass(frozen=True, slots=True)
class Start:
    """One run of a gang: when it began, and when it ended (None: it runs). Times are seconds on one clock."""

    arrival: int
    began_at: float
    ended_at: float | None


def pack(queue: Sequence[Queued], ledger: Ledger) -> tuple[list[Placement], list[Wait]]:
    """What starts now and what waits, each in the order in which the gangs were tried. ``ledger`` is not changed.

    Every gang that fits is placed, but for those that only reserved devices could take.
    """
    shelf = Shelf(ledger)
    placements: list[Placement] = []
    waiting: list[Queued] = []
    reserved: dict[str, Queued] = {}
    for queued in _starved_first(queue):
        chosen = shelf.take(queued.gang)
        if chosen is not None:
            placements.append(Placement(queued.gang, tuple(spot.device.id for spot in chosen), why_here(chosen)))
            continue
        waiting.append(queued)
        if not reserved and queued.passed_over >= PASSES_BEFORE_RESERVATION:
            reserved = {spot.device.id: queued for spot in shelf.reserve(queued.gang)}
    return placements, list(why_waiting(waiting, shelf, reserved))


def passed_over(arrived_at: Mapping[int, float], starts: Iterable[Start]) -> dict[int, int]:
    """Arrival → how many gangs that arrived later have started while this one waited.

    ``arrived_at`` gives the time at which each waiting gang arrived. One that has run before waits since its last run
    ended. ``starts`` are all starts of the waiting gangs and of those that arrived after the oldest of them.
    """
    waits_since = dict(arrived_at)
    by_arrival = sorted(starts, key=lambda start: start.arrival)
    for start in by_arrival:
        if start.arrival in waits_since:
            waits_since[start.arrival] = max(waits_since[start.arrival], start.ended_at or start.began_at)
    later: list[float] = []  # times of the starts of all gangs that arrived after the current one
    counts = {}
    for arrival in sorted(arrived_at, reverse=True):
        while by_arrival and by_arrival[-1].arrival > arrival:
            insort(later, by_arrival.pop().began_at)
        counts[arrival] = len(later) - bisect_right(later, waits_since[arrival])
    return counts


def _starved_first(queue: Sequence[Queued]) -> list[Queued]:
    """In queue order, but for those passed over too often: they go first, the oldest of them before all."""
    starved = [queued for queued in queue if queued.passed_over >= PASSES_BEFORE_RESERVATION]
    others = [queued for queued in queue if queued.passed_over < PASSES_BEFORE_RESERVATION]
    return sorted(starved, key=lambda queued: queued.arrival) + others
