"""Step 5: gives idle devices to running trials, which continue from their last checkpoints on more ranks, or on another
kind of devices.

That is done when nothing waits and no study will propose more trials, for the trial that would run longest, if it saves
more than it costs: the seconds of a restart, as long as its own start took, and of what is trained again. The wider
plan may train a larger batch where the candidate has ``largest_batch`` (``growth``). If nothing comes of it, the trial
continues under the plan before. A trial that has run out of memory keeps its plan, because what it needs is known for
that plan only, and so do one that was ever lost, and one whose project has a quota of devices: it was admitted with as
many as it has. So does one whose project has used up its MiB·hours: it would not start again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from estimators.model import Plan
from placement.model import Cluster, Device, Gang, plural
from placement.packing.ledger import Ledger
from scamp_service.control.decide.effects import Effect, MoveTrial, withdraw
from scamp_service.control.decide.rules.admission import used_up_studies
from scamp_service.control.decide.rules.growth import counts_as, worth_offering
from scamp_service.control.decide.rules.restarts import (
    WORTH_RESTARTS,
    restart_seconds,
    seconds_made_again,
    seconds_to_go,
)
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.control.executor import GangState
from scamp_service.lifecycle import AttemptState, Outcome, TrialState
from scamp_service.model import Attempt, Choice, Sized, Trial

WORTH_SHARE = 0.1
"""A running trial is interrupted only if it saves this share of what is left: predicted seconds are not exact."""


def widen_running(s: Snapshot, left_out: Container[int] = ()) -> Iterator[Effect]:
    """Stop the running trial that gains from idle devices, to continue on more of them; not of studies ``left_out``."""
    taken = {device for attempt in s.attempts for device in attempt.devices}
    idle = [device.id for device in s.cluster.devices if device.id not in taken | s.closed]
    if not idle or s.in_state(TrialState.WAITING) or s.in_state(TrialState.QUEUED):
        return
    if any(study.wants_trials for study in s.studies.values()):
        return
    trials, used_up = {trial.id: trial for trial in s.trials}, used_up_studies(s)
    running = [
        (trial, attempt)
        for attempt in s.attempts
        if (trial := trials.get(attempt.trial_id))
        and trial.study_id not in left_out
        and trial.study_id not in used_up
        and is_training(s, trial, attempt)
    ]
    for trial, attempt in sorted(running, key=lambda pair: -seconds_to_go(s, *pair)):
        if (choice := _best(s, trial, attempt, idle)) is not None:
            saved = _saved_seconds(s, trial, attempt, choice)
            more = devices_instead(choice, attempt)
            more += batch_in_words(choice, attempt)
            why = f"{len(idle)} of the devices were idle, and on {more} it ends about {saved / 60:.0f} min earlier"
            yield MoveTrial(trial, TrialState.RUNNING, why, sized=_keep_choice(trial, choice))
            yield withdraw(attempt, why)
            return  # the next one has to see what is left


def _best(s: Snapshot, trial: Trial, attempt: Attempt, idle: Sequence[str]) -> Choice | None:
    """The choice with which it ends first, if that is worth a restart and can begin now."""
    is_limited = s.most_devices(trial.study_id) is not None
    if trial.num_oom or trial.num_lost or trial.sized is None or is_limited:
        return None
    choices = worth_offering(trial, trial.sized.choices)
    others = [choice for choice in choices if _is_wider(choice, attempt.choice) or choice.kind != attempt.choice.kind]
    may_use = s.cluster.of_kinds(s.studies[trial.study_id].kinds).devices
    among = [device for device in may_use if device.id in {*idle, *attempt.devices}]
    able = [choice for choice in others if _can_start(s, choice, among, attempt)]
    best = max(able, key=lambda choice: _saved_seconds(s, trial, attempt, choice), default=None)
    if best is None:
        return None
    least = max(WORTH_SHARE * seconds_to_go(s, trial, attempt), WORTH_RESTARTS * restart_seconds(attempt))
    return best if _saved_seconds(s, trial, attempt, best) >= least else None


def _keep_choice(trial: Trial, choice: Choice) -> Sized:
    """The trial's plan when it continues: nothing narrower nor slower, for which it would not have been stopped."""
    assert trial.sized is not None
    wide = tuple(other for other in trial.sized.choices if other == choice or _is_wider(other, choice))
    return replace(trial.sized.taking(choice), choices=wide)


