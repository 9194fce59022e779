"""Searchers of Ray Tune: candidates in the space, learned from, and the same after a restart."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.search.proposals import Search
from scamp_service.search.proposer import SearchEnded
from scamp_service.study.spaces.slots import is_candidate, slots_of
from scamp_service.study.spec import StudySpec
from tests.conftest import ROOT
from tests.scamp_service.search.studies import CONDITIONAL, SPACE, Trial, course, live, mixed, study

SEARCHERS: dict[str, dict[str, Any]] = {
    "hyperopt": {"n_initial_points": 5},
    "nevergrad": {"optimizer": "OnePlusOne"},
}
every_searcher = pytest.mark.parametrize("name", SEARCHERS)


def spec_for(name: str, space: dict[str, Any] = SPACE, **more: Any) -> StudySpec:
    return study(space, {"name": "tune", "searcher": name, "options": SEARCHERS.get(name, {})}, **more)


@pytest.mark.full
@pytest.mark.sample
@every_searcher
def test_candidates_lie_in_the_space_also_where_it_has_conditions(name: str) -> None:
    slots = slots_of(spec_for(name, CONDITIONAL).space)
    for trial in live(Search(spec_for(name, CONDITIONAL)), mixed, 12):
        assert is_candidate(slots, trial.params)


@every_searcher
def test_another_process_proposes_the_same_whatever_the_order_of_the_history(name: str) -> None:
    spec = spec_for(name)
    trials = list({trial.number: trial for trial in course(14, seed=1)}.values())
    several = Search(spec).propose(trials, 14, 2)
    assert several == Search(spec).propose(trials[::-1], 14, 2)
    assert several[1:] == Search(spec).propose([*trials, Trial(14, several[0])], 15, 1)


FIRST = """
from tests.scamp_service.search.samplers.test_tune_searcher import Search, course, spec_for

spec, trials = spec_for("{name}"), list({{trial.number: trial for trial in course(14, seed=1)}}.values())
first, later = (Search(spec).propose(trials, 14, 1) for _ in range(2))
assert first == later, (first, later)
"""


@pytest.mark.full
@every_searcher
def test_the_first_proposal_of_a_process_is_that_of_later_ones_although_imports_draw_random_numbers(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", FIRST.format(name=name)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@every_searcher
def test_it_learns(name: str) -> None:
    spec = spec_for(name, {"x": {"low": 0.0, "high": 1.0}})
    trials = live(Search(spec), lambda t: replace(t, state=S.COMPLETED, value=abs(float(t.params["x"]) - 0.7)), 30, 1)
    late = [abs(float(trial.params["x"]) - 0.7) for trial in trials[20:]]
    assert sum(late) / len(late) < 0.18, "chance would be 0.29"


def test_what_cannot_be_used_ends_the_study_with_its_reason() -> None:
    with pytest.raises(SearchEnded, match="the searcher nosuch cannot be used: The `search_alg` argument must be"):
        Search(spec_for("nosuch")).propose((), 0, 1)
    with pytest.raises(SearchEnded, match="the searcher hebo cannot be used: HEBO must be installed"):
        Search(spec_for("hebo")).propose((), 0, 1)
