"""Step 4: places the gangs of queued trials on devices, or says why they wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from operator import ge
from statistics import median

from estimators.learning import Learned
from estimators.model import MIB
from placement.model import NONE_READY, Cluster, Gang, Offer, Placement, Queued, Ready, Shape
from placement.packing.ledger import Ledger
from placement.packing.policy import Decision
from placement.packing.projects import NO_QUOTA, Claim, StartOrder, Usage, admit
from placement.packing.turns import PASSES_BEFORE_RESERVATION, passed_over
from scamp_service.control.decide.effects import Begin, Effect, MoveTrial
from scamp_service.control.decide.rules.ending import ended_with
from scamp_service.control.decide.rules.faults import must_wait
from scamp_service.control.decide.rules.growth import counted_seconds, counts_as, step_seconds, worth_offering
from scamp_service.control.decide.rules.orders import order_for
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.control.stopping.rule import next_pause
from scamp_service.lifecycle import AttemptState, TrialState, WaitsFor
from scamp_service.model import Attempt, Choice, Sized, Trial, TrialChanges

PASSES_BEFORE_DRAINING = 2 * PASSES_BEFORE_RESERVATION
"""After so many passes of a trial, nothing starts any more on devices that are kept for it by a guess of seconds."""
WAITS_FOR_RESUME = "the study is paused: waits until somebody resumes it"
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
    behind = _behind(s, ready)
    admission = admitted(s, ready, behind)
    yield from _over_quota(s, ready, admission.over_quota)
    yield from _over_limit(s, ready, admission)
    trials = {trial.id: trial for trial in ready}
    yield from _placed(s, [trials[trial_id] for trial_id in admission.order], learned, behind)


def _behind(s: Snapshot, ready: Iterable[Trial]) -> Mapping[int, int]:
    """Trial id → how far its priority is below the highest one, which is how many of its passes do not count."""
    priorities = {trial.id: s.studies[trial.study_id].sharing.priority for trial in ready}
    highest = max(priorities.values(), default=0)
    return {trial_id: highest - priority for trial_id, priority in priorities.items()}


def _counted(trial: Trial, behind: Mapping[int, int]) -> int:
    """The passes of a trial that count."""
    return max(0, trial.passed_over - behind[trial.id])


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
        elif trial.study_id in incomplete and not trial.attempt:
            yield from _waits(trial, WaitsFor.PREDICTIONS, WAITS_FOR_FRONT)
        elif any_learned and (newer := _learned_since(s, trial, learned)):
            yield _to_plan_again(trial, f"will be planned again with {newer}")
        elif missing := missing_in(_sized(trial).demand):
            yield _to_plan_again(trial, f"will be planned again: {missing}")
        elif trial.id not in winding_down and not must_wait(s.now, trial):
            ready.append(trial)
    ready, to_come = _by_devices(s, ready)
    for trial, missing in to_come:
        reason = f"{missing}; Ray's autoscaler is asked for more, up to {s.packing.autoscale_devices} devices in all"
        yield from _waits(trial, WaitsFor.DEVICES, reason)
    return ready


def _placed(
    s: Snapshot, in_order: Sequence[Trial], learned: Corrections, behind: Mapping[int, int]
) -> Iterator[Effect]:
    """Begin the trials whose gangs the policy places, and say why the others wait."""
    passes = {trial.id: _counted(trial, behind) for trial in in_order}
    guesses = _guessed_step_seconds(s, max(passes.values(), default=0))
    queue = [queued_of(s, trial, learned, guesses.get(trial.study_id), passes[trial.id]) for trial in in_order]
    by_gang = {gang.id: trial for gang, trial in zip(queue, in_order, strict=True)}
    usable = Cluster(tuple(device for device in s.cluster.devices if device.id not in s.closed))
    ledger = ledger_of(usable, s.attempts, s.packing.max_gangs_per_device, s.ready)
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
        passes = min(most, trial.passed_over + counts.get(gang_id, counted[gang_id]) - counted[gang_id])
        yield from _waits(trial, WaitsFor.DEVICES, wait.reason, passes)


def _waits(trial: Trial, waits_for: WaitsFor, reason: str, passes: int | None = None) -> Iterator[MoveTrial]:
    """Say what a queued trial waits for, and that it was passed over ``passes`` times, if something of it is new."""
    passes = trial.passed_over if passes is None else passes
    if trial.requeued_because:
        reason = f"{trial.requeued_because}. Now: {reason}"
    if (waits_for, reason, passes) != (trial.waits_for, trial.reason, trial.passed_over):
        yield MoveTrial(trial, TrialState.QUEUED, reason, TrialChanges(passed_over=passes), waits_for=waits_for)


def _to_plan_again(trial: Trial, reason: str) -> MoveTrial:
    return MoveTrial(trial, TrialState.WAITING, reason, waits_for=WaitsFor.NEW_PLAN)


def _by_devices(s: Snapshot, queued: Sequence[Trial]) -> tuple[list[Trial], list[tuple[Trial, str]]]:
    """The trials that fit on the present devices, and the others, which fit once an autoscaler has added some."""
    if not s.packing.autoscale_devices:
        return list(queued), []
    missing_in = cache(partial(missing_devices, s.cluster.offer))
    missing = [(trial, missing_in(_sized(trial).demand)) for trial in queued]
    return [trial for trial, why in missing if not why], [(trial, why) for trial, why in missing if why]


def fits_now(s: Snapshot, trial: Trial) -> bool:
    """Whether the present devices could hold the plan of a queued trial if they were free."""
    return not missing_devices(s.cluster.offer, _sized(trial).demand)


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
    attempt = Attempt(
        trial_id=trial.id,
        attempt=trial.attempt + 1,
        token="",
        state=AttemptState.STARTING,
        choice=offer_choices(s, trial, learned)[placement.choice],
        devices=placement.devices,
        device_kinds=tuple(sorted({device.kind for device in s.cluster.devices if device.id in placement.devices})),
        placement_reason=placement.reason,
        created_at=s.now,
    )
    return Begin(attempt, order_for(s, trial, attempt))


def _learned_since(s: Snapshot, trial: Trial, learned: Corrections) -> Learned | None:
    """The correction of the trial's family and layout, if it is at least 1 MiB more than the trial was planned with."""
    of_family = learned.get(s.studies[trial.study_id].family(trial))
    if not of_family:
        return None
    sized = _sized(trial)
    newer = of_family.get(sized.plan.layout)
    planned_with = max(sized.learned_bytes, sized.prediction.extra_bytes)
    return newer if newer and newer.extra_bytes >= planned_with + MIB else None


