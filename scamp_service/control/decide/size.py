"""Step 3: finds a plan for every waiting candidate, or the reason that it has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from estimators.learning import Ending, PastAttempt, evaluation_need
from estimators.traits import Traits
from placement.model import plural
from scamp_service.control.decide.effects import Effect, MoveTrial, Size
from scamp_service.control.decide.finish import RETURN_WORDS
from scamp_service.control.decide.rules.ending import ended_with
from scamp_service.control.decide.rules.faults import must_wait, size_later
from scamp_service.control.decide.rules.gangs import missing_devices
from scamp_service.control.decide.snapshot import Corrections, Snapshot
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.control.executor import Demand, Unsized
from scamp_service.lifecycle import NO_PLAN_YET, TrialState, WaitsFor
from scamp_service.model import Sized, Trial, TrialChanges
from scamp_service.study.one_shot import Part
from workloads.batch import BatchRequest


def size_waiting(s: Snapshot, learned: Corrections) -> Iterator[Effect]:
    """Act on finished sizings, and start one for every other waiting trial.

    A trial with a plan becomes QUEUED, one that fits nowhere, or breaks a bound of the study on what is predicted,
    INFEASIBLE, and one whose workload fails FAILED; if the host is to blame, it waits for another try. Trials of
    stopped studies are cancelled. INFEASIBLE is a verdict on the devices of one cluster: when it offers more, the trial
    is WAITING again.
    """
    for trial in s.refused:
        reason = "will be planned again: the cluster has grown"
        yield MoveTrial(trial, TrialState.WAITING, reason, waits_for=WaitsFor.NEW_PLAN)
    for trial in s.in_state(TrialState.WAITING):
        study = s.studies[trial.study_id]
        if not study.progress.is_running:
            yield ended_with(study, trial)
            continue
        match s.sized.get(trial.id):
            case Sized() as sized if not trial.attempt and (why := _breaks_bound(study, trial, sized)):
                changes = TrialChanges(family=study.family(trial), offer=None)  # more devices would not help
                yield MoveTrial(trial, TrialState.INFEASIBLE, f"not trained: {why}", changes, sized)
            case Sized() as sized if unknown := study.objectives.unknown(sized.quantities):
                yield MoveTrial(trial, TrialState.FAILED, _why_unknown(unknown), sized=sized)
            case Sized() as sized:
                sized = _with_batch(trial, _for_good(trial, sized))
                changes, able = TrialChanges(family=study.family(trial)), _within_bounds(study, trial, sized)
                yield MoveTrial(trial, TrialState.QUEUED, sized.why, changes, able, WaitsFor.DEVICES)
            case Unsized(infeasible=True) as unsized:
                yield _refused(s, trial, unsized)
            case Unsized(may_pass=True) as unsized:
                yield size_later(s.now, trial, unsized.reason)
            case Unsized() as unsized:
                yield MoveTrial(trial, TrialState.FAILED, unsized.reason)
            case None if s.cluster.devices and not must_wait(s.now, trial):
                yield Size(trial, demand_of(s, learned, trial))
                if trial.waits_for is WaitsFor.PLAN and (reason := _why_no_plan_yet(s, trial)) != trial.reason:
                    yield MoveTrial(trial, TrialState.WAITING, reason, waits_for=WaitsFor.PLAN)


def _for_good(trial: Trial, sized: Sized) -> Sized:
    """Says in the reason of the plan that a trial which ran out of memory keeps it (``place.offer_choices``)."""
    changes = BatchRequest.of(trial.params).changes
    if not trial.num_oom or not (sized.choices or changes):
        return sized
    words = "it keeps this plan" + " and its batch" * changes
    why = "it ran out of memory, and what it needs is known for this plan alone"
    return replace(sized, reason=f"{sized.reason}; {words}: {why}")


def _with_batch(trial: Trial, sized: Sized) -> Sized:
    """The plan with the reason of the batch that the trial was once given, which it keeps."""
    return sized if trial.sized is None else replace(sized, batch_reason=trial.sized.batch_reason)


def _breaks_bound(study: StudyRules, trial: Trial, sized: Sized) -> str:
    """The bound on what is predicted that the trial breaks; bounds are for candidates, not for a supernet of them."""
    return "" if study.part_of(trial) is Part.SUPERNET else study.search.predicted.why_not(sized.quantities)


def _within_bounds(study: StudyRules, trial: Trial, sized: Sized) -> Sized:
    """Leaves out the choices of other plans that break a bound of the study, such as that on ranks."""
    able = (
        choice
        for choice in sized.choices
        if choice.plan == sized.plan or not _breaks_bound(study, trial, sized.taking(choice))
    )
    return replace(sized, choices=tuple(able))


def _why_no_plan_yet(s: Snapshot, trial: Trial) -> str:
    before = s.held_up.get(trial.id)
    if not before:
        return NO_PLAN_YET
    by_id = {other.id: other for other in s.trials}
    names = [
        "one that has ended" if (other := by_id.get(trial_id)) is None
        else f"trial {other.number}" + f" of study {other.study_id}" * (other.study_id != trial.study_id)
        for trial_id in before
    ]  # fmt: skip
    return f"waits for its plan, behind the traces of {' and '.join(names)}, which take long"


def _why_unknown(metrics: Sequence[str]) -> str:
    """Why a trial has no value for objectives that are predicted."""
    advice = "; `scamp calibrate` measures the speed of this machine" if "predicted.step_seconds" in metrics else ""
    return f"the objective {metrics[0]} is not known for its plan on these devices{advice}"


def _refused(s: Snapshot, trial: Trial, unsized: Unsized) -> MoveTrial:
    """The trial fits nowhere. If that is because the cluster has lost the devices of its plan, they may come back.

    One that begins with weights of another and has not trained yet never comes back: the other may continue, and drops
    its checkpoint.
    """
    offer, reason, kinds = unsized.offer, unsized.reason, s.studies[trial.study_id].kinds
    if trial.parent is not None and trial.value is None:
        offer = None
    missing = missing_devices(offer, trial.sized.demand, kinds) if trial.sized and offer is not None else ""
    if missing:
        reason = f"{missing}. The study waits {RETURN_WORDS} for more of them. Until then: {reason}"
    elif s.packing.autoscale_devices:
        to_come = f"the {plural(s.packing.autoscale_devices, 'device')} of SCAMP_AUTOSCALE_DEVICES"
        reason = f"{reason}; nor would it fit if there were {to_come}"
    changes = TrialChanges(structure=unsized.structure, offer=offer, once_fit=bool(missing))
    return MoveTrial(trial, TrialState.INFEASIBLE, reason, changes)


def demand_of(s: Snapshot, learned: Corrections, trial: Trial) -> Demand:
    """Collects for the sizer what the trial's own runs and its family have learned."""
    study = s.studies[trial.study_id]
    family, failures = study.family(trial), s.failures.get(trial.id, ())
    past = s.past.get(family, ())
    return Demand(
        candidate=study.candidate(trial),
        own_attempts=tuple(run for run in failures if run.ending is Ending.OUT_OF_MEMORY),
        learned=learned.get(family, {}),
        past=past,
        study_id=study.id,
        trace_seconds=study.budget.trace_seconds,
        evaluation=evaluation_need([*past, *failures]),
        plan=study.plan,
        kinds=study.kinds,
        traits=_shown_by(past),
    )


def _shown_by(past: Sequence[PastAttempt]) -> Traits:
    """Traits of code that attempts of a family have shown; the check of its division looks at losses and metrics."""
    why = next((run.why for run in past if run.ending is Ending.DEPENDS_ON_DIVISION), "")
    return Traits(couples_samples=why, evaluates_whole=why)
