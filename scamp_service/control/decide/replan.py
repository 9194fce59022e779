"""Step 5: gives trials other plans when their share of the devices has changed since they were planned.

A share is the number of devices for each candidate that may run at the same time. A queued trial whose plan takes more
than its share waits for devices that may never be free together, so it gets a narrower plan if that can start now. When
nothing waits and devices are idle, a running trial gets a wider plan, and continues from its last checkpoint, if this
saves more than it costs. If nothing comes of the wider plan, it continues under the one before. A trial that has run
out of memory keeps its plan, because what it needs is known for that plan only, and so does one that was ever lost.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice

from estimators.model import Plan
from placement.model import Cluster, Gang, Queued, Shape
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from scamp_service.control.decide.effects import Effect, MoveAttempt, MoveTrial, Size
from scamp_service.control.decide.size import demand_of
from scamp_service.control.decide.snapshot import Corrections, Snapshot, StudyRules
from scamp_service.control.executor import GangState, Unsized
from scamp_service.lifecycle import AttemptState, Outcome, StudyState, TrialState
from scamp_service.model import Attempt, Sized, Trial

RESTART_SECONDS = 60.0
"""Seconds that it costs to continue in another attempt: ranks end, others start, and the checkpoint is loaded."""
WORTH_SECONDS = 300.0
"""A running trial is interrupted only for a gain of at least so many seconds: predicted seconds are not exact."""


def plan_again(s: Snapshot, learned: Corrections, share: int) -> Iterator[Effect]:
    """Ask for plans for the share that trials have now, and take them where they make use of idle devices."""
    taken = {device for attempt in s.attempts for device in attempt.devices}
    idle = [device.id for device in s.cluster.devices if device.id not in taken | s.closed]
    if not idle:
        return
    if s.in_state(TrialState.WAITING) or s.in_state(TrialState.QUEUED):
        yield from _narrow(s, learned, share, idle)
    elif not any(study.wants_trials for study in s.studies.values()):
        yield from _widen(s, learned, share, idle)


def _narrow(s: Snapshot, learned: Corrections, share: int, idle: list[str]) -> Iterator[Effect]:
    winding_down = {attempt.trial_id for attempt in s.attempts}
    most = max(share, len(idle))

    def is_too_wide(trial: Trial) -> bool:
        if trial.sized is None or trial.num_oom or trial.id in winding_down:
            return False
        return trial.sized.plan.world_size > most and s.studies[trial.study_id].state is StudyState.RUNNING

    for trial in islice(filter(is_too_wide, s.in_state(TrialState.QUEUED)), len(s.cluster.devices)):
        assert trial.sized
        num_ranks = trial.sized.plan.world_size
        sized = yield from _sized_for_share(s, learned, share, trial)
        if sized and sized.plan.world_size < num_ranks and _can_start(s, sized, idle):
            fewer = f"planned again for {devices(sized.plan)} instead of {num_ranks}, to begin now"
            yield MoveTrial(trial, TrialState.QUEUED, {"reason": f"{sized.reason}; {fewer}"}, sized)
            return  # the next one has to see what is left


def _widen(s: Snapshot, learned: Corrections, share: int, idle: list[str]) -> Iterator[Effect]:
    trials = {trial.id: trial for trial in s.trials}
    for attempt in s.attempts:
        trial = trials.get(attempt.trial_id)
        if trial is None or not _trains(s, trial, attempt):
            continue
        if attempt.plan.world_size >= share or trial.num_oom or trial.num_lost:
            continue
        if _seconds_left(s, trial, attempt) < WORTH_SECONDS:
            continue
        sized = yield from _sized_for_share(s, learned, share, trial)
        if sized is None or not _can_start(s, sized, [*idle, *attempt.devices], attempt):
            continue
        if (saved := _saved_seconds(s, trial, attempt, sized)) >= WORTH_SECONDS:
            more = f"{devices(sized.plan)} instead of {attempt.plan.world_size}"
            why = f"{len(idle)} of the devices were idle, and on {more} it ends about {saved / 60:.0f} min earlier"
            yield MoveAttempt(attempt, AttemptState.STOPPING, {"outcome": Outcome.STOPPED, "detail": why})
            return  # the next one has to see what is left


def _trains(s: Snapshot, trial: Trial, attempt: Attempt) -> bool:
    """Whether this is the trial's present attempt, and nothing is wrong with it."""
    if trial.state is not TrialState.RUNNING or trial.attempt != attempt.attempt:
        return False
    gang = s.gangs.get(attempt.key)
    is_alive = gang is not None and gang.state is GangState.ALIVE
    return is_alive and attempt.state is AttemptState.RUNNING and attempt.outcome is None