def missing_devices(offer: Offer, demand: Shape) -> str:
    """Why such a gang never fits on these devices; empty if it does when they are free."""
    num_ranks, mib = demand.num_ranks, demand.mib_per_rank
    if demand.mibs:
        mibs_offered = sorted((offered_mib for _, offered_mib, number in offer for _ in range(number)), reverse=True)
        largest_first = sorted(demand.mibs, reverse=True)
        if len(mibs_offered) >= num_ranks and all(map(ge, mibs_offered, largest_first)):
            return ""
        mibs = ", ".join(map(str, largest_first))
        return f"its plan needs {num_ranks} devices of {mibs} MiB, which the cluster does not have now"
    able = sum(number for _, offered_mib, number in offer if offered_mib >= mib)
    if able >= num_ranks:
        return ""
    devices = "device" if able == 1 else "devices"
    return f"its plan needs {num_ranks} × {mib} MiB, and the cluster now has {able} such {devices}"


def admitted(s: Snapshot, queued: Iterable[Trial], behind: Mapping[int, int]) -> StartOrder:
    """Queued trials, which come by age, in the order to place them, and those that a quota keeps waiting.

    ``behind`` says how many of their passes do not count (``_behind``).

    No study gets more than its ``max_concurrent``: the others of it are in neither.
    """
    held = _usage(s)
    room = {
        study.id: study.budget.max_concurrent - held.of_study[study.id]
        for study in s.studies.values()
        if study.budget.max_concurrent is not None
    }
    claims: list[Claim] = []
    for trial in queued:
        if trial.study_id in room:
            room[trial.study_id] -= 1
            if room[trial.study_id] < 0:
                continue
        study = s.studies[trial.study_id]
        num_ranks = _sized(trial).demand.num_ranks
        sharing = study.sharing
        claims.append(Claim(trial.id, study.id, num_ranks, sharing.project, sharing.priority, _counted(trial, behind)))
    return admit(claims, held, s.packing.projects)


