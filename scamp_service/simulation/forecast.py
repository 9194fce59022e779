"""Forecasts the live queue: when each waiting trial starts, when all is done, and what more devices would change.

The open attempts, the waiting trials and the trials that studies have yet to propose are simulated under the policy of
the service (``placement.simulation.schedule``), each as long as is predicted or was measured. Every trial is taken to
train to its end, so a study that stops trials early ends before its forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from estimators.devices.kind import DeviceKind
from placement.model import Cluster, Gang, Queued, Shape
from placement.packing.ledger import Ledger
from placement.packing.packer import pack
from placement.packing.policy import Blocked, Policy, Wait
from placement.simulation.progress import domains_of
from placement.simulation.schedule import Job, Running, Schedule, ScheduleOptions, schedule
from scamp_service.control.decide.rules.growth import counts_as
from scamp_service.lifecycle import StudyState, TrialState, WaitsFor
from scamp_service.model import Attempt, Study, Trial
from scamp_service.store.store import Store
from scamp_service.store.tallies import own_states
from scamp_service.study.budget import Budget

MOST_JOBS = 2000
"""Waiting trials and trials to come that are simulated; a forecast with more says so."""
ROUNDS = 1000
"""About this many rounds of the policy are simulated, so that a forecast of many trials does not take long either."""


@dataclass(frozen=True, slots=True)
class Load:
    """The work that a forecast simulates, as the database knows it.

    ``queued`` are the gangs about which the policy decides now. ``waits`` are waiting trials about which it does not,
    with what they wait for. ``num_unknown`` trials are left out of the simulation, as nobody knows how long they take,
    and ``num_more`` because there are too many.
    """

    running: tuple[Running, ...]
    jobs: tuple[Job, ...]
    most_running: Mapping[int, int]
    waits: Mapping[int, str]
    queued: tuple[Queued, ...] = ()
    num_unknown: int = 0
    num_more: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The simulated future of the queue. Seconds count from now.

    ``starts`` has by trial id when each queued trial starts, and ``lacking`` what those lack that cannot start now,
    also where nobody knows how long they take.
    """

    makespan_seconds: float
    device_hours: float
    num_trials: int
    starts: Mapping[int, float]
    lacking: Mapping[int, Wait]
    num_never: int = 0
    device_hours_by_kind: Mapping[str, float] = field(default_factory=dict)


def recorded_cluster(store: Store) -> Cluster:
    """The devices that the controller has recorded, without those on which nothing may be placed now."""
    recorded = store.cluster.recorded()
    devices = recorded[0].devices if recorded else ()
    return Cluster(tuple(row.device for row in devices if not row.closed))


def load_of(store: Store, *, now: float) -> Load:
    """The work of the live studies: open attempts, waiting trials, and trials that are not proposed yet."""
    live = list(store.studies.live())
    budgets = {study.id: _budget(study) for study in live}
    kinds = {study.id: study.kinds for study in live}
    trials = [trial for trial in store.trials.live() if trial.study_id in budgets]
    attempts = {attempt.trial_id: attempt for attempt in store.attempts.open()}
    seconds = {trial.id: _seconds(budgets[trial.study_id], trial, attempts.get(trial.id), now) for trial in trials}
    typical = _typical_shapes(trials, budgets, seconds)
    for trial in trials:
        if seconds[trial.id] is None and trial.study_id in typical:
            seconds[trial.id] = median(shape.seconds or 0.0 for shape in typical[trial.study_id])
    num_to_come = {study_id: _num_to_come(store, study_id, budget) for study_id, budget in budgets.items()}
    jobs = [
        *_waiting_jobs(trials, attempts, seconds, typical),
        *(
            Job(f"{study_id} to come {n}", (shapes[n % len(shapes)],), 0.0, study_id)
            for study_id, num in num_to_come.items()
            if (shapes := typical.get(study_id))
            for n in range(num)
        ),
    ]
    num_untimed = sum(seconds[trial.id] is None for trial in trials if _is_sized(trial, attempts))
    return Load(
        running=tuple(_running(trials, attempts, seconds)),
        jobs=tuple(replace(job, kinds=kinds[job.study]) for job in jobs[:MOST_JOBS]),
        most_running={
            study_id: budget.max_concurrent for study_id, budget in budgets.items() if budget.max_concurrent is not None
        },
        waits=dict(_waits(trials, attempts, now)),
        queued=tuple(replace(gang, kinds=kinds[gang.study]) for gang in _queued(trials, attempts, seconds, now)),
        num_unknown=num_untimed + sum(num for study_id, num in num_to_come.items() if study_id not in typical),
        num_more=max(0, len(jobs) - MOST_JOBS),
    )


