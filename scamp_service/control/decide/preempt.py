"""Step 4, its end: makes room for the first trial of the queue.

Running trials of lower priority are stopped if it needs their devices. Others move to free devices if it can then start
where they were. They write a checkpoint, and continue from there when there is room. One that takes too long loses the
steps since its last checkpoint. So only attempts that have recorded one are stopped, as few as possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from placement.packing.ledger import Ledger
from placement.packing.round import soonest
from scamp_service.control.decide.effects import MoveAttempt, withdraw
from scamp_service.control.decide.rules.admission import in_start_order, used_up_studies
from scamp_service.control.decide.rules.gangs import fits_now, queued_of, seconds_left, sized_of, usable_ledger
from scamp_service.control.decide.rules.restarts import WORTH_RESTARTS, restart_seconds, seconds_made_again
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.control.executor import GangState
from scamp_service.lifecycle import AttemptState, TrialState
from scamp_service.model import Attempt, Trial

MOST_TRIED = 16
"""A decision tries to move at most so many attempts: each costs a round of the policy."""


def make_room(s: Snapshot, learned: Corrections) -> Iterator[MoveAttempt]:
    """Stop the attempts that keep the first trial of the queue from starting: those of lower priority, or others that
    can continue elsewhere at once.

    Nothing is stopped while another attempt winds down: what it leaves free may be enough.
    """
    running = {trial.id: trial for trial in s.in_state(TrialState.RUNNING)}
    if any(winds_down(attempt, running) for attempt in s.attempts):
        return
    first = next((trial for trial in in_start_order(s) if fits_now(s, trial)), None)
    if first is None:
        return
    of = f"trial {first.number} of study {first.study_id}"
    if stopped := _preempted(s, learned, running, first):
        why = f"{of}, of priority {s.studies[first.study_id].sharing.priority}, needs its devices"
    else:
        stopped = _moved(s, learned, running, first)
        why = f"it can continue on other devices, and {of} can then start on these"
    yield from (withdraw(attempt, why) for attempt in stopped)


def _preempted(s: Snapshot, learned: Corrections, running: Mapping[int, Trial], first: Trial) -> Sequence[Attempt]:
    """The attempts to stop if all have a lower priority: those of the lowest first, and of these the ones that have
    made the fewest steps since their last checkpoint."""
    priority = s.studies[first.study_id].sharing.priority
    lower = [
        attempt
        for attempt in s.attempts
        if s.studies[running[attempt.trial_id].study_id].sharing.priority < priority
        and _may_stop(s, running[attempt.trial_id], attempt)
    ]
    lower.sort(key=lambda attempt: _cost(s, running[attempt.trial_id], attempt))
    return _in_the_way(s, learned, first, lower)


def _moved(s: Snapshot, learned: Corrections, running: Mapping[int, Trial], first: Trial) -> Sequence[Attempt]:
    """The attempts to move: they continue at once on other devices, and the first trial starts where they were.

    It waits beside free devices that are on too many nodes, or have too little memory each. No attempt moves to
    devices that more gangs share, and none of higher priority moves. The wait must be worth the seconds of the
    restarts, counted on each device, and an attempt that has hardly begun stays.
    """
    ledger, demand = usable_ledger(s), sized_of(first).demand
    able = usable_ledger(s, s.studies[first.study_id].kinds)
    start_in, _ = soonest(able, demand.num_ranks, demand.mib_per_rank, seconds_left(s))
    worth = start_in * demand.num_ranks / WORTH_RESTARTS
    used_up, priority = used_up_studies(s), s.studies[first.study_id].sharing.priority
    costs: dict[str, float] = {}
    for attempt in s.attempts:
        trial = running[attempt.trial_id]
        seconds = restart_seconds(attempt) + seconds_made_again(s, trial, attempt)
        cost = seconds * len(attempt.devices)
        if (
            cost <= worth
            and seconds * WORTH_RESTARTS <= s.now - (attempt.started_at or s.now)
            and _may_stop(s, trial, attempt)
            and s.studies[trial.study_id].sharing.priority <= priority
            and s.most_devices(trial.study_id) is None
            and trial.study_id not in used_up
            and not attempt.pack
        ):
            costs[attempt.key] = cost
    movable = [attempt for attempt in s.attempts if attempt.key in costs]
    on_nodes = Counter(ledger.device(device).node for device in able.with_room(demand.mib_per_rank))

    def order(attempt: Attempt) -> tuple[int, int, float, int]:
        """Sorts attempts: first those on the nodes with most room, and on the devices with the fewest gangs."""
        here = [device for device in attempt.devices if ledger.has(device)]
        room = max((on_nodes[ledger.device(device).node] for device in here), default=0)
        num_gangs = max((len(ledger.gangs_on(device)) for device in here), default=0)
        return -room, num_gangs, costs[attempt.key], attempt.trial_id

    moved = _in_the_way(s, learned, first, sorted(movable, key=order)[:MOST_TRIED])
    if not moved or sum(costs[attempt.key] for attempt in moved) > worth:
        return ()
    if len(moved) > 1 and demand.num_ranks == 1:
        return ()  # no devices are kept for it until the last of them has ended
    others = [running[attempt.trial_id] for attempt in moved]
    trials = sorted([first, *others], key=lambda trial: trial.id)
    return moved if _all_start(s, learned, ledger, trials, moved) else ()


def _all_start(
    s: Snapshot, learned: Corrections, ledger: Ledger, trials: Sequence[Trial], moved: Sequence[Attempt]
) -> bool:
    """Whether the trials start together once these attempts have ended, none on devices that more gangs share."""

    def most_gangs(devices: Sequence[str]) -> int:
        return max(len(ledger.gangs_on(device)) for device in devices)

    before = {attempt.trial_id: most_gangs(attempt.devices) for attempt in moved}
    ledger.release(*(attempt.key for attempt in moved))
    trial_of = {(gang := queued_of(s, trial, learned)).id: (trial, gang) for trial in trials}
    placements = s.packing.policy([gang for _, gang in trial_of.values()], ledger, seconds_left(s)).placements
    for placement in placements:
        ledger.place(placement.gang, placement.devices)
    return len(placements) == len(trials) and all(
        most_gangs(placement.devices) <= before.get(trial_of[placement.gang.id][0].id, s.packing.max_gangs_per_device)
        for placement in placements
    )


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


def _in_the_way(s: Snapshot, learned: Corrections, first: Trial, may_end: Sequence[Attempt]) -> Sequence[Attempt]:
    """The attempts that may end which keep the trial from starting; none if it starts now, or not even then.

    Some policies give a trial devices without others, or a number of them, so its plan alone does not say what it
    needs.
    """
    queued, left = queued_of(s, first, learned), seconds_left(s)
    policy, ledger = s.packing.policy, usable_ledger(s)
    if policy([queued], ledger, left).placements:
        return ()
    for attempt in may_end:
        ledger.release(attempt.key)
        for placement in policy([queued], ledger, left).placements:
            devices = placement.devices
            return [
                attempt
                for attempt in may_end
                if not ledger.holds(attempt.key) and not set(attempt.devices).isdisjoint(devices)
            ]
    return ()