def _usage(s: Snapshot) -> Usage:
    held, study_of = Usage(), {trial.id: s.studies[trial.study_id] for trial in s.trials}
    mib_seconds: defaultdict[str, float] = defaultdict(float, s.mib_seconds)
    for attempt in s.attempts:
        if (study := study_of.get(attempt.trial_id)) is not None:
            held.devices[study.sharing.project] += len(attempt.devices)
            seconds = max(0.0, s.now - attempt.created_at)
            mib_seconds[study.sharing.project] += len(attempt.devices) * attempt.mib_per_rank * seconds
    for trial in s.in_state(TrialState.RUNNING):
        held.trials[study_of[trial.id].sharing.project] += 1
        held.of_study[trial.study_id] += 1
    held.mib_hours = {project: seconds / 3600 for project, seconds in mib_seconds.items()}
    return held


def used_up_projects(s: Snapshot) -> frozenset[str]:
    """Projects whose MiB·hours are used up: a trial of theirs that was stopped would not start again."""
    if all(project.mib_hours is None for project in s.packing.projects.values()):
        return frozenset()
    held = _usage(s).mib_hours
    return frozenset(
        name
        for name, project in s.packing.projects.items()
        if project.mib_hours is not None and held.get(name, 0.0) >= project.mib_hours
    )


def _over_quota(s: Snapshot, queued: Iterable[Trial], over_quota: Mapping[int, str]) -> Iterator[MoveTrial]:
    """Say why trials wait for a quota; one that is larger than the whole quota of its project is INFEASIBLE."""
    for trial in queued:
        reason = over_quota.get(trial.id)
        if reason is None:
            continue
        study = s.studies[trial.study_id]
        quota = s.packing.projects[study.sharing.project].devices
        if quota is not None and _sized(trial).demand.num_ranks > quota:
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


def ledger_of(
    cluster: Cluster, attempts: Iterable[Attempt], max_gangs_per_device: int, ready: Ready = NONE_READY
) -> Ledger:
    """A ledger with the reservations of ``attempts``: all that have not ended, whatever the state of their trials."""
    ledger = Ledger(cluster, max_gangs_per_device, ready)
    for attempt in attempts:
        gang = Gang(attempt.key, len(attempt.devices), attempt.mib_per_rank, attempt.mibs)
        ledger.restore(gang, attempt.devices)
    return ledger


def _sized(trial: Trial) -> Sized:
    assert trial.sized is not None, f"trial {trial.id} is queued without a plan"
    return trial.sized


def offer_choices(s: Snapshot, trial: Trial, learned: Corrections) -> tuple[Choice, ...]:
    """The plans that the trial may begin with now.

    One that ran out of memory keeps its plan, because what it needs is known for that plan only, and so does one that
    was lost, or whose project has a quota of devices: it was admitted with that many. A plan whose layout was found to
    need more memory since is left out, but for the trial's own. So are those whose batch is not the best one for their
    number of ranks.
    """
    sized = _sized(trial)
    project = s.packing.projects.get(s.studies[trial.study_id].sharing.project, NO_QUOTA)
    if not sized.choices or trial.num_oom or trial.num_lost or project.devices is not None:
        return (sized.choice,)
    of_family = learned.get(s.studies[trial.study_id].family(trial), {})

    def is_known(choice: Choice) -> bool:
        newer = of_family.get(choice.plan.layout)
        return newer is None or newer.extra_bytes < choice.prediction.extra_bytes + MIB

    return worth_offering(trial, (choice for choice in sized.choices if choice.plan == sized.plan or is_known(choice)))


def in_start_order(s: Snapshot) -> Sequence[Trial]:
    """The queued trials that may start, in the order to place them."""
    queued = {
        trial.id: trial
        for trial in s.in_state(TrialState.QUEUED)
        if s.studies[trial.study_id].progress.is_running
        and not s.studies[trial.study_id].sharing.paused
        and not must_wait(s.now, trial)
        and trial.waits_for is not WaitsFor.PREDICTIONS
    }
    return [queued[trial_id] for trial_id in admitted(s, queued.values(), _behind(s, queued.values())).order]


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
    return _queued(trial.id, trial.attempt + 1, trial.study_id, shapes, left, passes, study.code, name)


@lru_cache(maxsize=2**15)
def _queued(
    trial_id: int,
    attempt: int,
    study_id: int,
    shapes: tuple[Shape, ...],
    steps: int,
    passes: int,
    code: str | None,
    name: str,
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
    )


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
