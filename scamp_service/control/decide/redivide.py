"""Step 5 under the policy ``elastic``: divides the devices anew between its running and waiting trials.

A running trial becomes narrower so that others start, and wider, maybe with a larger batch, where that is worth a
restart (``placement.packing.elastic.redivide``, as simulations of traces have it). Its attempt ends, and the policy
starts the next one from the last checkpoint. On devices of unequal speed nothing is divided anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from placement.model import Cluster, Queued
from placement.packing.elastic import Share, elastic, redivide
from placement.packing.kinds import speeds_of
from placement.packing.ledger import Ledger
from scamp_service.control.decide.effects import MoveAttempt, withdraw
from scamp_service.control.decide.preempt import winds_down
from scamp_service.control.decide.replan import batch_in_words, devices_in_words, is_training
from scamp_service.control.decide.rules.admission import in_start_order, used_up_studies
from scamp_service.control.decide.rules.gangs import offer_choices, queued_of
from scamp_service.control.decide.rules.growth import counted_seconds
from scamp_service.control.decide.rules.restarts import restart_seconds, seconds_made_again, seconds_to_go
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.lifecycle import TrialState
from scamp_service.model import Attempt, Choice, Trial


@dataclass(frozen=True, slots=True)
class _Job:
    """A running trial with the plans between which may be chosen; the present one is at ``present``."""

    trial: Trial
    attempt: Attempt
    choices: Sequence[Choice]
    present: int
    share: Share


def redivided_studies(s: Snapshot) -> frozenset[int]:
    """Studies whose trials may be divided anew: under the policy ``elastic`` those that may use all devices, if these
    are of equal speed."""
    kinds = frozenset(device.kind for device in s.cluster.devices)
    if s.packing.policy is not elastic or len(set(speeds_of(kinds).values())) > 1:
        return frozenset()
    return frozenset(study.id for study in s.studies.values() if not study.kinds or kinds <= study.kinds)


def redivide_running(s: Snapshot, learned: Corrections) -> Iterator[MoveAttempt]:
    """Stop the running trials that get other numbers of devices. Nothing is stopped while an attempt winds down."""
    studies = redivided_studies(s)
    running = {trial.id: trial for trial in s.in_state(TrialState.RUNNING)}
    if not studies or any(winds_down(attempt, running) for attempt in s.attempts):
        return
    studies -= used_up_studies(s)
    jobs = list(_jobs(s, learned, studies, running))
    if not any(len(job.choices) > 1 for job in jobs):
        return
    held = {device for job in jobs for device in job.attempt.devices}
    others_devices = _devices_of_others(s, jobs)
    jobs = [job for job in jobs if others_devices.isdisjoint(job.attempt.devices)]
    free = [device for device in s.cluster.devices if device.id not in others_devices | s.closed]
    waiting = [trial for trial in in_start_order(s) if trial.study_id in studies][: len(free)]
    if not waiting and all(device.id in held for device in free):
        return
    ledger = Ledger(Cluster(tuple(free)), 1)
    shares = [*(job.share for job in jobs), *(Share(queued_of(s, trial, learned)) for trial in waiting)]
    chosen = redivide([_possible(share, ledger) for share in shares], len(free))
    num_started = sum(choice is not None for choice in chosen[len(jobs) :])
    for job, choice in zip(jobs, chosen, strict=False):
        if choice is not None and choice != job.present:
            why = _why(job, choice, num_started)
            yield withdraw(job.attempt, why)


def _jobs(s: Snapshot, learned: Corrections, studies: Set[int], running: Mapping[int, Trial]) -> Iterator[_Job]:
    """Yield the running trials of these studies that may change, the oldest attempt first."""
    for attempt in sorted(s.attempts, key=lambda attempt: (attempt.created_at, attempt.trial_id)):
        trial = running[attempt.trial_id]
        if trial.study_id in studies and (job := _job(s, learned, trial, attempt)):
            yield job


def _devices_of_others(s: Snapshot, jobs: Sequence[_Job]) -> set[str]:
    """The devices of all attempts that are not those of ``jobs``."""
    keys = {job.attempt.key for job in jobs}
    return {device for attempt in s.attempts if attempt.key not in keys for device in attempt.devices}


def _job(s: Snapshot, learned: Corrections, trial: Trial, attempt: Attempt) -> _Job | None:
    """The running trial as one that may change; None if it may not, or if too little is known about its speed."""
    if not is_training(s, trial, attempt) or not trial.is_kept(attempt) or not attempt.choice.step_seconds:
        return None
    offers = offer_choices(s, trial, learned)
    present = next(
        (choice for choice in (trial.sized.choices if trial.sized else ()) if choice.plan == attempt.plan), None
    )
    to_go = seconds_to_go(s, trial, attempt)
    if present is None or not to_go or len(offers) < 2:
        return None
    others = [choice for choice in offers if choice.plan.world_size != attempt.plan.world_size]
    choices = sorted([present, *others], key=lambda choice: choice.plan.world_size)
    now = counted_seconds(trial, present)
    assert now, "a present plan with predicted seconds"
    shapes = tuple(
        replace(choice.shape, seconds=to_go * seconds / now)
        for choice in choices
        if (seconds := counted_seconds(trial, choice))
    )
    if len(shapes) < len(choices):
        return None
    place = choices.index(present)
    restart = restart_seconds(attempt) + seconds_made_again(s, trial, attempt)
    return _Job(trial, attempt, choices, place, Share(Queued(attempt.key, shapes), place, 1.0, restart))


def _possible(share: Share, ledger: Ledger) -> Share:
    """The job, where shapes that these devices could never hold keep their places, but with too many ranks."""
    shapes = tuple(
        shape if ledger.could_hold(shape) else replace(shape, num_ranks=len(ledger.devices) + 1)
        for shape in share.queued.shapes
    )
    return Share(Queued(share.queued.id, shapes), share.choice, share.left, share.restart_seconds)


def _why(job: _Job, choice: int, num_started: int) -> str:
    plan, now = job.choices[choice].plan, job.attempt.plan
    change = f"{devices_in_words(plan)} instead of {now.world_size}{batch_in_words(job.choices[choice], job.attempt)}"
    if plan.world_size < now.world_size:
        others = "another trial starts" if num_started == 1 else f"{num_started} other trials start"
        return f"the policy elastic divided the devices anew: it continues on {change}, so that {others}"
    shapes = job.share.queued.shapes
    before, after = (shapes[n].seconds or 0.0 for n in (job.present, choice))
    minutes = (before - after - job.share.restart_seconds) / 60
    return f"the policy elastic divided the devices anew: on {change} it ends about {minutes:.0f} min earlier"
