"""All generators draw the same after the same seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from scamp.workload.datasets import opened_dataset
from scamp.workload.seeds import drawn_from, mixed, seed_everything


class Own:
    def __init__(self) -> None:
        self.torch = torch.Generator()
        self.numpy = np.random.default_rng(0)
        self.legacy = np.random.RandomState(0)
        self.python = random.Random(0)


DRAWS = {
    "torch": lambda workload: torch.rand(()).item(),
    "numpy": lambda workload: np.random.rand(),
    "python": lambda workload: random.random(),
    "own torch": lambda workload: torch.rand((), generator=workload.torch).item(),
    "own numpy": lambda workload: workload.numpy.random(),
    "own legacy": lambda workload: workload.legacy.rand(),
    "own python": lambda workload: workload.python.random(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_every_generator_draws_the_same_after_the_same_seed_and_is_seen(draw: Any) -> None:
    workload: Any = Own()
    seed_everything((1, 2), workload)
    before = drawn_from(workload)
    assert drawn_from(workload) == before
    first = draw(workload)
    assert drawn_from(workload) != before
    seed_everything((1, 2), workload)
    assert draw(workload) == first
    seed_everything((1, 3), workload)
    assert draw(workload) != first


def test_generators_of_a_workload_draw_other_numbers() -> None:
    workload: Any = Own()
    seed_everything(1, workload)
    assert len({draw(workload) for draw in DRAWS.values()}) == len(DRAWS)


def test_sets_that_are_divided_at_random_share_no_sample_and_leave_the_generators_alone() -> None:
    class Divided:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(5)

        def dataset(self, split: str) -> list[int]:
            order = [*torch.randperm(20).tolist(), *self.rng.permutation(20).tolist()]
            random.shuffle(order)
            return order[:30] if split == "train" else order[30:]

    first, second = Divided(), Divided()
    random.seed(7)
    before = drawn_from(first)
    samples = opened_dataset(first, "train") + opened_dataset(first, "eval")
    assert drawn_from(first) == before
    torch.manual_seed(3)
    assert sorted(samples) == sorted([*range(20), *range(20)])
    assert opened_dataset(second, "eval") == samples[30:] and opened_dataset(second, "train") == samples[:30]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_step_leaves_nothing_behind_for_devices_that_are_not_there() -> None:
    before = len(torch.cuda._queued_calls)
    seed_everything((1, 2))
    assert len(torch.cuda._queued_calls) == before


SEEDS = {
    (): 5740354900026072187,
    (0,): -8753497827991233192,
    (0, 1): -1950498447580522560,
    (1, 0): -5164621852614943976,
    (3, -1, 2**64): 3917584128784437839,
}


@pytest.mark.parametrize(("numbers", "seed"), SEEDS.items())
def test_one_seed_of_several_numbers_is_the_same_on_every_interpreter(numbers: tuple[int, ...], seed: int) -> None:
    assert mixed(*numbers) == seed, "or every curve changes"
