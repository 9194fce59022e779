"""Samplers in threads: a slow one holds up nobody, and an answer is given once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from scamp_service.lifecycle import TrialState
from scamp_service.search.proposals import SAMPLERS, Search
from scamp_service.search.proposer import Proposal, ProposalRequest
from scamp_service.search.running import threads
from scamp_service.search.running.threads import ThreadProposer
from scamp_service.study.spec import StudySpec
from tests.scamp_service.search.studies import GRID, Trial, course, study
from tests.waiting import PATIENCE_SECONDS, until


class Gate:
    """A sampler that answers once ``open`` is set."""

    reads_history: ClassVar = True
    needs_own_process: ClassVar = False
    shows_most: ClassVar = None
    open: ClassVar = threading.Event()

    def __init__(self, spec: StudySpec) -> None:
        """Nothing to keep."""

    def suggest(self, number: int, completed: Any, active: Any, attempt: int = 0) -> Any:
        assert self.open.wait(PATIENCE_SECONDS)
        return {"number": number, "completed": len(completed)}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    Gate.open = threading.Event()
    monkeypatch.setitem(SAMPLERS, "random", Gate)
    yield Gate.open
    Gate.open.set()


def answer_of(proposer: ThreadProposer, study_id: int) -> Proposal | Exception:
    until(lambda: proposer.requests()[study_id].answer is not None, "an answer")
    answer = proposer.requests()[study_id].answer
    assert answer is not None
    return answer


def test_answers_are_those_of_the_search_and_stay_until_they_are_forgotten() -> None:
    trials, spec = list({trial.number: trial for trial in course(30, 1, GRID)}.values()), study(GRID)
    proposer = ThreadProposer()
    assert not proposer.remembers(1)
    proposer.request(1, spec, trials, 20, 3)
    assert answer_of(proposer, 1) == Proposal(Search(spec).propose(trials, 20, 3))
    assert proposer.requests()[1].first_number == 20 and proposer.remembers(1)
    proposer.forget(1)
    assert proposer.requests() == {} and proposer.remembers(1)
    proposer.request(1, spec, (), 23, 3)
    assert answer_of(proposer, 1) == Proposal(Search(spec).propose(trials, 23, 3))
    proposer.forget_ended([2])
    assert proposer.requests() == {} and not proposer.remembers(1)


def test_an_answer_with_fewer_candidates_is_the_last_one() -> None:
    proposer = ThreadProposer()
    proposer.request(1, study(GRID, "grid"), (), 22, 4)
    answer = answer_of(proposer, 1)
    assert isinstance(answer, Proposal)
    assert answer.is_last
    assert len(answer.candidates) == 2


def test_a_sampler_that_takes_long_does_not_hold_up_others(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, before = [0.0], set(threading.enumerate())
    proposer = ThreadProposer(workers=1, monotonic=lambda: now[0])
    proposer.request(1, study(GRID, "random"), (), 0, 1)
    proposer.request(2, study(GRID), (), 0, 1)
    assert len(set(threading.enumerate()) - before) == 1, "one at a time"
    assert proposer.requests() == {1: ProposalRequest(0), 2: ProposalRequest(0)}
    now[0] = threads.PATIENCE_SECONDS + 1.0
    assert isinstance(answer_of(proposer, 2), Proposal)
    assert proposer.requests()[1] == ProposalRequest(0, now[0], None)
    gate.set()
    assert answer_of(proposer, 1) == Proposal([{"number": 0, "completed": 0}])


def test_the_answer_to_an_earlier_request_is_dropped(gate: threading.Event) -> None:
    trials = [Trial(0, {}, TrialState.COMPLETED, value=0.5)]
    proposer = ThreadProposer(workers=2)
    proposer.request(1, study(GRID, "random"), trials, 25, 1)
    assert not proposer.remembers(1), "its search may still be at work"
    proposer.request(1, study(GRID, "random"), (), 26, 1)
    gate.set()
    assert answer_of(proposer, 1) == Proposal([{"number": 26, "completed": 0}])
    proposer.request(2, study(GRID, "random"), (), 0, 1)
    proposer.forget_ended([1])
    until(lambda: not proposer._running, "the end of all threads")
    assert proposer.requests().keys() == {1} and not proposer.remembers(2)


@pytest.mark.parametrize("error", [ValueError("no such sampler"), SystemExit(3)])
def test_an_error_is_the_answer_and_the_next_request_begins_anew(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    proposer = ThreadProposer()
    with monkeypatch.context() as patch:
        patch.setattr(Search, "propose", fail)
        proposer.request(1, study(GRID), (), 0, 1)
        answer = answer_of(proposer, 1)
    assert isinstance(answer, Exception) and str(error) in str(answer)
    assert not proposer.remembers(1)
    proposer.request(1, study(GRID), (), 0, 1)
    assert isinstance(answer_of(proposer, 1), Proposal)
