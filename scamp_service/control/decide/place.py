"""Step 4: places the gangs of queued trials on devices, or says why they wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import median

from estimators.learning import Learned
from estimators.model import MIB
from placement.model import Placement, Queued, plural
from placement.packing.policy import Decision
from placement.packing.projects import StartOrder
from placement.packing.turns import PASSES_BEFORE_RESERVATION, passed_over
from scamp_service.control.decide.effects import Begin, Effect, MoveTrial
from scamp_service.control.decide.rules.admission import admit_queued, counted_passes, passes_behind
from scamp_service.control.decide.rules.ending import ended_with
from scamp_service.control.decide.rules.faults import must_wait
from scamp_service.control.decide.rules.gangs import (
    missing_devices,
    offer_choices,
    queued_of,
    seconds_left,
    sized_of,
    usable_ledger,
)
from scamp_service.control.decide.rules.growth import counts_as
from scamp_service.control.decide.rules.orders import order_for
from scamp_service.control.decide.rules.packs import Joined, join_packs, shared_mib
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.lifecycle import IDLE_PAUSED, STUDY_PAUSED, TRIAL_PAUSED, AttemptState, TrialState, WaitsFor
from scamp_service.model import Attempt, Choice, Trial, TrialChanges

PASSES_BEFORE_DRAINING = 2 * PASSES_BEFORE_RESERVATION
"""After so many passes of a trial, nothing starts any more on devices that are kept for it by a guess of seconds."""
UNTIL_RESUMED = "waits until somebody resumes it"
WAITS_FOR_RESUME = f"the study is paused: {UNTIL_RESUMED}"
IS_PAUSED = f"{TRIAL_PAUSED}: {UNTIL_RESUMED}"
_PAUSES = (STUDY_PAUSED, TRIAL_PAUSED, IDLE_PAUSED)
WAITS_FOR_PACK = "joins the process that another trial of its study begins"
WAITS_FOR_FRONT = (
    "waits until every candidate is predicted: all objectives are, so only candidates on the Pareto front are trained"
)


def place_queued(s: Snapshot, learned: Corrections) -> Iterator[Effect]:
    """Begin each queued trial whose gang fits, and record why the others wait.

    Trials of stopped studies are cancelled. A trial goes back to WAITING for a new plan when its family has since
    learned that its layout needs more memory, or when the cluster has lost devices that its plan needs. After a fault
    of the host it keeps its reason until ``retry_at``. A trial that another one dominates is never begun, where all
    objectives are predicted and this is therefore certain; and none is begun there before all of them are predicted.
    """
    ready = yield from _ready_to_place(s, learned)
    if not ready:
        return
    behind = passes_behind(s, ready)
    admission = admit_queued(s, ready, behind)
    yield from _over_quota(s, ready, admission.over_quota)
    yield from _over_limit(s, ready, admission)
    trials = {trial.id: trial for trial in ready}
    yield from _placed(s, [trials[trial_id] for trial_id in admission.order], learned, behind)


def _ready_to_place(s: Snapshot, learned: Corrections) -> Generator[Effect, None, list[Trial]]:
    """Return the queued trials that may start on the present devices, and yield what becomes of the others."""
    ready: list[Trial] = []
    # Two attempts of one trial must not use its checkpoints at the same time.
    winding_down = {attempt.trial_id for attempt in s.attempts}
    missing_in = cache(partial(missing_devices, s.largest_offer))  # thousands may wait with equal demands
    any_learned, incomplete = any(learned.values()), _with_incomplete_front(s)
    for trial in s.in_state(TrialState.QUEUED):
        if not s.studies[trial.study_id].progress.is_running:
            yield ended_with(s.studies[trial.study_id], trial)
            continue
        if not s.cluster.devices:
            continue
        if why := _dominated(s, trial):
            yield MoveTrial(trial, TrialState.PRUNED, why)
        elif s.studies[trial.study_id].sharing.paused:
            yield from _waits(trial, WaitsFor.RESUME, WAITS_FOR_RESUME)
        elif trial.paused:
            yield from _waits(trial, WaitsFor.RESUME, IS_PAUSED)
        elif trial.study_id in incomplete and not trial.attempt:
            yield from _waits(trial, WaitsFor.PREDICTIONS, WAITS_FOR_FRONT)
        elif any_learned and (newer := _learned_since(s, trial, learned)):
            yield _to_plan_again(trial, f"will be planned again with {newer}")
        elif missing := missing_in(sized_of(trial).demand, s.studies[trial.study_id].kinds):
            yield _to_plan_again(trial, f"will be planned again: {missing}")
        elif trial.id not in winding_down and not must_wait(s.now, trial):
            ready.append(trial)
    ready, to_come = _by_devices(s, ready)
    most = plural(s.packing.autoscale_devices, "device")
    for trial, missing in to_come:
        reason = f"{missing}; Ray's autoscaler is asked for more, up to {most} in all"
        yield from _waits(trial, WaitsFor.DEVICES, reason)
    return ready


def _placed(
    s: Snapshot, in_order: Sequence[Trial], learned: Corrections, behind: Mapping[int, int]
) -> Iterator[Effect]:
    """Begin the trials that join others, and those whose gangs the policy places; say why the others wait."""
    ledger = usable_ledger(s)
    joined = join_packs(s, in_order, ledger, learned)
    for trial in in_order:
        if (pack := joined.get(trial.id)) is not None:
            yield _join(s, trial, pack)
        elif trial.id in joined:
            yield from _waits(trial, WaitsFor.DEVICES, WAITS_FOR_PACK)
    in_order = [trial for trial in in_order if trial.id not in joined]
    passes = {trial.id: counted_passes(trial, behind) for trial in in_order}
    guesses = _guessed_step_seconds(s, max(passes.values(), default=0))
    queue = [queued_of(s, trial, learned, guesses.get(trial.study_id), passes[trial.id]) for trial in in_order]
    by_gang = {gang.id: trial for gang, trial in zip(queue, in_order, strict=True)}
    decision = s.packing.policy(queue, ledger, seconds_left(s))
    for placement in decision.placements:
        ledger.place(placement.gang, placement.devices)  # asserts that nothing is over-subscribed
        yield _begin(s, by_gang[placement.gang.id], placement, learned)
    yield from _not_placed(queue, decision, by_gang, behind)


def _guessed_step_seconds(s: Snapshot, passes: int) -> Mapping[int, float]:
    """Study → median seconds of a step of its trials, as measured, for those without a prediction.

    They are guessed while devices are kept for a trial that was passed over too often: trials that would end before it
    can start may then use these devices. As guesses may be wrong and delay it, this ends when it has been passed over
    ``PASSES_BEFORE_DRAINING`` times. ``passes`` are the most of all trials.
    """
    if not PASSES_BEFORE_RESERVATION <= passes < PASSES_BEFORE_DRAINING:
        return {}
    measured: defaultdict[int, list[float]] = defaultdict(list)
    for trial in s.trials:
        if trial.measured_step_seconds and trial.plan and s.studies[trial.study_id].budget.unit == "step":
            measured[trial.study_id].append(trial.measured_step_seconds / counts_as(trial, trial.plan))
    return {study: median(seconds) for study, seconds in measured.items()}


def _not_placed(
    queue: Sequence[Queued], decision: Decision, by_gang: Mapping[str, Trial], behind: Mapping[int, int]
) -> Iterator[MoveTrial]:
    """Say why each of these gangs waits, and how often later ones have passed it over."""
    counted = {queued.id: queued.passed_over for queued in queue}
    started = {placement.gang.id for placement in decision.placements}
    counts = passed_over(queue, started) if started else {}
    for gang_id, wait in decision.waits.items():
        trial = by_gang[gang_id]
        # No decision depends on more passes than these, and each new number is a write for every trial that waits.
        most = PASSES_BEFORE_DRAINING + behind[trial.id]
        new_passes = counts.get(gang_id, counted[gang_id]) - counted[gang_id]
        passes = min(most, trial.passed_over + new_passes)
        yield from _waits(trial, WaitsFor.DEVICES, wait.reason, passes)


def _waits(trial: Trial, waits_for: WaitsFor, reason: str, passes: int | None = None) -> Iterator[MoveTrial]:
    """Say what a queued trial waits for, and that it was passed over ``passes`` times, if something of it is new."""
    passes = trial.passed_over if passes is None else passes
    if trial.requeued_because:
        is_said = waits_for is WaitsFor.RESUME and trial.requeued_because.endswith(_PAUSES)
        reason = f"{trial.requeued_because}. Now: {UNTIL_RESUMED if is_said else reason}"
    if (waits_for, reason, passes) != (trial.waits_for, trial.reason, trial.passed_over):
        yield MoveTrial(trial, TrialState.QUEUED, reason, TrialChanges(passed_over=passes), waits_for=waits_for)


def _to_plan_again(trial: Trial, reason: str) -> MoveTrial:
    return MoveTrial(trial, TrialState.WAITING, reason, waits_for=WaitsFor.NEW_PLAN)


def _by_devices(s: Snapshot, queued: Sequence[Trial]) -> tuple[list[Trial], list[tuple[Trial, str]]]:
    """The trials that fit on the present devices, and the others, which fit once an autoscaler has added some."""
    if not s.packing.autoscale_devices:
        return list(queued), []
    missing_in = cache(partial(missing_devices, s.cluster.offer))
    missing = [(trial, missing_in(sized_of(trial).demand, s.studies[trial.study_id].kinds)) for trial in queued]
    return [trial for trial, why in missing if not why], [(trial, why) for trial, why in missing if why]


def _with_incomplete_front(s: Snapshot) -> set[int]:
    """Studies whose trials wait because candidates are still to come, or to be predicted, that may dominate them."""
    unknown = {trial.study_id for trial in s.in_state(TrialState.WAITING) if not trial.attempt}
    return {
        study.id
        for study in s.studies.values()
        if study.search.launches_front and (study.wants_trials or study.id in unknown)
    }


def _dominated(s: Snapshot, trial: Trial) -> str:
    """Why the trial cannot be on the Pareto front; empty if it can, or if that is not known before it is trained."""
    front, objectives = s.fronts.get(trial.study_id), s.studies[trial.study_id].objectives
    if not front or trial.attempt or (trial_values := objectives.values_of(trial)) is None:
        return ""
    for number, values in front.items():
        if number != trial.number and objectives.dominates(values, trial_values):
            return (
                f"not trained: trial {number} has ({objectives.shown(values)}), and this one has no better value in "
                f"any objective: ({objectives.shown(trial_values)})"
            )
    return ""


def _begin(s: Snapshot, trial: Trial, placement: Placement, learned: Corrections) -> Begin:
    choice = offer_choices(s, trial, learned)[placement.choice]
    attempt = _new_attempt(s, trial, choice, placement.devices, placement.reason)
    if (shared := shared_mib(s, trial, choice)) is not None:
        attempt = replace(attempt, pack=attempt.key, shared_mib=shared)
    return Begin(attempt, order_for(s, trial, attempt))


def _join(s: Snapshot, trial: Trial, joined: Joined) -> Begin:
    attempt = _new_attempt(s, trial, joined.choice, (joined.device,), joined.reason)
    attempt = replace(attempt, pack=joined.pack, shared_mib=joined.shared_mib)
    return Begin(attempt, order_for(s, trial, attempt))


def _new_attempt(s: Snapshot, trial: Trial, choice: Choice, devices: tuple[str, ...], reason: str) -> Attempt:
    return Attempt(
        trial_id=trial.id,
        attempt=trial.attempt + 1,
        token="",
        state=AttemptState.STARTING,
        choice=choice,
        devices=devices,
        device_kinds=tuple(sorted({device.kind for device in s.cluster.devices if device.id in devices})),
        placement_reason=reason,
        created_at=s.now,
    )


def _learned_since(s: Snapshot, trial: Trial, learned: Corrections) -> Learned | None:
    """The correction of the trial's family and layout, if it is at least 1 MiB more than the trial was planned with."""
    of_family = learned.get(s.studies[trial.study_id].family(trial))
    if not of_family:
        return None
    sized = sized_of(trial)
    newer = of_family.get(sized.plan.layout)
    planned_with = max(sized.learned_bytes, sized.prediction.extra_bytes)
    return newer if newer and newer.extra_bytes >= planned_with + MIB else None


