from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from workloads.training.seeds import drawn_from, seed_everything


class Own:
    def __init__(self) -> None:
        self.torch = torch.Generator()
        self.numpy = np.random.default_rng(0)
        self.legacy = np.random.RandomState(0)
        self.python = random.Random(0)


DRAWS = {
    "torch": lambda own: torch.rand(()).item(),
    "numpy": lambda own: np.random.rand(),
    "python": lambda own: random.random(),
    "own torch": lambda own: torch.rand((), generator=own.torch).item(),
    "own numpy": lambda own: own.numpy.random(),
    "own legacy": lambda own: own.legacy.rand(),
    "own python": lambda own: own.python.random(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_every_generator_draws_the_same_after_the_same_seed_and_is_seen(draw: Any) -> None:
    own: Any = Own()
    seed_everything((1, 2), own)
    before = drawn_from(own)
    assert drawn_from(own) == before
    first = draw(own)
    assert drawn_from(own) != before
    seed_everything((1, 2), own)
    assert draw(own) == first
    seed_everything((1, 3), own)
    assert draw(own) != first


def test_generators_of_a_workload_draw_other_numbers() -> None:
    own: Any = Own()
    seed_everything(1, own)
    assert len({draw(own) for draw in DRAWS.values()}) == len(DRAWS)
