"""Step 4, its end: stops running trials of lower priority where a queued trial of higher priority needs their devices.

They write a checkpoint, and continue from there when there is room. One that takes too long loses the steps since its
last checkpoint. So only attempts that have recorded one are stopped, as few as possible: of the lowest priority first,
and of these the ones that have made the fewest steps since then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from placement.model import Cluster
from scamp_service.control.decide.effects import MoveAttempt, withdraw
from scamp_service.control.decide.rules.admission import in_start_order
from scamp_service.control.decide.rules.gangs import fits_now, ledger_of, queued_of, seconds_left
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.control.executor import GangState
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Attempt, Trial


def preempt(s: Snapshot, learned: Corrections) -> Iterator[MoveAttempt]:
    """Stop the attempts that keep the first trial of the queue from starting, if all have a lower priority.

    Nothing is stopped while another attempt winds down: what it leaves free may be enough.
    """
    running = {trial.id: trial for trial in s.in_state(TrialState.RUNNING)}
    if any(winds_down(attempt, running) for attempt in s.attempts):
        return
    first = next((trial for trial in in_start_order(s) if fits_now(s, trial)), None)
    if first is None:
        return
    priority = s.studies[first.study_id].sharing.priority
    lower = [
        attempt
        for attempt in s.attempts
        if s.studies[running[attempt.trial_id].study_id].sharing.priority < priority
        and _may_stop(s, running[attempt.trial_id], attempt)
    ]
    lower.sort(key=lambda attempt: _cost(s, running[attempt.trial_id], attempt))
    for attempt in _in_the_way(s, learned, first, lower):
        why = f"trial {first.number} of study {first.study_id}, of priority {priority}, needs its devices"
        yield withdraw(attempt, why)


def winds_down(attempt: Attempt, running: Mapping[int, Trial]) -> bool:
    """Whether the attempt is about to end; ``running`` are the running trials by id."""
    trial = running.get(attempt.trial_id)
    is_current = trial is not None and trial.attempt == attempt.attempt
    is_ending = attempt.state in (AttemptState.WITHDRAWN, AttemptState.STOPPING)
    return not is_current or attempt.outcome is not None or is_ending


def _may_stop(s: Snapshot, trial: Trial, attempt: Attempt) -> bool:
    gang = s.gangs.get(attempt.key)
    is_alive = gang is not None and gang.state is GangState.ALIVE
    return is_alive and attempt.state is AttemptState.RUNNING and trial.is_kept(attempt)


def _cost(s: Snapshot, trial: Trial, attempt: Attempt) -> tuple[int, int, int]:
    """Sorts attempts: those that are stopped first have the smallest cost."""
    return s.studies[trial.study_id].sharing.priority, trial.step - attempt.checkpoint_step, -trial.id


def _in_the_way(s: Snapshot, learned: Corrections, first: Trial, lower: Sequence[Attempt]) -> Sequence[Attempt]:
    """The attempts among ``lower`` after whose end the policy starts the trial; none if it does now, or not even then.

    Some policies give a trial devices without others, or a number of them, so its plan alone does not say what it
    needs.
    """
    queued, left = queued_of(s, first, learned), seconds_left(s)
    policy = s.packing.policy
    usable = Cluster(tuple(device for device in s.cluster.devices if device.id not in s.closed))
    ledger = ledger_of(usable, s.attempts, s.packing.max_gangs_per_device)
    if policy([queued], ledger, left).placements:
        return ()
    for attempt in lower:
        ledger.release(attempt.key)
        for placement in policy([queued], ledger, left).placements:
            devices = placement.devices
            return [
                attempt
                for attempt in lower
                if not ledger.holds(attempt.key) and not set(attempt.devices).isdisjoint(devices)
            ]
    return ()
