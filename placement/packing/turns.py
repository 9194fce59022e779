"""The order in which queued gangs are tried, and how often one was passed over. Pure.

The order of the queue is that of fairness between studies, and a study's places in it stay its own. Inside a study the
longest trials come first: short ones then fill the gaps at the end. A gang that was passed over too often comes before
all others, the oldest first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from placement.model import Queued

PASSES_BEFORE_RESERVATION = 8
"""A gang that was passed over so often goes first, and devices are kept for it. That leaves memory idle while devices
drain; without it, small gangs could delay a large one forever. Eight passes are two rounds of small gangs over the
default cluster of four devices."""


def in_turn(queue: Sequence[Queued], first_choices: Mapping[str, int], *, by_work: bool = False) -> Sequence[Queued]:
    """The queue in the order in which its gangs are tried; ``first_choices`` are the positions of their shapes.

    With ``by_work`` device-seconds say which trial is the longest: a wide gang that needs many comes early."""
    if all(queued.shapes[0].seconds is None for queued in queue):
        return starved_first(queue)
    studies: dict[int, list[Queued]] = {}
    for queued in queue:
        studies.setdefault(queued.study, []).append(queued)

    def longest_first(queued: Queued) -> tuple[float, int]:
        shape = queued.shapes[first_choices[queued.id]]
        return -((shape.device_seconds if by_work else shape.seconds) or 0.0), -shape.num_ranks

    turns = {study: iter(sorted(gangs, key=longest_first)) for study, gangs in studies.items()}
    return starved_first([next(turns[queued.study]) for queued in queue])


def resumed_first(queue: Sequence[Queued]) -> Sequence[Queued]:
    """The queue, in which the gangs of each study that have trained before come before its others."""
    if not any(queued.resumes for queued in queue):
        return queue
    studies: dict[int, list[Queued]] = {}
    for queued in queue:
        studies.setdefault(queued.study, []).append(queued)
    turns = {study: iter(sorted(gangs, key=lambda queued: not queued.resumes)) for study, gangs in studies.items()}
    return [next(turns[queued.study]) for queued in queue]


def starved_first(queue: Sequence[Queued]) -> Sequence[Queued]:
    """The gangs in queue order, except that those passed over too often come first, the oldest of them in front."""
    starved = [queued for queued in queue if queued.passed_over >= PASSES_BEFORE_RESERVATION]
    if not starved:
        return queue
    others = [queued for queued in queue if queued.passed_over < PASSES_BEFORE_RESERVATION]
    return sorted(starved, key=lambda queued: queued.arrival) + others


def passed_over(queue: Iterable[Queued], started: Collection[str]) -> dict[str, int]:
    """How often each gang that still waits has been passed over, by gang id, once the gangs ``started`` have begun.

    Longer trials of its own study do not pass it: they come first, and a study has a limited number of them.
    """
    counts: dict[str, int] = {}
    later: list[Queued] = []
    for queued in reversed(sorted(queue, key=lambda queued: queued.arrival)):  # noqa: C413 (ties stay in queue order)
        if queued.id in started:
            later.append(queued)
        else:
            counts[queued.id] = queued.passed_over + sum(not _goes_first(other, queued) for other in later)
    return counts


def _goes_first(other: Queued, queued: Queued) -> bool:
    seconds, its = queued.shapes[0].seconds, other.shapes[0].seconds
    return other.study == queued.study and seconds is not None and its is not None and its > seconds
