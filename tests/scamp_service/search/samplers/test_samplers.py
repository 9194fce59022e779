"""The contract of samplers: every one that a spec may name passes these tests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from scamp_service.lifecycle import TrialState as S
from scamp_service.search import history
from scamp_service.search.earlier import EarlierStudy, earlier_trials
from scamp_service.search.history import Observation
from scamp_service.search.proposals import SAMPLERS, Search, reads_history
from scamp_service.search.samplers.optuna_samplers import as_completed
from scamp_service.study.sampler_options import SAMPLER_OPTIONS, Sampler
from scamp_service.study.spaces.slots import flat, is_candidate, nested, slots_of
from scamp_service.study.spaces.space import Repeat
from scamp_service.study.spec import StudySpec
from tests.calls import num_calls
from tests.scamp_service.search.studies import (
    CONDITIONAL,
    GRID,
    SPACE,
    Trial,
    completed,
    course,
    distance,
    hash_value,
    live,
    mixed,
    study,
)

NAMES = sorted(SAMPLERS.keys() - {"tune"})  # its searchers have tests of their own
STARTS: list[dict[str, Any]] = [{"a": "x", "b": 3}, {"c": 0.2, "batch": 8}]
FINITE = {"grid", "brute_force"}
"""Samplers that end, and need a space with finitely many points."""
LARGE_GRID: dict[str, Any] = {**GRID, "d": {"low": 1, "high": 100}}


OPTIONS: dict[str, dict[str, Any]] = {
    "qmc": {"scramble": True},  # otherwise the seed does not matter
    "evolution": {"population_size": 4, "sample_size": 2},
    "nsga2": {"population_size": 4},
    "nsga3": {"population_size": 4},
    "cmaes": {"popsize": 3},
    "gp": {"n_startup_trials": 6},
}
"""Options with which short histories are enough."""


def study_of(space: dict[str, Any], name: str, **more: Any) -> StudySpec:
    return study(space, sampler={"name": name, **OPTIONS.get(name, {})}, **more)


def spec_for(name: str, **more: Any) -> StudySpec:
    return study_of(GRID, name, fixed={"batch": 32}, start_with=STARTS, **more)


def history_of(num_trials: int) -> list[Trial]:
    """A history as of one moment, some of it still running, by number."""
    return list({trial.number: trial for trial in course(num_trials, seed=1, space=GRID)}.values())


every_sampler = pytest.mark.parametrize("name", NAMES)


def test_each_name_of_a_spec_has_its_sampler() -> None:
    assert SAMPLER_OPTIONS.keys() == SAMPLERS.keys()


@pytest.mark.parametrize("name", SAMPLER_OPTIONS)
def test_each_name_is_read_as_its_options(name: str) -> None:
    needed = {"searcher": "hyperopt"} if name == "tune" else {}
    assert type(TypeAdapter(Sampler).validate_python({"name": name, **needed})) is SAMPLER_OPTIONS[name]


@pytest.mark.full
@every_sampler
def test_another_process_proposes_the_same_whatever_the_order_of_the_history(name: str) -> None:
    spec, trials = spec_for(name), history_of(16)
    search = Search(spec)
    for number in (0, 1, 5, 12, 16):
        proposed = search.propose(trials, number, 3)
        assert proposed == search.propose([], number, 3), "a proposal that was lost is made again"
        assert proposed == Search(spec).propose(random.Random(number).sample(trials, len(trials)), number, 3)
        assert proposed == Search(spec).propose(trials[:number], number, 3), "what is asked for is not a history"


@pytest.mark.full
@every_sampler
def test_asking_for_several_is_asking_one_after_another(name: str) -> None:
    spec, trials = spec_for(name), history_of(12)
    for first in (0, 1, 12):
        several, grown = Search(spec).propose(trials, first, 4), trials[:first]
        for number in range(first, first + 4):
            grown.append(Trial(number, Search(spec).propose(grown, number, 1)[0]))
        assert [trial.params for trial in grown[first:]] == several


@pytest.mark.sample
@pytest.mark.full
@every_sampler
@pytest.mark.parametrize("most", [8, 40, 1024])
def test_one_that_followed_changes_proposes_what_one_that_reads_everything_does(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_SHOWN", most)
    spec = spec_for(name)
    following, news, trials = Search(spec), list[Trial](), dict[int, Trial]()
    for trial in course(60, seed=most, space=GRID):
        news.append(trial)
        trials[trial.number] = trial
        if len(news) == 17:
            proposed = following.propose(news, len(trials), 2)
            assert proposed == Search(spec).propose(list(reversed(trials.values())), len(trials), 2)
            news.clear()


@every_sampler
def test_values_lie_in_the_space_and_have_its_types(name: str) -> None:
    for space in (GRID, SPACE) if name not in FINITE else (GRID,):
        spec = study_of(space, name, fixed={"batch": 32})
        types = {"lr": float, "depth": int, "width": int, "dropout": float, "b": int, "c": float, "batch": int}
        for trial in live(Search(spec), mixed, 20):
            assert list(trial.params) == ["batch", *space]
            for parameter, value in trial.params.items():
                if parameter != "batch":
                    dimension = spec.space[parameter]
                    assert not isinstance(dimension, Repeat) and dimension.why_not(value) == ""
                assert type(value) is types.get(parameter, type(value))


@pytest.mark.parametrize("name", sorted({*NAMES} - FINITE))
def test_candidates_of_a_space_with_conditions_have_what_their_other_parameters_ask_for(name: str) -> None:
    spec = study_of(CONDITIONAL, name, constraints=["width > 8 || layers.size() < 3"])
    slots = slots_of(spec.space)
    trials = live(Search(spec), mixed, 10)
    for trial in trials:
        assert is_candidate(slots, trial.params)
        assert nested(slots, flat(slots, trial.params), [*CONDITIONAL]) == trial.params
        assert trial.params["width"] > 8 or len(trial.params["layers"]) < 3
    assert Search(spec).propose(trials, 10, 1) == Search(spec).propose(trials[::-1], 10, 1)


@every_sampler
def test_a_space_with_one_value_is_still_a_space(name: str) -> None:
    space = {"a": {"low": 2, "high": 2}, "b": {"low": 0.5, "high": 0.5}, "c": {"choice": ["only"]}}
    assert Search(study_of(space, name)).propose([], 0, 1) == [{"a": 2, "b": 0.5, "c": "only"}]


@every_sampler
def test_it_proposes_as_many_as_are_asked_for_or_has_ended_for_good(name: str) -> None:
    search, trials = Search(spec_for(name)), history_of(30)
    assert search.propose(trials, 30, 0) == []
    proposed = search.propose(trials, 10, 20)
    grown = trials[:10] + [Trial(number, params) for number, params in enumerate(proposed, 10)]
    assert len(proposed) == 20 or (name in FINITE and search.propose(grown, len(grown), 5) == [])


@every_sampler
def test_first_candidates_come_first_with_the_rest_filled_in(name: str) -> None:
    first, second, third = Search(spec_for(name)).propose([], 0, 3)
    assert (first["a"], first["b"], first["batch"]) == ("x", 3, 32)
    assert (second["c"], second["batch"], third["batch"]) == (0.2, 8, 32)
    assert set(first) == set(second) == set(third) == {*GRID, "batch"}


@every_sampler
def test_another_seed_gives_other_candidates(name: str) -> None:
    spec, trials = study_of(GRID, name), history_of(12)
    other = spec.model_copy(update={"search": spec.search.model_copy(update={"seed": 4})})
    assert Search(spec).propose(trials, 12, 6) != Search(other).propose(trials, 12, 6)


@pytest.mark.full
@every_sampler
def test_it_reads_the_history_or_says_that_it_does_not(name: str) -> None:
    spec, trials = study_of(GRID, name), [replace(trial, state=S.COMPLETED, value=1.0) for trial in history_of(20)]
    better = [replace(trial, value=-float(trial.number), params=trials[0].params) for trial in trials]
    is_same = Search(spec).propose(trials, 20, 4) == Search(spec).propose(better, 20, 4)
    assert is_same is not reads_history(spec)


@every_sampler
def test_no_global_random_generator_is_used_or_seeded(name: str) -> None:
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), str(np.random.get_state())
    Search(spec_for(name)).propose(history_of(12), 12, 3)
    assert (random.getstate(), str(np.random.get_state())) == before


@pytest.mark.sample
@pytest.mark.full
@every_sampler
def test_a_proposal_from_a_long_history_takes_few_calls(name: str) -> None:
    params = Search(study(GRID, "random")).propose([], 0, 1)[0]
    trials = [Trial(number, params, S.COMPLETED, 100, 0.5) for number in range(5000)]
    search = Search(study_of(GRID, name))
    search.propose(trials, 5000, 1)
    assert num_calls(lambda: search.propose(trials[-10:], 5000, 1)) < 1_000_000


GOLDEN = {
    "brute_force": [("x", 3, 0.3), ("x", 5, 0.2), ("y", 1, 0.2)],
    "cmaes": [("x", 3, 0.0), ("y", 3, 0.1), ("x", 3, 0.1)],
    "evolution": [("y", 1, 0.0), ("x", 3, 0.0), ("x", 3, 0.2)],
    "gp": [("y", 1, 0.1), ("y", 3, 0.2), ("y", 1, 0.2)],
    "grid": [("x", 3, 0.0), ("y", 3, 0.1), ("y", 3, 0.2)],
    "nsga2": [("y", 3, 0.1), ("y", 3, 0.1), ("x", 3, 0.1)],
    "nsga3": [("y", 3, 0.1), ("y", 3, 0.1), ("x", 3, 0.1)],
    "qmc": [("y", 1, 0.2), ("y", 3, 0.3), ("x", 1, 0.0)],
    "random": [("x", 5, 0.0), ("y", 3, 0.3), ("x", 3, 0.1)],
    "tpe": [("y", 3, 0.0), ("y", 3, 0.2), ("y", 1, 0.1)],
}


@every_sampler
def test_proposals_stay_as_they_were_in_earlier_versions(name: str) -> None:
    """A study that an earlier version has begun continues with the same candidates."""
    proposed = Search(spec_for(name)).propose(history_of(60), 20, 3)
    assert [(params["a"], params["b"], params["c"]) for params in proposed] == GOLDEN[name]


@pytest.mark.full
@every_sampler
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_study_with_a_history_tries_none_of_its_candidates_again(name: str, weight: float) -> None:
    """The earlier study had the same seed, and stopped most of its trials early."""
    if name in FINITE and weight < 1:
        pytest.skip("points that they are not shown count as not tried")
    spec = study(LARGE_GRID if name in FINITE else SPACE, name)
    before = Search(spec).propose([], 0, 30)
    ended = [
        Trial(number, params, S.PRUNED if number % 4 else S.COMPLETED, 10, hash_value(params))
        for number, params in enumerate(before)
    ]
    proposed = Search(spec, None, earlier_trials(spec, [EarlierStudy(ended, weight)])).propose([], 0, 5)
    assert len(proposed) == 5 and not [params for params in proposed if params in before]


@pytest.mark.full
@every_sampler
def test_candidates_of_a_history_are_repeated_only_when_nothing_else_is_left(name: str) -> None:
    spec, points = study_of(GRID, name), Search(study(GRID, "grid")).propose([], 0, 24)
    earlier = [Observation(number - 24, params, (hash_value(params),)) for number, params in enumerate(points)]
    proposed = Search(spec, None, earlier[:12]).propose([], 0, 8)
    assert len(proposed) == 8 and all(params in points[12:] for params in proposed)
    assert len(Search(spec, None, earlier).propose([], 0, 1)) == (0 if name in FINITE else 1)


def test_trials_that_were_stopped_early_count_for_a_gaussian_process() -> None:
    spec = study(SPACE, "gp")
    pruned = [
        replace(completed(trial), state=S.PRUNED) for trial in live(Search(study(SPACE, "random")), completed, 30)
    ]
    gp, chance = Search(spec).propose(pruned, 30, 4), Search(study(SPACE, "random")).propose([], 30, 4)
    assert sum(map(distance, gp)) < sum(map(distance, chance)) / 2


def test_no_trial_that_was_stopped_early_looks_better_than_all_that_completed() -> None:
    objectives = study().every_objective
    trials = [Observation(0, {}, (0.5,)), Observation(1, {}, (0.1,), 10), Observation(2, {}, (0.9,), 10)]
    assert [trial.values for trial in as_completed([*trials, Observation(3, {}, None)], objectives)] == [
        (0.5,), (0.5,), (0.9,), None,
    ]  # fmt: skip
    assert [trial.values for trial in as_completed(trials[1:], objectives)] == [(0.1,), (0.9,)]
    assert all(trial.pruned_at is None for trial in as_completed(trials, objectives))
