"""Step 2: follows attempts: outcomes, lost gangs, out-of-memory errors, rungs and teardown; not faults of the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

from estimators.learning import AttemptPhase
from estimators.model import mib_in_words
from scamp_service.control.decide.effects import Effect, Launch, MoveAttempt, MoveTrial, Repeat, StopGang, withdraw
from scamp_service.control.decide.replan import devices_in_words, find_narrower
from scamp_service.control.decide.rules.ending import ended_with
from scamp_service.control.decide.rules.faults import run_later
from scamp_service.control.decide.rules.orders import order_for
from scamp_service.control.decide.rules.watch import why_stalled
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.control.executor import GangState
from scamp_service.control.stopping.rule import Complete, Continue, Exploit, Pause, Stop, due_rungs, next_pause
from scamp_service.lifecycle import IDLE_PAUSED, STUDY_PAUSED, TRIAL_PAUSED, AttemptState, Outcome, TrialState, WaitsFor
from scamp_service.model import NO_CHANGES, Attempt, Sized, Trial, TrialChanges
from scamp_service.study.budget import Budget
from scamp_service.study.one_shot import Part

STALL_WEIGHT = 3
"""An attempt that stalled counts as this many losses: a trial that hangs twice probably hangs always, and slowly."""
LAUNCH_PATIENCE_SECONDS = 120.0
"""An absent gang that has not reported its start is launched again, with the same token, for this long."""


def follow_attempts(s: Snapshot) -> Iterator[Effect]:
    """Act on the outcome, gang and rungs of each open attempt, and tear down attempts that are no longer current."""
    trials = {trial.id: trial for trial in s.trials}
    for attempt in s.attempts:
        trial = trials.get(attempt.trial_id)
        if trial and trial.state is TrialState.RUNNING and trial.attempt == attempt.attempt:
            yield from _follow_current(s, s.studies[trial.study_id], trial, attempt)
        else:
            yield from _tear_down(s, attempt)


def _tear_down(s: Snapshot, attempt: Attempt) -> Iterator[Effect]:
    """Stop an attempt that its trial no longer runs. It ends, and frees its memory, once its ranks are gone."""
    if s.may_hold_memory(attempt):
        if attempt.state is not AttemptState.STOPPING:
            yield MoveAttempt(attempt, AttemptState.STOPPING)
        yield StopGang(attempt.key, "its trial no longer runs this attempt")
    else:
        yield MoveAttempt(attempt, AttemptState.ENDED, attempt.outcome or Outcome.STOPPED)


def _follow_current(s: Snapshot, study: StudyRules, trial: Trial, attempt: Attempt) -> Iterator[Effect]:
    gang = s.gangs.get(attempt.key)
    match attempt.outcome:
        case Outcome.ERROR | Outcome.LOST | Outcome.STALLED if before := find_narrower(s, study, trial, attempt):
            why = _cause(attempt) or "its ranks disappeared"
            reason = (
                f"continues on {devices_in_words(before.plan)} as before, because on {devices_in_words(attempt.plan)} "
                f"it failed: {why}"
            )
            changes = TrialChanges(num_lost=trial.num_lost + 1)
            yield _queue_again(trial, reason, changes, before)
        case Outcome.DONE:
            yield _finish(study, trial)
        case Outcome.OUT_OF_MEMORY:
            yield _heal(study.budget, trial, attempt)
        case Outcome.DIVERGED:
            changes = TrialChanges(value=math.nan)  # the sampler reads it
            yield MoveTrial(trial, TrialState.PRUNED, f"diverged: {attempt.detail}", changes)
        case Outcome.DEPENDS_ON_DIVISION:
            yield _undivide(trial, attempt)
        case Outcome.RESUMES_DIFFERENTLY:
            reason = f"begins anew, now and after every interruption, as it resumes differently: {attempt.detail}"
            yield _queue_again(trial, reason, TrialChanges(resumes=False))
        case Outcome.FAULT:
            yield run_later(s.now, trial, attempt)
        case Outcome.ERROR:
            yield _try_again(study.budget, trial, _cause(attempt))
        case Outcome.STOPPED:
            why = attempt.detail or "its ranks were stopped in order, with the service"
            yield _queue_again(trial, f"will run again from its last checkpoint: {why}")
        case Outcome.LOST:
            yield _retry(study.budget, trial, attempt, attempt.detail or "its ranks disappeared")
        case Outcome.STALLED:
            yield _retry(study.budget, trial, attempt, f"it {attempt.detail}", weight=STALL_WEIGHT)
        case None if not study.progress.is_running:
            yield ended_with(study, trial)
        case None if attempt.state is AttemptState.WITHDRAWN and s.may_hold_memory(attempt):
            yield StopGang(attempt.key, attempt.detail, keep=True)
        case None if attempt.state is AttemptState.WITHDRAWN:  # it was killed, as it took too long
            yield MoveAttempt(attempt, AttemptState.STOPPING, Outcome.STOPPED, attempt.detail)
        case None if study.sharing.paused:
            yield withdraw(attempt, STUDY_PAUSED)
        case None if trial.paused:
            yield withdraw(attempt, TRIAL_PAUSED)
        case None if gang is not None and gang.state is not GangState.ALIVE:
            yield _lose(attempt, gang.detail or "a rank died")
        case None if gang is not None and (why := why_stalled(study.budget, attempt, gang)):
            yield MoveAttempt(attempt, AttemptState.STOPPING, Outcome.STALLED, why)
        case None if why := next(filter(None, map(s.leaving.get, attempt.devices)), ""):
            yield withdraw(attempt, why)
        case None if gang is not None and (why := _why_idle(s, attempt)):
            yield MoveTrial(trial, TrialState.RUNNING, why, TrialChanges(paused=True))
            yield withdraw(attempt, why)
        case None if gang is not None:
            yield from _judge(s, study, trial)
        case None if s.may_hold_memory(attempt):
            return  # its gang is known once all ranks have answered, or are gone
        case None if attempt.state is AttemptState.STARTING and (left := _missing_devices(s, attempt)):
            yield _lose(attempt, f"{left} left the cluster before its ranks were started")
        case None if (
            attempt.state is AttemptState.STARTING and s.absent.get(attempt.key, 0.0) < LAUNCH_PATIENCE_SECONDS
        ):
            yield Launch(order_for(s, trial, attempt))
        case None if attempt.state is AttemptState.STARTING:
            yield _lose(attempt, f"its ranks did not start within {LAUNCH_PATIENCE_SECONDS:.0f} s")
        case None:
            yield _lose(attempt, "all its ranks disappeared")


def _finish(study: StudyRules, trial: Trial) -> Effect:
    """End or pause a trial that has trained as far as its attempt was to go."""
    if trial.value is None:
        advice = "choose a metric that evaluate() returns"
        reason = f"it ended without reporting the objective {study.objectives.leading.metric!r}; {advice}"
        return MoveTrial(trial, TrialState.FAILED, reason)
    if (broken := study.objectives.broken(trial)) is not None:
        metric, value = broken
        reason = (
            f"its objective {metric!r} was {value} at {study.budget.unit} {trial.step}, the last one: "
            "no other trial compares with that; evaluate must return finite numbers"
        )
        return MoveTrial(trial, TrialState.PRUNED, reason, TrialChanges(value=value))
    match study.part_of(trial):
        case Part.SUPERNET:
            trained = f"trained all {study.steps_of(trial)} {study.budget.unit}s"
            reason = f"{trained} as the supernet, with whose weights candidates begin"
            return MoveTrial(trial, TrialState.PRUNED, reason)
        case Part.SCORED:
            reason = f"not trained: scores {trial.value:.4g} with weights of the supernet, trial {trial.parent_number}"
            return MoveTrial(trial, TrialState.PRUNED, reason)
    if (rung := next_pause(study.stopping, trial)) is not None and rung <= trial.step:
        reason = f"paused at {study.budget.unit} {trial.step}, until it is compared with the others there"
        return MoveTrial(trial, TrialState.PAUSED, reason, waits_for=WaitsFor.COMPARISON)
    trained = f"trained all {study.budget.length} {study.budget.unit}s"
    if study.repeats > 1 and not trial.is_repeat:
        count = study.repeats - 1
        return Repeat(trial, count, f"{trained}, and waits for {count} more training{'s' * (count > 1)} by other seeds")
    repeats = f"repeats trial {trial.parent_number} with another seed: " if trial.is_repeat else ""
    return MoveTrial(trial, TrialState.COMPLETED, f"{repeats}{trained}")


def _cause(attempt: Attempt) -> str:
    """The detail of an attempt's outcome without the traceback, which follows an empty line."""
    return attempt.detail.partition("\n\n")[0]


