"""ScaMP's samplers propose what Optuna's own do, with the same seeds, in a sequential study."""

from __future__ import annotations

from dataclasses import replace

import pytest
from optuna.samplers import RandomSampler

from benchmarks.searching.equal_samplers import CASES, first_difference


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("name", CASES)
def test_candidates_equal_those_of_optuna(name: str) -> None:
    trials = min(CASES[name].trials, 12 if name == "gp" else 25)
    assert first_difference(replace(CASES[name], trials=trials), seed=11) is None


def test_another_sampler_is_noticed() -> None:
    other = replace(CASES["tpe"], make=lambda _, seed: RandomSampler(seed=seed))
    assert first_difference(other, seed=11) == 10, "after the random ones with which TPE starts"
