"""Samplers of Optuna from a user's file, as objects and as functions of a seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import optuna
import pytest

from scamp_service.search.proposals import Search
from scamp_service.search.samplers.user_sampler import UserSampler, reseed
from tests.scamp_service.search.studies import GRID, course, study


class Nested(optuna.samplers.RandomSampler):
    def __init__(self) -> None:
        super().__init__(seed=1)
        self.inner = optuna.samplers.TPESampler(seed=2)
        self.generator, self.plain = np.random.default_rng(3), random.Random(4)

    def numbers(self) -> list[float]:
        inner = self.inner._random_sampler._rng.rng.random_sample()
        return [self._rng.rng.random_sample(), inner, self.generator.random(), self.plain.random()]


def proposed(sampler: Any, number: int) -> list[dict[str, Any]]:
    spec = study(GRID, "own.py:sampler")
    trials = list({trial.number: trial for trial in course(20, seed=1, space=GRID)}.values())
    return Search(spec, lambda spec: UserSampler(spec, sampler)).propose(trials, number, 3)


def test_a_seed_reaches_every_generator_of_an_object() -> None:
    first, second, other = Nested(), Nested(), Nested()
    first.numbers()
    for sampler, seed in ((first, 7), (second, 7), (other, 8)):
        reseed(sampler, seed)
    numbers = first.numbers()
    assert numbers == second.numbers() and len({*numbers}) == 4
    assert not {*numbers} & {*other.numbers()}


@pytest.mark.parametrize(
    "sampler",
    [
        optuna.samplers.TPESampler(seed=1),
        lambda seed: optuna.samplers.TPESampler(seed=seed),
        lambda seed: optuna.samplers.NSGAIISampler(seed=seed, population_size=4),
        optuna.samplers.NSGAIISampler(population_size=4),
    ],
)
def test_proposals_differ_from_trial_to_trial_and_are_repeated(sampler: Any) -> None:
    several = proposed(sampler, 16)
    assert several == proposed(sampler, 16)
    assert len({str(proposal) for proposal in several}) > 1


def test_what_is_no_sampler_is_refused() -> None:
    for wrong in (3, lambda seed: seed, print):
        with pytest.raises(TypeError):
            proposed(wrong, 0)
