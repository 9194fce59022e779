"""What must be done next, as a pure function of what is: find → **decide** → apply.

Every rule looks at the present state only, never at how it came about, so a decision may be lost, repeated or made by
another controller after a crash: the next tick decides again from the database. What is left out: proposing values
(``search``), sizing (``sizing``) and doing (``controller``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from estimators.learning import NOTHING, Learned, Run, learn, need_after_out_of_memory
from estimators.model import MIB, Plan
from placement.model import Cluster, Gang, Placement, Wait
from placement.packing.ledger import Ledger
from placement.packing.packer import Queued, pack, passed_over
from scamp_service.control.executor import GangState, GangStatus, Order, Sized, Unsized
from scamp_service.control.families import family
from scamp_service.control.stopping import judge
from scamp_service.lifecycle import AttemptState, Outcome, StudyState, TrialState
from scamp_service.model import Attempt, Json, Trial

LAUNCH_PATIENCE_SECONDS = 120.0
"""A gang that has not reported after this long is lost; before, an absent one is launched again (same token)."""


@dataclass(frozen=True, slots=True)
class StudyRules:
    """A live study as the decisions need it. ``num_trials`` counts every trial ever created."""

    id: int
    state: StudyState
    workload: str
    code: str | None
    metric: str
    maximize: bool
    seed: int
    max_trials: int
    steps: int
    report_every: int
    rungs: tuple[int, ...]
    reduction_factor: int
    max_concurrent: int | None
    max_lost: int
    max_oom: int
    num_trials: int
    searched: frozenset[str] = frozenset()  # the names of its search space
    exhausted: bool = False  # the sampler has nothing more to propose
    broken: str = ""  # why no candidate of this study can ever run

    @property
    def wants_trials(self) -> bool:
        return self.state is StudyState.RUNNING and not self.exhausted and self.num_trials < self.max_trials

    def family(self, trial: Trial) -> str:
        """Of the trials that its memory can be learned from."""
        return family(self.workload, self.code, trial.params, self.searched)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known at one moment, read in this order: ``gangs``, then ``attempts``, then ``trials``.

    A rank commits its metrics, then its outcome, then disappears; so an absent gang without an outcome is truly lost,
    and a trial whose attempt is done has its last value.
    """

    now: float
    studies: Mapping[int, StudyRules]
    trials: Sequence[Trial]
    attempts: Sequence[Attempt]
    gangs: Mapping[str, GangStatus]
    cluster: Cluster
    sized: Mapping[int, Sized | Unsized] = field(default_factory=dict)
    rungs: Mapping[int, Mapping[int, Mapping[int, float]]] = field(default_factory=dict)  # study → step → trial → value
    checkpoints: Mapping[int, int] = field(default_factory=dict)  # trial → last committed step
    past: Mapping[str, Sequence[Run]] = field(default_factory=dict)  # family → runs of its newest trials
    passed_over: Mapping[str, int] = field(default_factory=dict)  # gang that waits → how often others went before
    max_gangs_per_device: int = 4


@dataclass(frozen=True, slots=True)
class MoveTrial:
    trial: Trial
    to: TrialState
    changes: Json


@dataclass(frozen=True, slots=True)
class MoveAttempt:
    attempt: Attempt
    to: AttemptState
    changes: Json


@dataclass(frozen=True, slots=True)
class Begin:
    """Commit the attempt, then launch it. The controller gives it its token."""

    trial: Trial
    plan: Plan
    placement: Placement
    device_kinds: tuple[str, ...]
    order: Order


@dataclass(frozen=True, slots=True)
class Launch:
    order: Order


@dataclass(frozen=True, slots=True)
class StopGang:
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Size:
    trial: Trial
    learned: Learned


@dataclass(frozen=True, slots=True)
class Propose:
    study_id: int
    first_number: int
    count: int


@dataclass(frozen=True, slots=True)
class FinishStudy:
    study_id: int
    to: StudyState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """How often each waiting gang has been passed over so far; forgotten in a crash, when its count begins anew."""

    counts: Mapping[str, int]


Effect = MoveTrial | MoveAttempt | Begin | Launch | StopGang | Size | Propose | FinishStudy | PassedOver


