"""A study ends when its trials have, and stopping it cancels them."""

from __future__ import annotations

from scamp_service.control.decide.effects import FinishStudy, MoveTrial
from scamp_service.control.decide.finish import JOIN_SECONDS, RETURN_SECONDS
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Refusals
from tests.scamp_service.control.decide.snapshots import ALIVE, effects_of, only_move, study
from tests.values import attempt, trial


def test_stopping_a_study_cancels_whatever_it_has() -> None:
    stopping = {1: study(state=StudyState.STOPPING, reason="stopped by the user")}
    trials = [
        trial(),
        trial(id=2, state=TrialState.QUEUED, attempt=0),
        trial(id=3, state=TrialState.WAITING, attempt=0),
    ]
    decided = effects_of(trials=trials, attempts=[attempt()], gangs={"1/1": ALIVE}, studies=stopping)
    assert [e.to for e in decided if isinstance(e, MoveTrial)] == [TrialState.CANCELLED] * 3
    assert effects_of(trials=[], studies=stopping) == [FinishStudy(1, StudyState.STOPPED, "stopped by the user")]


def test_a_study_ends_when_its_trials_have_and_fails_when_none_can_run() -> None:
    assert effects_of(trials=[]) == [FinishStudy(1, StudyState.COMPLETED)]
    broken = study(num_trials=5, broken="module has no class")
    stops = FinishStudy(1, StudyState.STOPPING, "module has no class", StudyState.FAILED)
    assert stops in effects_of(trials=[], studies={1: broken})
    stopping = study(state=StudyState.STOPPING, reason="module has no class", ends_as=StudyState.FAILED)
    ended = effects_of(trials=[], studies={1: stopping})
    assert ended == [FinishStudy(1, StudyState.FAILED, "module has no class")]


def test_a_trial_that_fitted_nowhere_is_planned_again_when_the_cluster_has_grown() -> None:
    refused = trial(state=TrialState.INFEASIBLE, attempt=0, plan=None, offer=(("virtual", 96, 2),))
    refusals = {Refusals(1, (("virtual", 96, 2),), False, newest_at=0.0): 1e6}
    decided = effects_of(trials=[], refused=[refused], refusals=refusals)
    assert only_move(decided).to is TrialState.WAITING and len(decided) == 1, "the study does not end meanwhile"


def test_a_study_stays_open_while_nodes_may_join_or_come_back() -> None:
    for once_fit, seconds in ((False, JOIN_SECONDS), (True, RETURN_SECONDS)):
        verdict = Refusals(1, (), once_fit, newest_at=100.0)
        assert effects_of(trials=[], refusals={verdict: seconds - 1.0}) == []
        ended = effects_of(trials=[], refusals={verdict: seconds})
        assert ended == [FinishStudy(1, StudyState.COMPLETED)]
