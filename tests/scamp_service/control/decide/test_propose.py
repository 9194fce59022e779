"""Few candidates are proposed ahead, and never more than the budget has room for."""

from __future__ import annotations

from scamp_service.control.decide.effects import CreateTrials, FinishStudy, Propose
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.search.proposer import Proposal, ProposalRequest, SearchEnded
from tests.scamp_service.control.decide.snapshots import effects_of, study
from tests.values import trial


def test_few_candidates_are_proposed_ahead_and_never_more_than_the_budget() -> None:
    wanting = {1: study(num_trials=8)}
    assert effects_of(trials=[], studies=wanting) == [Propose(1, 8, 2)]
    waiting = [trial(id=i, state=TrialState.QUEUED, attempt=0, reserved_mib=96) for i in range(4)]
    assert not [e for e in effects_of(trials=waiting, studies={1: study(num_trials=4)}) if isinstance(e, Propose)]


def test_proposed_candidates_are_stored_if_they_still_begin_with_the_next_number() -> None:
    four = Proposal([{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}, {"lr": 0.4}], is_last=True)
    wanting = {1: study(num_trials=4)}
    ask, store = Propose(1, 4, 4), CreateTrials(1, 4, four.candidates, is_last=True)
    assert effects_of(trials=[], studies=wanting, requests={1: ProposalRequest(4, answer=None)}) == []
    assert effects_of(trials=[], studies=wanting, requests={1: ProposalRequest(4, answer=four)}) == [store]
    assert effects_of(trials=[], studies=wanting, requests={1: ProposalRequest(0, answer=four)}) == [ask]
    assert effects_of(trials=[], studies=wanting, requests={1: ProposalRequest(0, answer=None)}) == [ask]
    assert effects_of(trials=[], studies=wanting, requests={1: ProposalRequest(4, answer=ValueError("no"))}) == [ask]
    ended = {1: study(num_trials=4, broken="the searcher cannot be used")}
    assert effects_of(
        trials=[], studies=ended, requests={1: ProposalRequest(4, answer=SearchEnded("the searcher cannot be used"))}
    ) == [FinishStudy(1, StudyState.STOPPING, "the searcher cannot be used", StudyState.FAILED)]
    stopping = {1: study(num_trials=4, state=StudyState.STOPPING)}
    assert effects_of(trials=[], studies=stopping, requests={1: ProposalRequest(4, answer=four)}) == [
        FinishStudy(1, StudyState.STOPPED)
    ]


def test_no_more_candidates_are_stored_than_have_room_now() -> None:
    answer = Proposal([{"lr": 0.1}, {"lr": 0.2}], is_last=True)
    waiting = [trial(id=i, state=TrialState.QUEUED, attempt=0, reserved_mib=96) for i in range(3)]
    decided = effects_of(
        trials=waiting, studies={1: study(num_trials=4)}, requests={1: ProposalRequest(4, answer=answer)}
    )
    assert [e for e in decided if isinstance(e, CreateTrials)] == [CreateTrials(1, 4, [{"lr": 0.1}])]