def decide(snapshot: Snapshot) -> list[Effect]:
    """One cycle, in six numbered steps; the effects are applied in this order."""
    learned = _learned(snapshot)
    effects: list[Effect] = []
    effects += _fence_strangers(snapshot)  # 1. gangs that the database does not know
    effects += _follow_attempts(snapshot)  # 2. outcomes, losses, rungs, teardown
    effects += _size_waiting(snapshot, learned)  # 3. a plan for every candidate, or why there is none
    effects += _place_queued(snapshot, learned)  # 4. gangs onto devices
    effects += _propose(snapshot)  # 5. new candidates
    effects += _finish_studies(snapshot)  # 6. studies that have ended
    return effects


# --- 1, 2: what runs ----------------------------------------------------------------------------------------------


def _fence_strangers(s: Snapshot) -> Iterator[Effect]:
    known = {attempt.key for attempt in s.attempts}
    for key in s.gangs:
        if key not in known:
            yield StopGang(key, "no open attempt has this gang")


def _follow_attempts(s: Snapshot) -> Iterator[Effect]:
    trials = {trial.id: trial for trial in s.trials}
    for attempt in s.attempts:
        trial = trials.get(attempt.trial_id)
        if trial and trial.state is TrialState.RUNNING and trial.attempt == attempt.attempt:
            yield from _follow_current(s, s.studies[trial.study_id], trial, attempt)
        else:
            yield from _tear_down(s, attempt)


def _tear_down(s: Snapshot, attempt: Attempt) -> Iterator[Effect]:
    """The trial no longer runs this attempt: hold its MiB until its ranks are gone, then end it."""
    if attempt.key in s.gangs:
        if attempt.state is not AttemptState.STOPPING:
            yield MoveAttempt(attempt, AttemptState.STOPPING, {})
        yield StopGang(attempt.key, "its trial no longer runs this attempt")
    else:
        outcome = attempt.outcome or Outcome.STOPPED
        yield MoveAttempt(attempt, AttemptState.ENDED, {"outcome": outcome})


def _follow_current(s: Snapshot, study: StudyRules, trial: Trial, attempt: Attempt) -> Iterator[Effect]:
    gang = s.gangs.get(attempt.key)
    match attempt.outcome:
        case Outcome.DONE if trial.value is None:
            reason = f"it ended without reporting the objective {study.metric!r}; name a metric that evaluate() returns"
            yield MoveTrial(trial, TrialState.FAILED, {"reason": reason})
        case Outcome.DONE:
            yield MoveTrial(trial, TrialState.COMPLETED, {"reason": f"trained all {study.steps} steps"})
        case Outcome.OUT_OF_MEMORY:
            yield _heal(study, trial, attempt)
        case Outcome.ERROR:
            yield MoveTrial(trial, TrialState.FAILED, {"reason": attempt.detail})
        case Outcome.STOPPED | Outcome.LOST:
            yield _retry(study, trial, attempt.detail or "its ranks stopped by themselves")
        case None if study.state is not StudyState.RUNNING:
            yield MoveTrial(trial, TrialState.CANCELLED, {"reason": "the study was stopped"})
        case None if gang is not None and gang.state is not GangState.ALIVE:
            yield _retry(study, trial, gang.detail or "a rank died")
        case None if gang is not None:
            yield from _judge(s, study, trial)
        case None if attempt.state is AttemptState.STARTING and s.now < attempt.created_at + LAUNCH_PATIENCE_SECONDS:
            yield Launch(
                _order(
                    s,
                    study,
                    trial,
                    attempt.attempt,
                    attempt.token,
                    Plan.from_json(attempt.plan),
                    attempt.devices,
                    attempt.mib_per_rank,
                )
            )
        case None:
            yield _retry(study, trial, "all its ranks were lost")


def _retry(study: StudyRules, trial: Trial, why: str) -> Effect:
    num_lost = trial.num_lost + 1
    if num_lost > study.max_lost:
        reason = f"lost {num_lost} times, the last time because {why}; raise budget.max_lost to go on"
        return MoveTrial(trial, TrialState.FAILED, {"reason": reason, "num_lost": num_lost})
    reason = f"to be run again (loss {num_lost} of at most {study.max_lost}): {why}"
    return MoveTrial(trial, TrialState.QUEUED, {"reason": reason, "num_lost": num_lost})