def _typical_shapes(
    trials: Sequence[Trial], budgets: Mapping[int, Budget], seconds: Mapping[int, float | None]
) -> dict[int, list[Shape]]:
    """Shapes of the trials of each study that have a plan, with the seconds of a whole training, if these are known."""
    typical: dict[int, list[Shape]] = {}
    for trial in trials:
        if trial.sized is None:
            continue
        whole_seconds = _whole_seconds(budgets[trial.study_id], trial, seconds[trial.id])
        if whole_seconds is not None:
            typical.setdefault(trial.study_id, []).append(replace(trial.sized.demand, seconds=whole_seconds))
    return typical


def _is_running(trial: Trial, attempts: Mapping[int, Attempt]) -> bool:
    return trial.state is TrialState.RUNNING and trial.id in attempts


def _is_sized(trial: Trial, attempts: Mapping[int, Attempt]) -> bool:
    """Whether the trial runs, or waits for devices with a plan."""
    return _is_running(trial, attempts) or (trial.state is TrialState.QUEUED and trial.sized is not None)


def _running(
    trials: Sequence[Trial], attempts: Mapping[int, Attempt], seconds: Mapping[int, float | None]
) -> Iterator[Running]:
    """Yield the gangs that hold devices; those of trials that have ended are about to leave."""
    for trial in trials:
        if _is_running(trial, attempts):
            attempt = attempts[trial.id]
            yield Running(_id(trial), attempt.devices, attempt.mib_per_rank, seconds[trial.id] or 0.0, trial.study_id)
    trial_ids = {trial.id for trial in trials}
    for attempt in attempts.values():
        if attempt.trial_id not in trial_ids:
            yield Running(f"attempt {attempt.key}", attempt.devices, attempt.mib_per_rank, 0.0)


def _waiting_jobs(
    trials: Sequence[Trial],
    attempts: Mapping[int, Attempt],
    seconds: Mapping[int, float | None],
    typical: Mapping[int, Sequence[Shape]],
) -> Iterator[Job]:
    """Yield the trials that wait for devices, and those without a plan as typical ones of their study."""
    for trial in trials:
        if _is_running(trial, attempts):
            continue
        if trial.state is TrialState.QUEUED and trial.sized is not None:
            if (left := seconds[trial.id]) is not None:
                yield Job(_id(trial), (replace(trial.sized.demand, seconds=left),), 0.0, trial.study_id)
        elif trial.state is TrialState.WAITING and trial.study_id in typical:
            shapes = typical[trial.study_id]
            yield Job(_id(trial), (shapes[trial.number % len(shapes)],), 0.0, trial.study_id)


def _waits(trials: Sequence[Trial], attempts: Mapping[int, Attempt], now: float) -> Iterator[tuple[int, str]]:
    """Yield the trials that the policy does not decide about, with what each waits for."""
    for trial in trials:
        if not _is_sized(trial, attempts):
            yield trial.id, "verdict" if trial.state is TrialState.PAUSED else "plan"
        elif trial.state is TrialState.QUEUED:
            if trial.retry_at > now:
                yield trial.id, "retry"
            elif trial.waits_for is WaitsFor.QUOTA:
                yield trial.id, Blocked.QUOTA.value
            elif trial.waits_for is WaitsFor.MAX_CONCURRENT:
                yield trial.id, "limit"
            elif trial.waits_for is WaitsFor.PREDICTIONS:
                yield trial.id, "predictions"
            elif trial.waits_for is WaitsFor.RESUME:
                yield trial.id, "resume"


def _queued(
    trials: Sequence[Trial], attempts: Mapping[int, Attempt], seconds: Mapping[int, float | None], now: float
) -> Iterator[Queued]:
    """Yield the gangs that wait for devices alone, with the passes after which devices are kept for one."""
    for trial in trials:
        is_for_devices = trial.state is TrialState.QUEUED and trial.waits_for is WaitsFor.DEVICES
        if is_for_devices and trial.sized is not None and trial.id not in attempts and trial.retry_at <= now:
            shape = replace(trial.sized.demand, seconds=seconds[trial.id])
            yield Queued(_id(trial), (shape,), trial.passed_over, arrival=trial.id, study=trial.study_id)


