"""The policy ``elastic``: divides idle devices between queued trials so that their scaled throughput is largest.

The scaled throughput of a trial on some ranks is the seconds of its narrowest shape divided by those of this one. The
largest sum is found by the dynamic program of Saxena, Jayaram, Basu, Sabharwal and Verma, "Effective elastic scaling of
deep learning workloads", MASCOTS 2020, section IV.

As a policy it decides about queued trials only, and running gangs keep their devices. ``redivide`` is the whole of
theirs, where running jobs become wider and narrower at any time: a service stops these
(``scamp_service.control.decide.redivide``), and ``placement.simulation.schedule`` simulates it on known jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from placement.model import Queued, Shape
from placement.packing.allotment import possible_shapes
from placement.packing.kinds import within_kinds
from placement.packing.ledger import Ledger
from placement.packing.policy import Decision
from placement.packing.reasons import DeviceRule
from placement.packing.round import Round
from placement.packing.turns import resumed_first

SO_MANY = "the policy elastic divides the devices so that the sum of all speed-ups is largest"
WORTH_SHARE, WORTH_RESTARTS = 0.1, 3.0
"""A running job becomes wider if that saves this share of what is left, and this many times what its restart costs."""


@dataclass(frozen=True, slots=True)
class Share:
    """A job among those that devices are divided between; ``choice`` is the shape in which it runs, None if it waits.

    The seconds of its shapes are known; ``left`` (above 0, at most 1) is the part of the training that remains. A
    running job needs ``restart_seconds`` to change its shape.
    """

    queued: Queued
    choice: int | None = None
    left: float = 1.0
    restart_seconds: float = 0.0


@within_kinds
def elastic(queue: Sequence[Queued], ledger: Ledger, seconds_left: Mapping[str, float]) -> Decision:
    """Start as many of the oldest trials as fit, each alone on its devices, in the shapes with the largest throughput.

    Those of a study that have trained before come before its others: one that became narrower has its place. Where
    fragmentation leaves no room for a shape, the trial gets a narrower one.
    """
    with Round(ledger, DeviceRule.IDLE, why_so_many=lambda queued, choice: SO_MANY) as packing_round:
        queue = resumed_first(queue)
        num_idle = ledger.num_idle()
        able = [queued for queued in queue if possible_shapes(queued, ledger)]
        chosen = divide([_throughputs(queued, ledger) for queued in able[:num_idle]], num_idle)
        choices = {queued.id: choice for queued, choice in zip(able, chosen, strict=False)}
        for queued in queue:
            most = choices.get(queued.id)
            if not any(packing_round.start(queued, choice) for choice in range(-1 if most is None else most, -1, -1)):
                packing_round.wait(queued)
        for queued in [*packing_round.waiting]:
            if any(packing_round.start(queued, choice) for choice in range(len(queued.shapes))):
                packing_round.waiting.remove(queued)
        return packing_round.decision()


def redivide(jobs: Sequence[Share], num_devices: int) -> list[int | None]:
    """The shape of each job on ``num_devices`` equal devices, by the largest scaled throughput of all; None: it waits.

    As many jobs as possible run, the first ones of the list: put running ones first, and the others in the order of
    their arrival. Running jobs become narrower so that others start, and wider if that is worth a restart.
    """
    options = [_values(job.queued.shapes, num_devices) for job in jobs]
    able = [n for n, choices in enumerate(options) if choices]
    while True:
        chosen = dict(zip(able, divide([options[n] for n in able], num_devices), strict=True))
        starts = any(jobs[n].choice is None and choice is not None for n, choice in chosen.items())
        unchanged = [
            n
            for n, choice in chosen.items()
            if len(options[n]) > 1 and not _is_worth(jobs[n], choice, others_start=starts)
        ]
        if not unchanged:
            return [chosen.get(n) for n in range(len(jobs))]
        for n in unchanged:
            now = jobs[n].choice
            assert now is not None
            options[n] = {now: options[n][now]}


def _is_worth(job: Share, choice: int | None, *, others_start: bool) -> bool:
    """Whether a job may change to this shape, or need not change at all."""
    if job.choice is None or choice is None or choice == job.choice:
        return True
    now, then = (job.left * (job.queued.shapes[n].seconds or 0.0) for n in (job.choice, choice))
    if then >= now:
        return others_start
    saved = now - then - job.restart_seconds
    return saved >= max(WORTH_SHARE * now, WORTH_RESTARTS * job.restart_seconds)


def _values(shapes: Sequence[Shape], num_devices: int) -> dict[int, tuple[int, float]]:
    able = [
        (n, shape.num_ranks, shape.seconds or 0.0) for n, shape in enumerate(shapes) if shape.num_ranks <= num_devices
    ]
    return {n: (ranks, able[0][2] / seconds if seconds else 1.0) for n, ranks, seconds in able}


def divide(options: Sequence[Mapping[int, tuple[int, float]]], num_devices: int) -> list[int | None]:
    """The option of each trial with the largest sum of values on ``num_devices``; None: it waits.

    ``options`` has for each trial its choices, each with ranks and value. As many of the first trials as possible get
    one.
    """
    num_first, used = 0, 0
    for of_trial in options:
        used += min(ranks for ranks, _ in of_trial.values())
        if used > num_devices:
            break
        num_first += 1
    best = [0.0] * (num_devices + 1)  # by the number of devices: the largest sum on at most this many
    taken: list[list[int | None]] = []
    for of_trial in options[:num_first]:
        after = [-inf] * (num_devices + 1)
        row: list[int | None] = [None] * (num_devices + 1)
        for choice, (ranks, value) in of_trial.items():
            for total in range(ranks, num_devices + 1):
                if best[total - ranks] + value > after[total]:
                    after[total], row[total] = best[total - ranks] + value, choice
        best = after
        taken.append(row)
    left = num_devices
    choices: list[int | None] = []
    for of_trial, row in zip(reversed(options[:num_first]), reversed(taken), strict=True):
        last = row[left]
        assert last is not None, "the narrowest options of all fit together"
        choices.append(last)
        left -= of_trial[last][0]
    return [*reversed(choices), *[None] * (len(options) - num_first)]


def _throughputs(queued: Queued, ledger: Ledger) -> dict[int, tuple[int, float]]:
    """Ranks and scaled throughput of each shape; where seconds are not known, more ranks are worth nothing."""
    able = possible_shapes(queued, ledger)
    first = queued.shapes[able[0]].seconds
    values = ((n, queued.shapes[n]) for n in able)
    return {n: (shape.num_ranks, first / shape.seconds if first and shape.seconds else 1.0) for n, shape in values}