def wider(s: Snapshot, trial: Trial, attempt: Attempt) -> Sized | None:
    """The plan for which ``attempt`` was stopped; None if it was stopped for another reason, or nobody knows it."""
    sized = s.sized.get(trial.id)
    return sized if isinstance(sized, Sized) and sized.plan.world_size > attempt.plan.world_size else None


def narrower(s: Snapshot, study: StudyRules, trial: Trial, attempt: Attempt) -> Sized | None:
    """The last plan that trained, if that was on fewer devices than this attempt, and did not run out of memory.

    None also for a trial without a loss to spare.
    """
    before = s.former.get(trial.id)
    if before is None or before.outcome is Outcome.OUT_OF_MEMORY or trial.sized is None:
        return None
    if before.plan.world_size >= attempt.plan.world_size or trial.num_lost >= study.max_lost:
        return None
    return replace(
        trial.sized,
        plan=before.plan,
        prediction=before.prediction,
        reason="the plan before the wider one",
        step_seconds=before.predicted_step_seconds,
        step_factor=before.step_factor,
        communication_share=before.predicted_communication_share,
    )


def _sized_for_share(
    s: Snapshot, learned: Corrections, share: int, trial: Trial
) -> Generator[Effect, None, Sized | None]:
    """Return the plan for the present share; if it is not there yet, ask for it and return None."""
    match s.sized.get(trial.id):
        case Sized() as sized if sized.share == share:
            return sized
        case Unsized():
            return None
        case outdated:
            yield Size(trial, demand_of(s, learned, share, trial), renews=outdated is not None)
            return None


def _can_start(s: Snapshot, sized: Sized, among: list[str], instead_of: Attempt | None = None) -> bool:
    """Whether a gang could start on these devices, beside other gangs that are there."""
    usable = [device for device in s.cluster.devices if device.id in among and device.id not in s.closed]
    ledger = Ledger(Cluster(tuple(usable)), s.max_gangs_per_device)
    for attempt in s.attempts:
        here = [device for device in attempt.devices if device in among]
        if here and attempt is not instead_of:
            ledger.restore(Gang(attempt.key, len(here), attempt.mib_per_rank), here)
    return bool(pack([Queued("new", (Shape(*sized.demand),))], ledger).placements)


def _seconds_left(s: Snapshot, trial: Trial, attempt: Attempt) -> float:
    return (s.studies[trial.study_id].steps - trial.step) * _seconds_per_step(s, trial, attempt)


def _seconds_per_step(s: Snapshot, trial: Trial, attempt: Attempt) -> float:
    """Seconds of a step as the study counts them: an epoch has more than one optimizer step."""
    if s.studies[trial.study_id].unit == "step" or attempt.started_at is None:
        return attempt.measured_step_seconds or 0.0
    return (s.now - attempt.started_at) / max(1, trial.step)


def _saved_seconds(s: Snapshot, trial: Trial, attempt: Attempt, sized: Sized) -> float:
    """Seconds that the trial would end earlier: steps since its last checkpoint are made again."""
    if not attempt.predicted_step_seconds or not sized.step_seconds:
        return 0.0
    left = _seconds_left(s, trial, attempt)
    kept = s.checkpoints.get(trial.id)
    again = (trial.step - (kept.step if kept else 0)) * _seconds_per_step(s, trial, attempt)
    ratio = sized.step_seconds / attempt.predicted_step_seconds
    return left - (left + again) * ratio - RESTART_SECONDS


def devices(plan: Plan) -> str:
    """How many devices the plan takes, in words."""
    return "1 device" if plan.world_size == 1 else f"{plan.world_size} devices"
