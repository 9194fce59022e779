"""The order in which queued trials may start, by priority, projects and their quotas, and passes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from placement.packing.device_time import month_began
from placement.packing.projects import Claim, StartOrder, Usage, admit
from scamp_service.control.decide.rules.faults import must_wait
from scamp_service.control.decide.rules.gangs import sized_of
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.lifecycle import TrialState, WaitsFor
from scamp_service.model import Trial


def passes_behind(s: Snapshot, ready: Iterable[Trial]) -> Mapping[int, int]:
    """Trial id → how far its priority is below the highest one, which is how many of its passes do not count."""
    priorities = {trial.id: s.studies[trial.study_id].sharing.priority for trial in ready}
    highest = max(priorities.values(), default=0)
    return {trial_id: highest - priority for trial_id, priority in priorities.items()}


def counted_passes(trial: Trial, behind: Mapping[int, int]) -> int:
    """The passes of a trial that count."""
    return max(0, trial.passed_over - behind[trial.id])


def admit_queued(s: Snapshot, queued: Iterable[Trial], behind: Mapping[int, int]) -> StartOrder:
    """Queued trials, which come by age, in the order to place them, and those that a quota keeps waiting.

    ``behind`` says how many of their passes do not count (``passes_behind``).

    No study gets more than its ``max_concurrent``: the others of it are in neither.
    """
    held = _usage(s)
    room = {
        study.id: study.budget.max_concurrent - held.of_study[study.id]
        for study in s.studies.values()
        if study.budget.max_concurrent is not None
    }
    claims: list[Claim] = []
    for trial in _by_priority(queued):
        if trial.study_id in room:
            room[trial.study_id] -= 1
            if room[trial.study_id] < 0:
                continue
        study = s.studies[trial.study_id]
        num_ranks, sharing = sized_of(trial).demand.num_ranks, study.sharing
        passes = counted_passes(trial, behind)
        claims.append(Claim(trial.id, study.id, num_ranks, sharing.project, sharing.priority, passes, sharing.owner))
    return admit(claims, held, s.packing.projects, s.people)


def _by_priority(queued: Iterable[Trial]) -> Iterator[Trial]:
    """The trials in an order in which those of higher priority take the places of older ones of their study."""
    queued, of_study = list(queued), defaultdict[int, list[Trial]](list)
    for trial in queued:
        of_study[trial.study_id].append(trial)
    by_priority = {study: iter(sorted(trials, key=lambda trial: -trial.priority)) for study, trials in of_study.items()}
    return (next(by_priority[trial.study_id]) for trial in queued)


def in_start_order(s: Snapshot) -> Sequence[Trial]:
    """The queued trials that may start, in the order to place them.

    Some of them may still have to wait or to be planned again (``place``): who asks only wants to know who is first.
    """
    queued = {
        trial.id: trial
        for trial in s.in_state(TrialState.QUEUED)
        if s.studies[trial.study_id].progress.is_running
        and not (trial.paused or s.studies[trial.study_id].sharing.paused)
        and not must_wait(s.now, trial)
        and trial.waits_for is not WaitsFor.PREDICTIONS
    }
    return [queued[trial_id] for trial_id in admit_queued(s, queued.values(), passes_behind(s, queued.values())).order]


def used_up_studies(s: Snapshot) -> frozenset[int]:
    """Studies whose quotas of hours are used up: a trial of theirs that was stopped would not start again."""
    if not s.has_quotas_of_hours:
        return frozenset()
    held = _usage(s)
    return frozenset(
        study.id
        for study in s.studies.values()
        if any(held.used_up(holder, quota) for holder, quota in s.quotas_of(study.id).items())
    )


def _usage(s: Snapshot) -> Usage:
    held, study_of = Usage(), {trial.id: s.studies[trial.study_id] for trial in s.trials}
    holders = {study.id: list(s.quotas_of(study.id)) for study in s.studies.values()}
    device_seconds = defaultdict(float, {holder: time.device_seconds for holder, time in s.held.items()})
    mib_seconds = defaultdict(float, {holder: time.mib_seconds for holder, time in s.held.items()})
    month = month_began(s.now)
    for attempt in s.attempts:
        if (study := study_of.get(attempt.trial_id)) is None:
            continue
        num = len(attempt.devices)
        for holder in holders[study.id]:
            held.devices[holder] += num
            held.holdings.setdefault(holder, Counter())[study.id] += num
            device_seconds[holder] += num * max(0.0, s.now - max(attempt.created_at, month))
            mib_seconds[holder] += num * attempt.mib_per_rank * max(0.0, s.now - attempt.created_at)
    for trial in s.in_state(TrialState.RUNNING):
        held.of_study[trial.study_id] += 1
        for holder in holders[trial.study_id]:
            held.trials[holder] += 1
    held.device_hours = {holder: seconds / 3600 for holder, seconds in device_seconds.items()}
    held.mib_hours = {holder: seconds / 3600 for holder, seconds in mib_seconds.items()}
    return held
