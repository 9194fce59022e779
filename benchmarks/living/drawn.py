"""The study that all systems train: transformers of different sizes, drawn by a seed, in a user's file."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORKLOAD = "characters.py:Characters"
DEPTHS, WIDTHS, BATCH = (2, 3, 4, 6), (64, 128, 192, 256, 320, 384), 16
NUM_DEVICES, DEVICE_MIB = 4, 96
"""Virtual devices. The largest candidates (6 blocks of width 384) need all four."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The candidates of a study by number, and how long each is trained."""

    candidates: Sequence[Mapping[str, Any]]
    steps: int
    seed: int
    num_devices: int = NUM_DEVICES

    def spec(self) -> dict[str, Any]:
        """The study as a user writes it."""
        return {
            "name": f"live study {self.seed}",
            "workload": WORKLOAD,
            "objective": {"metric": "loss", "direction": "minimize"},
            "space": {
                "depth": {"choice": list(DEPTHS)},
                "width": {"choice": list(WIDTHS)},
                "lr": {"low": 1e-4, "high": 1e-2, "log": True},
            },
            "start_with": list(self.candidates),
            "search": {"sampler": "random", "seed": self.seed},
            "stopping": {"rule": "none"},
            "budget": {"trials": len(self.candidates), "steps": self.steps, "report_every": max(1, self.steps // 4)},
        }


def draw(seed: int, num_trials: int, steps: int) -> Drawn:
    """Candidates of all sizes equally often; one of the largest is among them, at a drawn place."""
    rng = random.Random(seed)
    candidates = [_candidate(rng, DEPTHS, WIDTHS) for _ in range(num_trials)]
    candidates[rng.randrange(num_trials)] |= {"depth": max(DEPTHS), "width": max(WIDTHS)}
    return Drawn(candidates, steps, seed)


def draw_small(seed: int, num_trials: int, steps: int) -> Drawn:
    """Small candidates for two devices, to check that everything runs."""
    rng = random.Random(seed)
    return Drawn([_candidate(rng, DEPTHS[:2], WIDTHS[:2]) for _ in range(num_trials)], steps, seed, 2)


def _candidate(rng: random.Random, depths: Sequence[int], widths: Sequence[int]) -> dict[str, Any]:
    return {
        "depth": rng.choice(depths),
        "width": rng.choice(widths),
        "lr": round(10 ** rng.uniform(-4, -2), 6),
    }