def forecast(
    load: Load,
    cluster: Cluster,
    *,
    kinds: Mapping[str, DeviceKind] | None = None,
    policy: Policy = pack,
    max_gangs_per_device: int = 4,
    cores: float = math.inf,
) -> Forecast:
    """Simulate the load on a cluster. ``kinds`` say how fast devices are that the load was not planned for."""
    speeds, base = _speeds(cluster, kinds or {})
    running = [gang for gang in load.running if set(gang.devices) <= {device.id for device in cluster.devices}]
    jobs = [_scaled(job, base) for job in load.jobs]
    running = [Running(gang.id, gang.devices, gang.mib_per_rank, gang.seconds * base, gang.study) for gang in running]
    device_seconds = sum(_device_seconds(job) for job in jobs) + sum(
        len(gang.devices) * gang.seconds for gang in running
    )
    rounds = device_seconds / max(1, len(cluster.devices)) / ROUNDS if len(jobs) > ROUNDS else 0.0
    result = schedule(
        jobs,
        cluster,
        policy,
        ScheduleOptions(
            max_gangs_per_device=max_gangs_per_device,
            domains=domains_of(cluster, cores, speeds),
            round_seconds=rounds,
            most_nominated=64 + 2 * len(cluster.devices),
            most_running=load.most_running,
        ),
        running=running,
    )
    now = _lacking_now(load, cluster, policy, max_gangs_per_device)
    outlook = _read(result, cluster)
    return replace(outlook, lacking={**outlook.lacking, **now})


def _lacking_now(load: Load, cluster: Cluster, policy: Policy, max_gangs_per_device: int) -> dict[int, Wait]:
    """Return what the queued trials lack by one decision of the policy, which needs their passes but no seconds."""
    ledger = Ledger(cluster, max_gangs_per_device)
    for gang in load.running:
        ledger.restore(Gang(gang.id, len(gang.devices), gang.mib_per_rank), gang.devices)
    left = {gang.id: gang.seconds for gang in load.running if gang.seconds}
    return {int(gang): wait for gang, wait in policy(load.queued, ledger, left).waits.items()}


def _read(result: Schedule, cluster: Cluster) -> Forecast:
    starts = {int(run.id): run.start for run in result.runs if run.id.isdigit()}
    lacking = {int(job): wait for job, wait in (result.never | result.first_waits).items() if job.isdigit()}
    kinds = {device.id: device.kind for device in cluster.devices}
    hours: dict[str, float] = {}
    for run in result.runs:
        for device in run.devices:
            hours[kinds[device]] = hours.get(kinds[device], 0.0) + (run.end - run.start) / 3600
    return Forecast(
        result.makespan,
        result.device_seconds / 3600,
        len(result.runs),
        starts,
        lacking,
        len(result.never),
        dict(sorted(hours.items())),
    )


def _speeds(cluster: Cluster, kinds: Mapping[str, DeviceKind]) -> tuple[dict[str, float], float]:
    """Speed of each kind relative to the fastest, and by how much the seconds of the load change on the fastest.

    The load was planned for the first device's kind. A kind whose speed nobody knows counts as that one.
    """
    if not cluster.devices:
        return {}, 1.0
    planned = cluster.devices[0].kind
    per_flop = {name: kind.rates["matmul"].per_flop for name, kind in kinds.items()}
    if planned not in per_flop:
        return {}, 1.0
    fastest = min(per_flop[device.kind] for device in cluster.devices if device.kind in per_flop)
    return {name: fastest / value for name, value in per_flop.items()}, fastest / per_flop[planned]


def _scaled(job: Job, base: float) -> Job:
    shapes = (replace(shape, seconds=(shape.seconds or 0.0) * base, communication_share=None) for shape in job.shapes)
    return replace(job, shapes=tuple(shapes))


def _device_seconds(job: Job) -> float:
    return job.shapes[0].device_seconds or 0.0


def _id(trial: Trial) -> str:
    return str(trial.id)


def _seconds(budget: Budget, trial: Trial, attempt: Attempt | None, now: float) -> float | None:
    """Seconds that the trial has left to train; None where nobody knows how long a step takes."""
    seconds_per_step = _step_seconds(budget, trial, attempt, now)
    return None if seconds_per_step is None else max(1, budget.length - trial.step) * seconds_per_step


def _whole_seconds(budget: Budget, trial: Trial, left: float | None) -> float | None:
    """Seconds of the whole training, from those that are left."""
    steps = max(1, budget.length)
    return None if left is None else left * steps / max(1, steps - trial.step)


def _step_seconds(budget: Budget, trial: Trial, attempt: Attempt | None, now: float) -> float | None:
    """Seconds of a step as the study counts them: an epoch has more than one optimizer step."""
    if budget.epochs is not None:
        if attempt is None or attempt.started_at is None or trial.step <= 0:
            return None
        return (now - attempt.started_at) / trial.step
    measured = attempt.measured_step_seconds if attempt is not None else None
    seconds = measured or trial.measured_step_seconds or trial.predicted_step_seconds
    return seconds if seconds is None or trial.plan is None else seconds / counts_as(trial, trial.plan)


def _num_to_come(store: Store, study_id: int, budget: Budget) -> int:
    """Trials that a running study will still propose, as far as its budget says."""
    if store.studies.get(study_id).state is not StudyState.RUNNING:
        return 0
    return max(0, budget.trials - sum(own_states(store.counts.tallies(study_id)).values()))


def _budget(study: Study) -> Budget:
    return Budget.model_validate(study.spec["budget"])