def _heal(study: StudyRules, trial: Trial, attempt: Attempt) -> Effect:
    """Out of memory is a wrong prediction, not a failure: correct it by what was measured, and plan again.

    The true peak is above what was reserved, and above what the rank held plus what it asked for.
    """
    num_oom = trial.num_oom + 1
    extra_bytes = need_after_out_of_memory(attempt.traced_bytes, attempt.reserved_bytes, attempt.measured_bytes)
    if num_oom > study.max_oom:
        reason = f"out of memory {num_oom} times ({attempt.detail}); raise budget.max_oom or lower the batch"
        return MoveTrial(trial, TrialState.FAILED, {"reason": reason, "num_oom": num_oom})
    reason = (
        f"out of memory with {attempt.mib_per_rank} MiB; predictions for it are raised by "
        f"{extra_bytes / MIB:.1f} MiB and it is planned again"
    )
    changes = {"reason": reason, "num_oom": num_oom, "extra_bytes": extra_bytes}
    return MoveTrial(trial, TrialState.WAITING, changes)


def _judge(s: Snapshot, study: StudyRules, trial: Trial) -> Iterator[Effect]:
    for rung in study.rungs:
        if not trial.judged_step < rung <= trial.step:
            continue
        peers = s.rungs.get(study.id, {}).get(rung, {})
        if trial.id not in peers:
            continue
        verdict = judge(peers, trial.id, rung, maximize=study.maximize, reduction_factor=study.reduction_factor)
        if verdict.stop:
            yield MoveTrial(trial, TrialState.PRUNED, {"reason": verdict.reason, "judged_step": rung})
            return
        yield MoveTrial(trial, TrialState.RUNNING, {"reason": verdict.reason, "judged_step": rung})


# --- 3, 4: what waits ---------------------------------------------------------------------------------------------


def _learned(s: Snapshot) -> Mapping[str, Learned]:
    kinds = {device.kind for device in s.cluster.devices}
    return {name: learn(runs, kinds) for name, runs in s.past.items()}


def _size_waiting(s: Snapshot, learned: Mapping[str, Learned]) -> Iterator[Effect]:
    for trial in s.trials:
        if trial.state is not TrialState.WAITING:
            continue
        study = s.studies[trial.study_id]
        if study.state is not StudyState.RUNNING:
            yield MoveTrial(trial, TrialState.CANCELLED, {"reason": "the study was stopped"})
            continue
        match s.sized.get(trial.id):
            case Sized() as sized:
                yield MoveTrial(
                    trial,
                    TrialState.QUEUED,
                    {
                        "structure": sized.structure,
                        "plan": sized.plan.to_json(),
                        "plan_reason": sized.reason,
                        "predicted_bytes": sized.predicted_bytes,
                        "extra_bytes": sized.extra_bytes,
                        "bias_bytes": sized.bias_bytes,
                        "learned_bytes": sized.learned_bytes,
                        "family": study.family(trial),
                        "reserved_mib": sized.reserved_mib,
                        "reason": sized.reason,
                    },
                )
            case Unsized(infeasible=True) as unsized:
                yield MoveTrial(
                    trial, TrialState.INFEASIBLE, {"reason": unsized.reason, "structure": unsized.structure}
                )
            case Unsized() as unsized:
                yield MoveTrial(trial, TrialState.FAILED, {"reason": unsized.reason})
            case None if s.cluster.devices:
                yield Size(trial, learned.get(study.family(trial), NOTHING))


def _place_queued(s: Snapshot, learned: Mapping[str, Learned]) -> Iterator[Effect]:
    queued: list[Trial] = []
    winding_down = {attempt.trial_id for attempt in s.attempts}  # two attempts of one trial never share its checkpoints
    for trial in s.trials:
        if trial.state is not TrialState.QUEUED:
            continue
        if s.studies[trial.study_id].state is not StudyState.RUNNING:
            yield MoveTrial(trial, TrialState.CANCELLED, {"reason": "the study was stopped"})
        elif s.cluster.devices and (lesson := _lesson(s, trial, learned)):
            yield MoveTrial(trial, TrialState.WAITING, {"reason": f"to be planned again with {lesson}"})
        elif trial.id not in winding_down:
            queued.append(trial)
    if not queued or not s.cluster.devices:
        return
    by_gang = {_gang(trial).id: trial for trial in _fair_order(s, queued)}
    ledger = ledger_of(s.cluster, s.attempts, s.max_gangs_per_device)
    queue = [Queued(_gang(trial), s.passed_over.get(gang, 0), arrival=trial.id) for gang, trial in by_gang.items()]
    placements, waits = pack(queue, ledger)
    yield PassedOver(passed_over(queue, placements))
    for placement in placements:
        trial = by_gang[placement.gang.id]
        study = s.studies[trial.study_id]
        plan = _plan(trial)
        order = _order(s, study, trial, trial.attempt + 1, "", plan, placement.devices, placement.gang.mib_per_rank)
        kinds = {device.kind for device in s.cluster.devices if device.id in placement.devices}
        yield Begin(trial, plan, placement, tuple(sorted(kinds)), order)
    for wait in waits:
        yield from _explain(by_gang[wait.gang.id], wait)