def _is_wider(choice: Choice, other: Choice) -> bool:
    return choice.kind == other.kind and choice.plan.world_size > other.plan.world_size


def is_training(s: Snapshot, trial: Trial, attempt: Attempt) -> bool:
    """Whether this is the trial's present attempt, and nothing is wrong with it."""
    if trial.state is not TrialState.RUNNING or trial.attempt != attempt.attempt:
        return False
    gang = s.gangs.get(attempt.key)
    is_alive = gang is not None and gang.state is GangState.ALIVE
    return is_alive and attempt.state is AttemptState.RUNNING and attempt.outcome is None


def find_narrower(s: Snapshot, study: StudyRules, trial: Trial, attempt: Attempt) -> Sized | None:
    """The last plan that trained, if that was on fewer devices than this attempt.

    Returns None if there is none, the trial ever ran out of memory, or it has no loss to spare.
    """
    before = s.former.get(trial.id)
    if before is None or before.outcome is Outcome.OUT_OF_MEMORY or trial.num_oom or trial.sized is None:
        return None
    if before.plan.world_size >= attempt.plan.world_size or trial.num_lost >= study.budget.max_lost:
        return None
    return replace(trial.sized.taking(before.choice), reason="the plan before the wider one")


def _can_start(s: Snapshot, choice: Choice, among: Sequence[Device], instead_of: Attempt) -> bool:
    """Whether a gang could start on these devices, next to other gangs that are there."""
    usable = [device for device in among if device.id not in s.closed and choice.kind in ("", device.kind)]
    usable_ids = {device.id for device in usable}
    ledger = Ledger(Cluster(tuple(usable)), s.packing.max_gangs_per_device)
    for attempt in s.attempts:
        here = [device for device in attempt.devices if device in usable_ids]
        if here and attempt is not instead_of:
            mibs = tuple(attempt.mib_on(device) for device in here)
            ledger.restore(Gang(attempt.key, len(here), max(mibs), mibs), here)
    return ledger.find_for(choice.shape) is not None


def _saved_seconds(s: Snapshot, trial: Trial, attempt: Attempt, choice: Choice) -> float:
    """Seconds that the trial would end earlier."""
    if not attempt.choice.step_seconds or not choice.step_seconds:
        return 0.0
    left = seconds_to_go(s, trial, attempt)
    lost_seconds = seconds_made_again(s, trial, attempt)
    gain = counts_as(trial, choice.plan) / counts_as(trial, attempt.plan)
    ratio = choice.step_seconds / attempt.choice.step_seconds / gain
    return left - (left + lost_seconds) * ratio - restart_seconds(attempt)


def batch_in_words(choice: Choice, attempt: Attempt) -> str:
    """Words for a batch that changes, with a space; empty if it does not."""
    now, then = attempt.plan.batch, choice.plan.batch
    return "" if now == then else f" with a batch of {then} instead of {now} samples"


def devices_instead(choice: Choice, attempt: Attempt) -> str:
    """How many devices the choice takes instead of those of the attempt, in words, with their kinds if these differ."""
    num_now, num_then, kinds_now = attempt.plan.world_size, choice.plan.world_size, attempt.device_kinds
    if choice.kind in ("", *kinds_now):
        return f"{devices_in_words(choice.plan)} instead of {num_now}"
    return f"{num_then} × {choice.kind} instead of {num_now} × {' and '.join(kinds_now)}"


def devices_in_words(plan: Plan) -> str:
    """How many devices the plan takes, in words."""
    return plural(plan.world_size, "device")
