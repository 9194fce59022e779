"""The default policy, ``pack``: which queued gangs start now, on how many and which devices, and why the others wait.

Pure and deterministic. Its rules:

- Moldable: each trial wants the fewest ranks with which all trials can end by a common target time (``allotment``).
  Where that shape does not fit now, narrower ones that end as soon are tried.
- Longest first inside a study (``turns``).
- A gang gets all its devices or none. It starts on as few nodes as it needs; on more, where it is slower, only if it
  would have to wait longer than it takes, or if nobody knows how long.
- Best fit: the fullest devices that still fit, so that as many gangs as possible start.
- Spread: if every gang of the queue can start, each gets the devices with the fewest gangs instead. Gangs on one device
  slow each other, and a device that nobody waits for is idle.
- Kinds: of several kinds of GPUs, the fastest is packed first, and no gang spans two that differ in speed (``kinds``).
- Reservation: devices are kept for the first gang of several ranks that does not fit now, where the ends of running
  gangs are predicted; others start there only if they end before (EASY backfilling, Lifka, "The ANL/IBM SP scheduling
  system", JSSPP 1995).
- Ageing: a gang that was passed over too often goes first. Where the ends of running gangs are predicted, devices are
  reserved for it as above, also for one rank. Gangs that start there end before, so its start never moves back as long
  as predictions hold. Where none are, or a gang still runs that should have ended, the devices on which the fewest
  gangs must end are kept for it. This bounds the wait: a kept device gets only new gangs that fit beside the one that
  it is kept for, and is exchanged only for one where fewer gangs must end (or equally many, if that device comes first
  in the cluster). So the number of gangs that must still end never rises, and it is zero at the latest when all gangs
  now on the kept devices have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType

from placement.model import Placement, Queued
from placement.packing.allotment import Allotment, allot, no_choice, possible_shapes
from placement.packing.kinds import (
    OnKind,
    allotted,
    busy_seconds,
    enter,
    fluid_seconds,
    groups_of,
    is_half_as_fast,
    least_seconds,
    on_kind,
    part,
    spans_kinds,
    speeds_of,
    suits,
    timed_shapes,
    within,
    within_kinds,
)
from placement.packing.ledger import Ledger
from placement.packing.policy import Decision, Wait
from placement.packing.reasons import DeviceRule
from placement.packing.round import Round, soonest
from placement.packing.turns import PASSES_BEFORE_RESERVATION, in_turn

NOT_KNOWN: Mapping[str, float] = MappingProxyType({})


def pack(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float] = NOT_KNOWN) -> Decision:
    """Place every gang that fits, unless it fits only on kept devices. ``ledger`` is not changed.

    On a cluster of several kinds of GPUs, gangs may also wait for a faster one (``kinds``).
    """
    is_planned = any(shape.kind for queued in queue for shape in queued.shapes)
    groups = groups_of(speeds_of(ledger.kinds), apart=is_planned or any(queued.kinds for queued in queue))
    if len(groups) > 1:
        return _pack_kinds(queue, ledger, seconds_left, groups)
    return _pack_kind(queue, ledger, seconds_left)


@within_kinds
def _pack_kind(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
    """Pack devices of one kind, or of several that are equally fast."""
    if not (ledger.kinds and any(shape.kind for queued in queue for shape in queued.shapes)):
        return _pack_all(queue, ledger, seconds_left)
    there = {queued.id: on_kind(queued, min(ledger.kinds), speeds_of(ledger.kinds)) for queued in queue}
    decision = _pack_all([here.queued for here in there.values()], ledger, seconds_left)
    return replace(decision, placements=_of_all_shapes(decision.placements, there))


def _of_all_shapes(placements: Iterable[Placement], there: Mapping[str, OnKind]) -> tuple[Placement, ...]:
    """The placements of trials on one kind, with the positions of their shapes among those on any."""
    return tuple(
        replace(placement, choice=there[placement.gang.id].choices[placement.choice]) for placement in placements
    )


@within_kinds
def _pack_spanning(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
    """Pack gangs over all kinds that they may use."""
    return _pack_all(queue, ledger, seconds_left)


def _pack_all(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
    allotment = (
        allot(queue, ledger, seconds_left) if any(len(queued.shapes) > 1 for queued in queue) else no_choice(queue)
    )
    decision = _pack(queue, allotment, _round(ledger, DeviceRule.FULLEST, allotment), seconds_left)
    if decision.waits or not decision.placements or ledger.max_gangs_per_device == 1:
        return decision
    spread = _pack(queue, allotment, _round(ledger, DeviceRule.FEWEST_GANGS, allotment), seconds_left)
    return decision if spread.waits else spread


def _pack_kinds(
    queue: Sequence[Queued],
    ledger: Ledger,
    seconds_left: Mapping[str, float],
    groups: Sequence[tuple[float, Sequence[str]]],
) -> Decision:
    """Pack each kind by itself, first with one gang on each device.

    Gangs that no kind alone holds, or whose ranks take unlike shares for devices of several kinds, come last, unless
    one of them was passed over too often: devices are then kept for it.
    """
    speeds = speeds_of(ledger.kinds)
    parts = {kinds[0]: part(ledger, kinds, ledger.max_gangs_per_device) for _, kinds in groups}
    there = {kind: {queued.id: on_kind(queued, kind, speeds) for queued in queue} for kind in parts}
    alone = {
        queued.id
        for queued in queue
        if not spans_kinds(queued)
        and any(possible_shapes(there[kind][queued.id].queued, devices) for kind, devices in parts.items())
    }
    timed = timed_shapes(there, parts)
    busy = {kind: busy_seconds(devices, seconds_left) for kind, devices in parts.items()}
    target = fluid_seconds([*timed.values()], {kind: len(devices.devices) for kind, devices in parts.items()}, busy)
    waiting = [queued for queued in queue if queued.id in alone]
    spanning = [queued for queued in queue if queued.id not in alone]
    over_all, placements, waits = Decision(), list[Placement](), dict[str, Wait]()
    are_ends_known = all(gang.id in seconds_left for gang in ledger.gangs)
    is_starved = any(queued.passed_over >= PASSES_BEFORE_RESERVATION for queued in spanning)
    too_slow: dict[str, Sequence[str]] = {}  # gang id → free kinds on which it would end too late
    try:
        if is_starved:
            over_all = _pack_spanning(spanning, ledger, seconds_left)
            enter(over_all.placements, ledger, placements)
        for limit in sorted({1, ledger.max_gangs_per_device}):
            before: dict[str, float | None] = {}  # gang id → least seconds on the fastest kind that could hold it
            for speed, kinds in groups:
                devices = part(ledger, kinds, limit, over_all.kept_devices)
                here = there[kinds[0]]
                able = [here[queued.id].queued for queued in waiting]
                able = [queued for queued in able if possible_shapes(queued, devices)]
                seconds = {queued.id: least_seconds(queued, devices) for queued in able}
                # Gangs that would start anyway, by sharing a faster device, are as fast on one of half its speed.
                may_share = ledger.max_gangs_per_device > 1
                candidates = [
                    queued
                    for queued in able
                    if queued.id not in before
                    or (may_share and is_half_as_fast(seconds[queued.id], before[queued.id], speed))
                    or not are_ends_known
                    or suits(queued, devices, target)
                ]
                too_slow |= dict.fromkeys(seconds.keys() - {queued.id for queued in candidates}, kinds)
                allotment = allotted(candidates, devices, target)
                decision = _pack(
                    candidates, allotment, _round(devices, DeviceRule.FULLEST, allotment), seconds_left, in_time=True
                )
                enter(_of_all_shapes(decision.placements, here), ledger, placements)
                waits = {**decision.waits, **waits}
                before = {**seconds, **before}
                waiting = [queued for queued in waiting if not ledger.holds(queued.id)]
        if spanning and not is_starved:
            over_all = _pack_spanning(spanning, ledger, seconds_left)
            enter(over_all.placements, ledger, placements)
    finally:
        ledger.release(*(placement.gang.id for placement in placements))
    waits = {
        queued.id: within(queued, _with_kinds(waits[queued.id], too_slow.get(queued.id, ()))) for queued in waiting
    }
    return Decision(tuple(placements), {**waits, **over_all.waits}, over_all.kept_devices)


def _with_kinds(wait: Wait, too_slow: Sequence[str]) -> Wait:
    if not too_slow:
        return wait
    return replace(wait, reason=f"{wait.reason}; on {' or '.join(too_slow)} it would end later than all trials could")


def _round(ledger: Ledger, rule: DeviceRule, allotment: Allotment) -> Round:
    """A round of gangs near each other, each with the words for its number of devices where it has a choice."""

    def why_so_many(queued: Queued, choice: int) -> str:
        if len(queued.shapes) == 1:
            return ""
        first_choice = allotment.first_choices[queued.id]
        if choice == first_choice:
            return "so few let all trials end by a common time"
        return f"{queued.shapes[first_choice].num_ranks} would let all trials end by a common time, but are not free"

    return Round(ledger, rule, is_near=True, why_so_many=why_so_many)


def _pack(
    queue: Sequence[Queued],
    allotment: Allotment,
    packing_round: Round,
    seconds_left: Mapping[str, float],
    *,
    in_time: bool = False,
) -> Decision:
    """With ``in_time`` no gang starts in a shape that ends later than the target, if another one would not.

    Those that have plans for kinds then start by the devices and seconds that they take: these differ most in width,
    and a wide gang that comes last would end alone.
    """
    by_work = in_time and any(queued.shapes[0].kind for queued in queue)
    with packing_round:
        for queued in in_turn(queue, allotment.first_choices, by_work=by_work):
            first_choice = allotment.first_choices[queued.id]
            is_starved = queued.passed_over >= PASSES_BEFORE_RESERVATION
            if packing_round.start(queued, first_choice, may_be_far=is_starved):
                continue
            start_in, devices = _reservation(queued, first_choice, packing_round, seconds_left)
            may_wait = inf if is_starved else start_in
            if in_time and may_wait == inf:
                may_wait = 0.0
            other_choices = _instead(queued, first_choice, allotment.seconds, may_wait)
            if any(packing_round.start(queued, choice) for choice in other_choices):
                continue
            if _starts_far(queued, first_choice, packing_round, seconds_left):
                continue
            packing_round.wait(queued)
            if devices:
                packing_round.keep(queued, queued.shapes[first_choice], devices, start_in)
        return packing_round.decision()


def _reservation(
    queued: Queued, first_choice: int, packing_round: Round, seconds_left: Mapping[str, float]
) -> tuple[float, Sequence[str]]:
    """In how many seconds the gang could start, and the devices to keep for it: none if others are kept already."""
    shape = queued.shapes[first_choice]
    if packing_round.kept_for is not None:
        return inf, ()
    ledger, is_starved = packing_round.ledger, queued.passed_over >= PASSES_BEFORE_RESERVATION
    if shape.mibs:
        return inf, ledger.find_uneven_later(shape, speeds_of(ledger.kinds)) if is_starved else ()
    is_predicted = shape.seconds is not None and not (is_starved and _is_late(ledger, seconds_left))
    if is_predicted and (is_starved or shape.num_ranks > 1):
        start_in, devices = soonest(ledger, shape.num_ranks, shape.mib_per_rank, seconds_left)
        if devices:
            return start_in, devices
    return inf, ledger.fewest_ends(shape.num_ranks, shape.mib_per_rank) if is_starved else ()


def _is_late(ledger: Ledger, seconds_left: Mapping[str, float]) -> bool:
    """Whether a gang still runs that should have ended, so that predictions may be wrong."""
    return any(seconds_left.get(gang.id) == 0.0 for gang in ledger.gangs)


def _starts_far(queued: Queued, first_choice: int, packing_round: Round, seconds_left: Mapping[str, float]) -> bool:
    """Start the gang across more nodes than it needs, if it would wait longer for those than it takes."""
    if not packing_round.is_far(queued):
        return False
    shape = queued.shapes[first_choice]
    if shape.seconds is not None and packing_round.near_in(shape, seconds_left) <= shape.seconds:
        return False
    return any(
        packing_round.start(queued, choice, may_be_far=True)
        for choice in (first_choice, *_instead(queued, first_choice, inf, inf))
    )


def _instead(queued: Queued, first_choice: int, target: float, start_in: float) -> Iterator[int]:
    """Other shapes that may start now: narrower ones, the widest first, then wider ones.

    Where the wanted one could start in ``start_in`` seconds, only those that end by then, or by the target.
    """
    seconds = queued.shapes[first_choice].seconds
    latest = inf if seconds is None else max(target, start_in + seconds)
    for choice in (*range(first_choice - 1, -1, -1), *range(first_choice + 1, len(queued.shapes))):
        seconds_there = queued.shapes[choice].seconds
        if seconds_there is None or seconds_there <= latest:
            yield choice