def _lesson(s: Snapshot, trial: Trial, learned: Mapping[str, Learned]) -> Learned | None:
    """What its family has learned since it was planned, where that is worth a new plan."""
    lesson = learned.get(s.studies[trial.study_id].family(trial), NOTHING)
    return lesson if lesson.extra_bytes >= max(trial.learned_bytes, trial.extra_bytes) + MIB else None


def _explain(trial: Trial, wait: Wait) -> Iterator[Effect]:
    if trial.reason != wait.reason:
        yield MoveTrial(trial, TrialState.QUEUED, {"reason": wait.reason})


def _fair_order(s: Snapshot, queued: Iterable[Trial]) -> list[Trial]:
    """Studies take turns, the one that runs least first; within a study the oldest trial first."""
    running: dict[int, int] = {}
    for trial in s.trials:
        if trial.state is TrialState.RUNNING:
            running[trial.study_id] = running.get(trial.study_id, 0) + 1
    turns: list[tuple[int, int, Trial]] = []
    for trial in sorted(queued, key=lambda trial: trial.id):
        turn = running.get(trial.study_id, 0)
        limit = s.studies[trial.study_id].max_concurrent
        if limit is None or turn < limit:
            turns.append((turn, trial.study_id, trial))
            running[trial.study_id] = turn + 1
    return [trial for _, _, trial in sorted(turns, key=lambda item: item[:2])]


def ledger_of(cluster: Cluster, attempts: Iterable[Attempt], max_gangs_per_device: int) -> Ledger:
    """What is reserved now: every attempt that has not ended, whatever its trial has become."""
    ledger = Ledger(cluster, max_gangs_per_device)
    for attempt in attempts:
        ledger.restore(Gang(attempt.key, len(attempt.devices), attempt.mib_per_rank), attempt.devices)
    return ledger


def _plan(trial: Trial) -> Plan:
    assert trial.plan is not None, f"trial {trial.id} is queued without a plan"
    return Plan.from_json(trial.plan)


def _gang(trial: Trial) -> Gang:
    name = f"trial {trial.number} of study {trial.study_id}"
    return Gang(name, _plan(trial).world_size, trial.reserved_mib)


def _order(
    s: Snapshot,
    study: StudyRules,
    trial: Trial,
    attempt: int,
    token: str,
    plan: Plan,
    devices: tuple[str, ...],
    mib_per_rank: int,
) -> Order:
    return Order(
        trial_id=trial.id,
        attempt=attempt,
        token=token,
        study_id=study.id,
        workload=study.workload,
        code=study.code,
        params=trial.params,
        plan=plan,
        devices=devices,
        mib_per_rank=mib_per_rank,
        seed=study.seed + trial.number,
        steps=study.steps,
        report_every=study.report_every,
        metric=study.metric,
        resume_step=s.checkpoints.get(trial.id, -1),
    )


# --- 5, 6: studies ------------------------------------------------------------------------------------------------


def _propose(s: Snapshot) -> Iterator[Effect]:
    """Keep a few candidates ready, not more: a sampler learns most when it is asked late."""
    for study in s.studies.values():
        if not study.wants_trials:
            continue
        pending = sum(t.study_id == study.id and t.state in (TrialState.WAITING, TrialState.QUEUED) for t in s.trials)
        room = max(4, len(s.cluster.devices)) - pending
        count = min(room, study.max_trials - study.num_trials)
        if count > 0:
            yield Propose(study.id, study.num_trials, count)


def _finish_studies(s: Snapshot) -> Iterator[Effect]:
    busy = {trial.study_id for trial in s.trials}
    for study in s.studies.values():
        if study.broken and study.state is StudyState.RUNNING:
            yield FinishStudy(study.id, StudyState.STOPPING, study.broken)
        elif study.id not in busy and not study.wants_trials:
            if study.state is StudyState.RUNNING:
                yield FinishStudy(study.id, StudyState.COMPLETED)
            else:
                yield FinishStudy(study.id, StudyState.FAILED if study.broken else StudyState.STOPPED, study.broken)
