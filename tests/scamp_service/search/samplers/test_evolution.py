"""Evolution: random at first, then one change of a good trial, young ones only, in spaces with blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.search.proposals import Search
from scamp_service.search.space import Space
from scamp_service.study.spaces.slots import is_candidate, slots_of
from tests.scamp_service.search.studies import Trial, live, study

BLOCKS: dict[str, Any] = {
    "layers": {
        "repeat": {"low": 1, "high": 5},
        "each": {
            "op": {"choice": ["conv", "skip", "pool"]},
            "width": {"ordinal": [8, 16, 32, 64], "when": {"op": "conv"}},
        },
    },
    "lr": {"low": 1e-4, "high": 1e-1, "log": True},
}
EVOLUTION = {"name": "evolution", "population_size": 10, "sample_size": 4}


def num_convs(trial: Trial) -> int:
    return sum(layer["op"] == "conv" and layer["width"] == 32 for layer in trial.params["layers"])


def finished(trial: Trial) -> Trial:
    return replace(trial, state=S.COMPLETED, value=-float(num_convs(trial)))


@pytest.mark.full
def test_evolution_finds_better_architectures_than_chance() -> None:
    def late(sampler: Any) -> float:
        proposed: list[Trial] = []
        for seed in range(3):
            proposed += live(Search(study(BLOCKS, search={"sampler": sampler, "seed": seed})), finished, 120)[60:]
        return sum(map(num_convs, proposed)) / len(proposed)

    assert late(EVOLUTION) > 3 * late("random")


def test_a_child_differs_in_one_parameter_and_in_what_exists_with_it() -> None:
    spec = study(BLOCKS, EVOLUTION)
    space = Space(spec.space)
    trials = live(Search(spec), finished, 40)
    parents = [space.flat(trial.params) for trial in trials]
    for number in range(14, 40):  # the first ten have ended then
        child = parents[number]
        assert is_candidate(slots_of(spec.space), trials[number].params)
        same = [
            other
            for other in parents[:number]
            if sum(child[name] != other[name] for name in child.keys() & other.keys()) <= 1
        ]
        assert same, f"trial {number} is a child of none of the trials before it"


def test_a_child_inherits_from_the_trial_that_it_is_a_change_of() -> None:
    spec = study(BLOCKS, {**EVOLUTION, "inherit": True}, constraints=["layers.exists(layer, layer.op != 'pool')"])
    space, trials = (
        Space(spec.space),
        [replace(trial, number=n) for n, trial in enumerate(live(Search(spec), finished, 30))],
    )
    search = Search(spec)
    assert search.propose([], 0, 9) and not search.parents
    proposed = search.propose(trials, 30, 20)
    assert len(search.parents) == 20 and set(search.parents) <= set(range(20, 30))
    for params, number in zip(proposed, search.parents, strict=True):
        assert number is not None
        child, parent = space.flat(params), space.flat(trials[number].params)
        assert sum(child[name] != parent[name] for name in child.keys() & parent.keys()) <= 1
    plain = Search(study(BLOCKS, EVOLUTION, constraints=list(spec.constraints)))
    assert plain.propose(trials, 30, 20) == proposed and plain.parents == ()


def test_only_the_newest_trials_have_children() -> None:
    spec = study({"x": {"low": 0.0, "high": 1.0}}, EVOLUTION)
    old = [Trial(number, {"x": 0.1}, S.COMPLETED, 9, -9.0) for number in range(10)]
    young = [Trial(number, {"x": 0.9}, S.COMPLETED, 9, 1.0) for number in range(10, 20)]
    proposed = Search(spec).propose([*old, *young], 20, 20)
    assert sum(float(params["x"]) > 0.5 for params in proposed) > 15
