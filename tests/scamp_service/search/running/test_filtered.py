"""Each trial is the best of several proposals, and the same again after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.search.proposals import Search
from scamp_service.search.running.filtered import FilteredSearch
from scamp_service.search.running.threads import ThreadProposer
from scamp_service.study.spec import StudySpec
from scamp_service.study.values import Params
from tests.scamp_service.search.running.test_threads import answer_of
from tests.scamp_service.search.studies import CONDITIONAL, SPACE, Trial, course, study


def spec_of(sampler: str = "tpe", space: dict[str, Any] = SPACE, **more: Any) -> StudySpec:
    search = {"sampler": sampler, "seed": 3, "filter": {"proxy": "grad_norm", "of": 4}}
    return study(space, sampler, search=search, **more)


def by_lr(candidates: Sequence[Params]) -> list[float | None]:
    return [candidate["lr"] for candidate in candidates]


def filtered(spec: StudySpec, score: Any = by_lr) -> FilteredSearch:
    assert spec.search.filter is not None
    return FilteredSearch(Search(spec), spec.search.filter, score)


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc", "evolution", "nsga2", "cmaes"])
def test_the_best_of_different_proposals_becomes_the_trial_also_after_a_restart(sampler: str) -> None:
    spec = spec_of(sampler)
    trials = list({trial.number: trial for trial in course(30, seed=1)}.values())
    seen = Search(spec).propose(trials, 30, 1, picks=4)
    assert len({str(proposal) for proposal in seen}) > 1 and seen[0] == Search(spec).propose(trials, 30, 1)[0]
    (proposal,) = filtered(spec).propose(trials, 30, 3)
    assert proposal["lr"] == max(proposal["lr"] for proposal in seen)
    assert filtered(spec).propose(trials[::-1], 30, 1) == [proposal]


def test_candidates_without_a_score_come_last_and_with_equal_scores_the_first_proposal_wins() -> None:
    spec = spec_of("random")
    seen = Search(spec).propose([], 0, 1, picks=4)
    assert filtered(spec, lambda candidates: [None, 1.0, 2.0, None]).propose([], 0, 1) == [seen[2]]
    assert filtered(spec, lambda candidates: [None] * 4).propose([], 0, 1) == [seen[0]]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([1, 4, None, 2.5], "the best of 4 proposals by grad_norm: 4, the others 2.5, 1, no value"),
        ([None] * 4, "the first of 4 proposals, as grad_norm has no value for any of them"),
    ],
)
def test_a_trial_says_which_scores_its_proposals_had(scores: list[float | None], words: str) -> None:
    search = filtered(spec_of("random"), lambda candidates: scores)
    search.propose([], 0, 1)
    assert search.reasons == [words]


def test_proposals_satisfy_the_constraints() -> None:
    spec = spec_of("random", constraints=["depth == 4"])
    assert [proposal["depth"] for proposal in Search(spec).propose([], 0, 1, picks=4)] == [4] * 4
    rare = spec_of("random", CONDITIONAL, constraints=["width == 64", "layers.all(one, one.op == 'skip')"])
    assert len(Search(rare).propose([], 0, 1, picks=4)) == 4


def test_given_candidates_are_not_filtered_and_a_thread_proposes_one_at_a_time() -> None:
    start = {"lr": 1e-3, "depth": 2, "width": 64, "dropout": 0.0, "act": "relu"}
    spec = spec_of(start_with=[start])
    calls: list[tuple[int, int]] = []

    def score(study_id: int, spec: StudySpec, candidates: Sequence[Params]) -> list[float | None]:
        calls.append((study_id, len(candidates)))
        return by_lr(candidates)

    proposer = ThreadProposer(score_of=score)
    proposer.request(7, spec, [], 0, 5)
    first: Any = answer_of(proposer, 7)
    assert (list(first.candidates), first.is_last, calls) == ([start], False, [])
    proposer.request(7, spec, [Trial(0, start, S.RUNNING)], 1, 5)
    second: Any = answer_of(proposer, 7)
    assert (len(second.candidates), second.is_last, calls) == (1, False, [(7, 4)])
    assert first.reasons == ()
    assert second.reasons[0].startswith("the best of 4 proposals")
    proposer.close()


def test_the_chosen_proposal_has_its_own_parent() -> None:
    evolution = {"name": "evolution", "population_size": 10, "sample_size": 2, "inherit": True}
    spec = study(
        {"x": {"low": 0.0, "high": 1.0}}, search={"sampler": evolution, "filter": {"proxy": "parameters", "of": 4}}
    )
    trials = [Trial(number, {"x": number / 20}, S.COMPLETED, 9, number / 20) for number in range(20)]
    plain = Search(spec)
    seen = plain.propose(trials, 20, 1, picks=4)
    search = filtered(spec, lambda candidates: [None, None, 1.0, None])
    assert search.propose(trials, 20, 1) == [seen[2]] and search.parents == [plain.parents[2]]
    assert len(set(plain.parents)) > 1
