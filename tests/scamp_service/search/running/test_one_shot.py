"""One-shot search proposes a supernet, then candidates that inherit from it, then the best of them."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.lifecycle import Origin
from scamp_service.lifecycle import TrialState as S
from scamp_service.search.proposals import Search, reads_history
from scamp_service.search.proposer import SearchEnded
from scamp_service.search.running.one_shot import OneShotSearch
from scamp_service.search.running.threads import ThreadProposer
from scamp_service.study.spec import StudySpec
from tests.scamp_service.search.running.test_threads import answer_of
from tests.scamp_service.search.studies import Trial, study

SPACE = {"x": {"low": 0.0, "high": 1.0}}
SUPERNET = Trial(1, {"batch": 8, "supernet": True}, S.PRUNED, 400, 0.0)
USERS = Trial(0, {"x": 0.5}, S.COMPLETED, 100, -9.0, origin=Origin.ENQUEUED)


def spec_of(sampler: Any = "random", **more: Any) -> StudySpec:
    search = {"sampler": sampler, "one_shot": {"candidates": 6, "best": 2}, **more}
    return study(SPACE, search=search, fixed={"batch": 8}, stopping={"rule": "none"})


def search_of(spec: StudySpec) -> OneShotSearch:
    assert spec.search.one_shot is not None
    return OneShotSearch(spec, spec.search.one_shot, Search(spec))


def scored(number: int, x: float, value: float | None) -> Trial:
    return Trial(number, {"batch": 8, "x": x}, S.PRUNED, 0, value)


def test_first_comes_the_supernet_and_then_candidates_of_the_sampler_that_inherit_from_it() -> None:
    spec = spec_of()
    assert reads_history(spec)
    assert search_of(spec).propose([], 0, 9) == [{"batch": 8, "supernet": True}]
    search = search_of(spec)
    assert search.propose([USERS, SUPERNET], 1, 4) == Search(spec).propose([], 0, 4)
    assert search.parents == [1] * 4
    assert search.propose([], 5, 4) == Search(spec).propose([], 4, 2), "no more than may be scored"


def test_then_the_best_different_candidates_are_trained_alone_the_same_after_a_restart() -> None:
    spec = spec_of()
    values = [(0.1, -1.0), (0.2, -3.0), (0.3, None), (0.4, float("nan")), (0.2, -3.0), (0.6, -2.0)]
    trials = [USERS, SUPERNET, *(scored(number, *value) for number, value in enumerate(values, 2))]
    search = search_of(spec)
    search.propose(trials[:5], 3, 1)
    assert search.propose(trials[5:], 7, 1) == [{"batch": 8, "x": 0.2}] and search.parents == ()
    assert search.propose([], 8, 5) == [{"batch": 8, "x": 0.6}]
    assert search_of(spec).propose([*trials, Trial(8, {"batch": 8, "x": 0.2}, S.RUNNING)], 7, 2) == [
        {"batch": 8, "x": 0.2},
        {"batch": 8, "x": 0.6},
    ]
    assert search.propose([], 9, 5) == []


def test_any_sampler_learns_from_the_scores() -> None:
    evolution = {"name": "evolution", "population_size": 3, "sample_size": 3}
    spec = spec_of(evolution)
    trials = [USERS, SUPERNET, *(scored(number, x, x) for number, x in enumerate((0.9, 0.1, 0.8), 2))]
    proposed = search_of(spec).propose(trials, 4, 3)
    assert sum(float(params["x"]) < 0.5 for params in proposed) >= 2, "children of the best, minimised"


@pytest.mark.parametrize(
    "supernet", [None, Trial(1, SUPERNET.params, S.FAILED), Trial(1, SUPERNET.params, S.INFEASIBLE)]
)
def test_without_a_trained_supernet_or_any_score_the_study_ends_with_a_reason(supernet: Trial | None) -> None:
    with pytest.raises(SearchEnded, match="the supernet did not train to its end"):
        search_of(spec_of()).propose([supernet] if supernet else [], 1, 1)
    with pytest.raises(SearchEnded, match="no candidate has a score"):
        search_of(spec_of()).propose([SUPERNET, scored(2, 0.1, None)], 7, 1)


def test_a_thread_proposes_with_parents() -> None:
    proposer = ThreadProposer()
    proposer.request(1, spec_of(filter={"proxy": "parameters", "of": 3}), [SUPERNET], 1, 4)
    answer: Any = answer_of(proposer, 1)
    assert (len(answer.candidates), answer.parents, answer.is_last) == (1, [1], False)