def _why_idle(s: Snapshot, attempt: Attempt) -> str:
    """Why an attempt gives back its devices, which it does not use; empty if it keeps them."""
    rule = s.packing.pauses_idle
    if rule is None or not (idle := rule.idle_seconds(attempt.load)):
        return ""
    return f"its devices were less than {100 * rule.share:g} % busy for {idle / 60:.0f} minutes, {IDLE_PAUSED}"


def _missing_devices(s: Snapshot, attempt: Attempt) -> str:
    """Devices of the attempt that the cluster does not have any more; empty while it is not known what it has."""
    has = {device.id for device in s.cluster.devices}
    return ", ".join(device for device in attempt.devices if device not in has) if has else ""


def _lose(attempt: Attempt, why: str) -> Effect:
    """Record that an attempt was lost, unless its ranks have reported another outcome since the snapshot was read.

    The trial follows in the next cycle, by the outcome that is stored then.
    """
    return MoveAttempt(attempt, AttemptState.STOPPING, Outcome.LOST, why)


def _retry(budget: Budget, trial: Trial, attempt: Attempt, why: str, weight: int = 1) -> Effect:
    """Run the trial again. The attempt counts as ``weight`` losses, of those since the last new checkpoint.

    If none of its ranks has begun to train, it is no loss: neither its workload nor its plan can be the cause.
    """
    if attempt.outcome is Outcome.LOST and attempt.started_at is None:
        return _queue_again(trial, f"will run again, as no rank had begun to train: {why}")
    num_lost = weight + (0 if trial.is_kept(attempt) else trial.num_lost)
    why = f"{why} (this counts as {weight} losses)" if weight > 1 else why
    if num_lost > budget.max_lost:
        losses = f"{num_lost} loss{'es' * (num_lost > 1)} of attempts without a new checkpoint, most recently because"
        reason = f"{losses} {why}; raise budget.max_lost to allow more"
        return MoveTrial(trial, TrialState.FAILED, reason, TrialChanges(num_lost=num_lost))
    reason = f"will run again with its plan ({num_lost} of at most {budget.max_lost} losses): {why}"
    return _queue_again(trial, reason, TrialChanges(num_lost=num_lost))


