"""Queued and running trials as policies know them: their gangs, what these need, and the seconds that are left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from operator import ge

from estimators.model import MIB
from placement.model import NONE_READY, Cluster, Gang, Offer, Queued, Ready, Shape, offer_of, plural
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from scamp_service.control.decide.rules.growth import counted_seconds, step_seconds, worth_offering
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.control.stopping.rule import next_pause
from scamp_service.lifecycle import TrialState
from scamp_service.model import Attempt, Choice, Sized, Trial, reserved_mibs


def sized_of(trial: Trial) -> Sized:
    """The sizes of a queued trial, which has some."""
    assert trial.sized is not None, f"trial {trial.id} is queued without a plan"
    return trial.sized


def missing_devices(offer: Offer, demand: Shape, kinds: frozenset[str]) -> str:
    """Why such a gang never fits on those of these devices that are of its ``kinds``, or on any if it has none; empty
    if it does when they are free."""
    offer, of_kinds = offer_of(offer, kinds), f" of {' or '.join(sorted(kinds))}" if kinds else ""
    num_ranks, mib = demand.num_ranks, demand.mib_per_rank
    if demand.mibs:
        mibs_offered = sorted((offered_mib for _, offered_mib, number in offer for _ in range(number)), reverse=True)
        largest_first = sorted(demand.mibs, reverse=True)
        if len(mibs_offered) >= num_ranks and all(map(ge, mibs_offered, largest_first)):
            return ""
        mibs = ", ".join(map(str, largest_first))
        needs = f"its plan needs {plural(num_ranks, 'device')} of {mibs} MiB{of_kinds and f', {of_kinds[1:]}'}"
        return f"{needs}, which the cluster does not have now"
    able = sum(number for _, offered_mib, number in offer if offered_mib >= mib)
    if able >= num_ranks:
        return ""
    return f"its plan needs {num_ranks} × {mib} MiB, and the cluster now has {plural(able, 'such device')}{of_kinds}"


def fits_now(s: Snapshot, trial: Trial) -> bool:
    """Whether the present devices could hold the plan of a queued trial if they were free."""
    return not missing_devices(s.cluster.offer, sized_of(trial).demand, s.studies[trial.study_id].kinds)


def offer_choices(s: Snapshot, trial: Trial, learned: Corrections) -> tuple[Choice, ...]:
    """The plans that the trial may begin with now.

    One that ran out of memory keeps its plan, because what it needs is known for that plan only, and so does one that
    was lost, or whose project or owner has a quota of devices: it was admitted with that many. This plan is then for
    devices of any kind; and so are all that remain under a policy that knows no kinds. A plan whose layout was found to
    need more memory since is left out, but for the trial's own. So are those whose batch is not the best one for their
    number of ranks.
    """
    sized = sized_of(trial)
    if not sized.choices or trial.num_oom or trial.num_lost or s.most_devices(trial.study_id) is not None:
        return (replace(sized.choice, kind=""),)
    of_family = learned.get(s.studies[trial.study_id].family(trial), {})

    def is_known(choice: Choice) -> bool:
        newer = of_family.get(choice.plan.layout)
        return newer is None or newer.extra_bytes < choice.prediction.extra_bytes + MIB

    choices = [choice for choice in sized.choices if choice.plan == sized.plan or is_known(choice)]
    if s.packing.policy is not pack:
        choices = [replace(choice, kind="") for choice in choices if choice.kind == sized.choice.kind]
    return worth_offering(trial, choices)


def queued_of(
    s: Snapshot, trial: Trial, learned: Corrections, guess: float | None = None, passes: int | None = None
) -> Queued:
    """The trial as policies know it: a gang with the shapes of its plans and the seconds until its end.

    Where the seconds of a step are not predicted, they are ``guess``. ``passes`` are those that count; default: all.
    """
    study = s.studies[trial.study_id]
    left = max(1, study.steps_of(trial) - trial.step)
    shapes = tuple(
        replace(choice.shape, seconds=counted_seconds(trial, choice) or guess)
        for choice in offer_choices(s, trial, learned)
    )
    name = f"trial {trial.number} of study {trial.study_id}"
    passes = trial.passed_over if passes is None else passes
    return _gang_of(trial.id, trial.attempt + 1, trial.study_id, shapes, left, passes, study.code, name, study.kinds)


@lru_cache(maxsize=2**15)
def _gang_of(
    trial_id: int,
    attempt: int,
    study_id: int,
    shapes: tuple[Shape, ...],
    steps: int,
    passes: int,
    code: str | None,
    name: str,
    kinds: frozenset[str],
) -> Queued:
    """Thousands may wait for hours, and making their values again takes most of a cycle. ``shapes`` are of one step.

    An epoch counts as one step: then seconds compare only the trials of one study, and the ends of those that run are
    not predicted.
    """
    shapes_to_end = tuple(
        replace(shape, seconds=None if shape.seconds is None else shape.seconds * steps) for shape in shapes
    )
    return Queued(
        f"{trial_id}/{attempt}",
        shapes_to_end,
        passes,
        arrival=trial_id,
        study=study_id,
        resumes=attempt > 1,
        code=code,
        name=name,
        kinds=kinds,
    )


def ledger_of(
    cluster: Cluster, attempts: Iterable[Attempt], max_gangs_per_device: int, ready: Ready = NONE_READY
) -> Ledger:
    """A ledger with the reservations of ``attempts``: all that have not ended, whatever the state of their trials."""
    ledger = Ledger(cluster, max_gangs_per_device, ready)
    for attempt, mib in reserved_mibs(list(attempts)):
        ledger.restore(Gang(attempt.key, len(attempt.devices), mib, attempt.mibs), attempt.devices)
    return ledger


def usable_ledger(s: Snapshot, kinds: frozenset[str] = frozenset()) -> Ledger:
    """The devices on which trials may start, with what the open attempts reserve there; those of some ``kinds``, or
    all."""
    usable = Cluster(tuple(device for device in s.cluster.devices if device.id not in s.closed))
    return ledger_of(usable.of_kinds(kinds), s.attempts, s.packing.max_gangs_per_device, s.ready)


def seconds_left(s: Snapshot) -> dict[str, float]:
    """Seconds until each running attempt ends, where they are predicted; those that are being stopped end at once."""
    left, trials = {}, {trial.id: trial for trial in s.in_state(TrialState.RUNNING)}
    for attempt in s.attempts:
        trial = trials.get(attempt.trial_id)
        if trial is None or trial.attempt != attempt.attempt or attempt.outcome is not None:
            left[attempt.key] = 0.0
        elif (seconds := step_seconds(trial, attempt)) and (study := s.studies[trial.study_id]).budget.unit == "step":
            until = next_pause(study.stopping, trial) or study.steps_of(trial)
            left[attempt.key] = max(0, until - trial.step) * seconds
    return left
