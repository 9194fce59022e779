"""Proposals: determined by spec, number and history; the first candidates, then those of the sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scamp_service.lifecycle import Origin
from scamp_service.lifecycle import TrialState as S
from scamp_service.search.proposals import Search, needs_own_process, reads_history
from tests.scamp_service.search.studies import SPACE, Trial, completed, live, study


def test_a_history_that_took_another_course_is_believed() -> None:
    trials = live(Search(study()), completed, 20)
    search = Search(study())
    proposed = search.propose(trials, 20, 1)[0]
    other = [*trials, Trial(20, {**proposed, "depth": 1 if proposed["depth"] != 1 else 2})]
    assert search.propose(other, 21, 1) == Search(study()).propose(other, 21, 1)


def test_first_candidates_come_first_with_the_rest_filled_in() -> None:
    starts = [{"lr": 1, "depth": 2}, {"act": "gelu", "batch": 8}]
    for sampler in ("tpe", "random"):
        proposed = Search(study(sampler=sampler, fixed={"batch": 32}, start_with=starts)).propose([], 0, 4)
        assert (proposed[0]["lr"], proposed[0]["depth"], proposed[0]["batch"]) == (1.0, 2, 32)
        assert isinstance(proposed[0]["lr"], float), "typed as the sampler's own"
        assert (proposed[1]["act"], proposed[1]["batch"], proposed[2]["batch"]) == ("gelu", 8, 32)
        assert all(set(params) == {*SPACE, "batch"} for params in proposed)


def test_a_trial_that_was_planned_again_after_it_fitted_nowhere_counts_with_its_result() -> None:
    def odd(change: dict[str, Any]) -> list[Trial]:
        return [replace(t, **change) if t.number % 2 else t for t in trials]

    trials, follower = live(Search(study()), completed, 20), Search(study())
    trials.append(Trial(20, follower.propose(odd({"state": S.INFEASIBLE, "value": None}), 20, 1)[0]))
    again = odd({"state": S.WAITING, "value": None})
    trials.append(Trial(21, follower.propose(again, 21, 1)[0]))
    assert follower.propose(trials, 22, 2) == Search(study()).propose(trials, 22, 2)


def test_failures_and_cancellations_say_nothing_of_the_parameters() -> None:
    trials = live(Search(study()), completed, 20)
    failed = [replace(t, state=S.FAILED, value=None) if t.number % 2 else t for t in trials]
    cancelled = [replace(t, state=S.CANCELLED, value=9e9, step=5) if t.number % 2 else t for t in trials]
    assert Search(study()).propose(failed, 20, 2) == Search(study()).propose(cancelled, 20, 2)


def test_the_first_candidates_are_no_gap_in_what_a_search_has_followed() -> None:
    spec, trials = study(start_with=[{"depth": 3}]), live(Search(study()), completed, 20)
    following = Search(spec)
    following.propose(trials, 0, 1)
    assert following.propose([], 20, 1) == Search(spec).propose(trials, 20, 1)


def test_trials_of_other_programs_are_history_and_take_no_place_of_the_sampler() -> None:
    spec = study(sampler="tpe", start_with=[{"depth": 3}, {"depth": 4}])
    search, theirs = Search(spec), Search(study(sampler="random")).propose([], 0, 1)[0]
    external = [
        Trial(0, theirs, S.COMPLETED, value=0.1, origin=Origin.EXTERNAL),
        Trial(1, {"lr": "fast"}, S.COMPLETED, value=0.1, origin=Origin.EXTERNAL),
        Trial(2, {}, S.RUNNING, origin=Origin.EXTERNAL),
    ]
    assert [params["depth"] for params in search.propose(external, 0, 2)] == [3, 4]
    assert [observation.number for observation in search._history.shown(3).completed] == [0], (
        "only those that lie in the space"
    )


def test_samplers_that_may_hang_or_import_torch_run_in_processes() -> None:
    names = ("gp", "own.py:make", {"name": "tune", "searcher": "hyperopt"})
    assert all(needs_own_process(study(sampler=name)) and reads_history(study(sampler=name)) for name in names)
    assert not any(needs_own_process(study(sampler=name)) for name in ("tpe", "random", "qmc", "cmaes", "nsga2"))
