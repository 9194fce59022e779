"""Step 6: lets paused trials continue as the stopping rule says, and ends those that never will.

Trials that wait for their repeats end with these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import assert_never

from scamp_service.control.decide.effects import Branch, MoveTrial
from scamp_service.control.decide.rules.ending import ended_with, repeated
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.control.decide.study_rules import StudyRules
from scamp_service.control.stopping.rule import Complete, Continue, Exploit, Pause, Stop, next_pause
from scamp_service.lifecycle import TrialState, WaitsFor
from scamp_service.model import Trial, TrialChanges


def promote(s: Snapshot) -> Iterator[MoveTrial | Branch]:
    """Act on the verdicts on paused trials.

    No more continue than may be pending (``Snapshot.room``), those that have trained longest first, and of these the
    best: what is decided later knows more. Once nothing else of the study is left, every one either continues or ends.
    """
    paused: dict[int, list[Trial]] = {}
    repeating = {trial.parent_id for trial in s.trials if trial.is_repeat}
    for trial in s.in_state(TrialState.PAUSED):
        if trial.waits_for is not WaitsFor.REPEATS or not s.studies[trial.study_id].progress.is_running:
            paused.setdefault(trial.study_id, []).append(trial)
        elif trial.id not in repeating:
            yield MoveTrial(trial, TrialState.COMPLETED, repeated(s.studies[trial.study_id], trial))
    if not paused:
        return
    live = Counter(trial.study_id for trial in s.trials if not trial.paused or trial.state is TrialState.PAUSED)
    for study_id, trials in paused.items():
        study = s.studies[study_id]
        if not study.progress.is_running:
            for trial in trials:
                yield ended_with(study, trial)
        else:
            is_last = not study.wants_trials and live[study_id] == len(trials)
            yield from _judged(s, study, trials, is_last)


def order_to_continue(trial: Trial, rung: int, key: float = 0.0) -> tuple[int, float, int]:
    """Sorts paused trials: those at the highest rung first, of these the best by ``Rung.key``, then by number."""
    return -rung, key, trial.number


def _judged(s: Snapshot, study: StudyRules, trials: list[Trial], is_last: bool) -> Iterator[MoveTrial | Branch]:
    reported, unit, mutate = s.rungs.get(study.id, {}), study.budget.unit, study.search.mutate
    continuing: list[tuple[tuple[int, float, int], Trial, str]] = []
    for trial in trials:
        rung = next_pause(study.stopping, trial)
        if rung is None or rung not in reported or trial.number not in reported[rung]:
            reason = f"continues after {unit} {trial.step}: there is nothing to compare it with"
            continuing.append((order_to_continue(trial, trial.step), trial, reason))
            continue
        match study.stopping.judge(trial, rung, reported, is_last=is_last):
            case Continue(reason):
                order = order_to_continue(trial, rung, reported[rung].key(trial.number))
                continuing.append((order, trial, reason))
            case Stop(reason):
                yield MoveTrial(trial, TrialState.PRUNED, reason, TrialChanges(judged_step=rung))
            case Complete(reason):
                yield MoveTrial(trial, TrialState.COMPLETED, reason, TrialChanges(judged_step=rung))
            case Exploit(reason, donors):
                donor = next((other for number in donors for other in trials if other.number == number), None)
                if donor is None or mutate is None:
                    why = f"continues after {unit} {trial.step}: none to copy is left"
                    continuing.append((order_to_continue(trial, rung), trial, why))
                else:
                    why = f"{reason}; a copy of trial {donor.number} with changed parameters takes its place"
                    yield Branch(trial, donor, mutate(dict(donor.params), trial.number), donor.step, why)
            case Pause(reason):
                if trial.waits_for is WaitsFor.COMPARISON:
                    yield MoveTrial(trial, TrialState.PAUSED, reason, waits_for=WaitsFor.PROMOTION)
            case verdict:
                assert_never(verdict)
    room = len(continuing) if is_last else max(0, s.room(study.id))
    for _, trial, reason in sorted(continuing, key=itemgetter(0))[:room]:
        judged_step = next_pause(study.stopping, trial) or trial.step
        changes = TrialChanges(judged_step=judged_step)
        yield MoveTrial(trial, TrialState.QUEUED, reason, changes, waits_for=WaitsFor.DEVICES)