def _try_again(budget: Budget, trial: Trial, why: str) -> Effect:
    """Run a trial again whose own code has failed, or fail it after more than ``budget.max_failures`` such attempts."""
    num_failures = trial.num_failures + 1
    changes = TrialChanges(num_failures=num_failures)
    if num_failures > budget.max_failures:
        reason = f"failed {num_failures} times, most recently: {why}" if num_failures > 1 else why
        return MoveTrial(trial, TrialState.FAILED, reason, changes)
    count = f"{num_failures} of at most {budget.max_failures} failures"
    reason = f"will run again from its last checkpoint ({count}): {why}"
    return _queue_again(trial, reason, changes)


def _queue_again(trial: Trial, why: str, changes: TrialChanges = NO_CHANGES, sized: Sized | None = None) -> MoveTrial:
    """Queue a trial whose attempt has ended. While it waits, its reasons repeat why this was."""
    all_changes: TrialChanges = {**changes, "requeued_because": why}
    return MoveTrial(trial, TrialState.QUEUED, why, all_changes, sized, WaitsFor.DEVICES)


def _heal(budget: Budget, trial: Trial, attempt: Attempt) -> Effect:
    """Send the trial back for a new plan, which is made from its attempts (``size``).

    Running out of memory means that the prediction was wrong, not that the trial failed. The true peak is above what
    was reserved, and above what the rank held plus its failed request.
    """
    num_oom = trial.num_oom + 1
    if attempt.phase == AttemptPhase.EVALUATION and num_oom <= budget.max_oom:
        reason = (
            f"an evaluation of {attempt.plan.evaluation_micro_batch} samples at a time ran out of memory with "
            f"{attempt.mib_per_rank} MiB per rank; it will evaluate fewer at a time, or reserve more"
        )
        return MoveTrial(trial, TrialState.WAITING, reason, TrialChanges(num_oom=num_oom), waits_for=WaitsFor.NEW_PLAN)
    if num_oom > budget.max_oom:
        failed = f"ran out of memory {num_oom} time{'s' * (num_oom > 1)} ({attempt.detail})"
        reason = f"{failed}; raise budget.max_oom, or make it smaller, for example by a smaller batch"
        return MoveTrial(trial, TrialState.FAILED, reason, TrialChanges(num_oom=num_oom))
    reason = (
        f"ran out of memory with {attempt.mib_per_rank} MiB per rank; "
        f"under this plan it needs more than {mib_in_words(attempt.least_bytes)}, and is planned again with that"
    )
    return MoveTrial(trial, TrialState.WAITING, reason, TrialChanges(num_oom=num_oom), waits_for=WaitsFor.NEW_PLAN)


def _undivide(trial: Trial, attempt: Attempt) -> Effect:
    """Send the trial back for a plan that does not divide a batch: the sizer knows by the attempts of its family."""
    reason = (
        f"begins anew under a plan that does not divide a batch, as the curve depends on the division: {attempt.detail}"
    )
    changes = TrialChanges(judged_step=0)  # what was compared at its rungs is forgotten
    return MoveTrial(trial, TrialState.WAITING, reason, changes, waits_for=WaitsFor.NEW_PLAN)


def _judge(s: Snapshot, study: StudyRules, trial: Trial) -> Iterator[Effect]:
    """Carry out the verdicts of the stopping rule at the rungs that the trial has reached since it was judged last."""
    if trial.step >= study.steps_of(trial):
        return  # it has trained to its end, and its attempt is about to say so
    reported, pause = s.rungs.get(study.id, {}), next_pause(study.stopping, trial)
    for rung in due_rungs(study.stopping, trial):
        if rung == pause:
            return  # its attempt ends here, and then it is judged (``promote``)
        if rung not in reported or trial.number not in reported[rung]:
            continue
        match study.stopping.judge(trial, rung, reported, is_last=False):
            case Continue(reason):
                yield MoveTrial(trial, TrialState.RUNNING, reason, TrialChanges(judged_step=rung))
            case Stop(reason):
                yield MoveTrial(trial, TrialState.PRUNED, reason, TrialChanges(judged_step=rung))
                return
            case Complete(reason):
                yield MoveTrial(trial, TrialState.COMPLETED, reason, TrialChanges(judged_step=rung))
                return
            case Pause() | Exploit():
                raise AssertionError("a rule pauses and copies only where it says that trials pause")
            case verdict:
                assert_never(verdict)
