"""Candidates from what the user believes: the first one exactly, then fewer and fewer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from scamp_service.lifecycle import TrialState as S
from scamp_service.search.priors import nearest
from scamp_service.search.proposals import Search
from scamp_service.study.spaces.slots import is_candidate, slots_of
from scamp_service.study.spaces.space import Range
from tests.scamp_service.search.studies import CONDITIONAL, hash_value, live, study

BELIEVED: dict[str, Any] = {
    "lr": {"low": 1e-6, "high": 1.0, "log": True, "prior": {"mean": 3e-4, "sigma": 2}},
    "depth": {"low": 1, "high": 100, "prior": 40},
    "width": {"low": 32, "high": 256, "step": 32, "prior": {"mean": 100, "sigma": 30}},
    "act": {"choice": ["relu", "gelu", None, [1]], "prior": [1]},
    "size": {"ordinal": [8, 16, 32], "prior": 16},
    "free": {"low": 0.0, "high": 1.0},
}


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc", "cmaes"])
def test_the_first_candidate_is_the_belief_and_half_of_the_next_are_near_it(sampler: str) -> None:
    first, *later = Search(study(BELIEVED, sampler)).propose([], 0, 60)
    assert {name: first[name] for name in BELIEVED if name != "free"} == {
        "lr": 3e-4,
        "depth": 40,
        "width": 96,
        "act": [1],
        "size": 16,
    }
    near = [abs(math.log(params["lr"] / 3e-4)) < 2.5 * math.log(2) and 10 < params["depth"] < 70 for params in later]
    assert 2 <= sum(near[:9]) <= 8 and sum(near[:9]) / 9 > sum(near[30:]) / 29
    assert len({params["free"] for params in later}) > 50, "what has no prior is the sampler's"


def test_without_priors_and_for_other_parameters_the_sampler_proposes_as_before() -> None:
    plain = {name: {key: dimension[key] for key in dimension if key != "prior"} for name, dimension in BELIEVED.items()}
    believed, before = (Search(study(space, "random")).propose([], 0, 40) for space in (BELIEVED, plain))
    assert [proposal["free"] for proposal in believed] == [proposal["free"] for proposal in before]
    assert sum(with_prior == two for with_prior, two in zip(believed, before, strict=True)) >= 15


def test_priors_hold_in_blocks_under_conditions_and_with_constraints() -> None:
    space = {**CONDITIONAL, "momentum": {"low": 0.0, "high": 1.0, "when": {"optimizer": "sgd"}, "prior": 0.9}}
    del space["nesterov"]
    space["layers"] = {
        "repeat": {"low": 1, "high": 3, "prior": 2},
        "each": {"op": {"choice": ["a", "b"], "prior": "b"}},
    }
    spec = study(space, "tpe", constraints=["momentum < 0.95", "layers.exists(l, l.op == 'b')"], start_with=[{}])
    slots = slots_of(spec.space)
    trials = live(Search(spec), lambda t: replace(t, state=S.COMPLETED, value=hash_value(t.params)), 25)
    assert all(is_candidate(slots, trial.params) for trial in trials)
    assert trials[1].params["layers"] == [{"op": "b"}, {"op": "b"}], "after the candidate of start_with"
    assert all(trial.params.get("momentum", 0.0) < 0.95 for trial in trials)
    restarted = Search(spec).propose(trials[:20], 20, 2)
    assert restarted == Search(spec).propose(trials[:20][::-1], 20, 2)


def test_the_nearest_value_of_a_range() -> None:
    assert nearest(Range(low=1, high=9, step=3), 5.4) == 4 and nearest(Range(low=1, high=9, step=3), 99.0) == 7
    assert nearest(Range(low=0.0, high=0.3, step=0.1), 0.19) == 0.2 and nearest(Range(low=0.0, high=0.3), 0.19) == 0.19
