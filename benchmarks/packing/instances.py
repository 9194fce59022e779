"""Small studies for the comparison with the optimum, drawn by a seed. Needs neither torch nor SQL nor OR-Tools."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.packing.costs import draw
from placement.model import Shape

NUM_INSTANCES = 40
NUM_CANDIDATES = 18
"""Candidates of the table that instances are drawn from: with more, all optima would have to be proven again."""
UNIT_SECONDS = 1.0
"""Seconds are rounded up to these, as CP-SAT counts in whole numbers."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Trials with their shapes, in whole seconds, on equal devices."""

    tasks: Sequence[Sequence[Shape]]
    num_devices: int

    @property
    def key(self) -> str:
        """Hash of all that the optimum depends on."""
        numbers = [[(shape.num_ranks, shape.seconds) for shape in shapes] for shapes in self.tasks]
        return hashlib.sha256(repr((numbers, self.num_devices)).encode()).hexdigest()[:16]


def instance(number: int) -> Instance:
    """An instance of 6 to 11 trials on 4 or 8 devices."""
    source = random.Random(f"optimum {number}")
    num_devices, num_trials = source.choice((4, 8)), source.randint(6, 11)
    tasks = []
    for training in draw(source.randrange(10**6, 10**7), num_trials, among=NUM_CANDIDATES):
        shapes = [_whole(option) for option in training.options if option.num_ranks <= num_devices]
        if shapes:
            tasks.append(shapes)
    return Instance(tasks, num_devices)


def _whole(shape: Shape) -> Shape:
    assert shape.seconds is not None
    return replace(shape, seconds=float(max(1, -int(-shape.seconds // UNIT_SECONDS))))