def _over_quota(s: Snapshot, queued: Iterable[Trial], over_quota: Mapping[int, str]) -> Iterator[MoveTrial]:
    """Say why trials wait for a quota; one that is larger than a whole quota is INFEASIBLE."""
    for trial in queued:
        reason = over_quota.get(trial.id)
        if reason is None:
            continue
        study = s.studies[trial.study_id]
        quota = s.most_devices(trial.study_id)
        if quota is not None and sized_of(trial).demand.num_ranks > quota:
            changes = TrialChanges(family=study.family(trial), offer=None)
            yield MoveTrial(trial, TrialState.INFEASIBLE, reason, changes)
        else:
            yield from _waits(trial, WaitsFor.QUOTA, reason)


def _over_limit(s: Snapshot, queued: Iterable[Trial], admission: StartOrder) -> Iterator[MoveTrial]:
    """Say why the trials wait that are not admitted because as many of their study run as may."""
    admitted_ids = {*admission.order, *admission.over_quota}
    for trial in queued:
        if trial.id not in admitted_ids:
            most = s.studies[trial.study_id].budget.max_concurrent
            reason = f"waits for the end of another trial of its study: at most {most} run at once (max_concurrent)"
            yield from _waits(trial, WaitsFor.MAX_CONCURRENT, reason)
