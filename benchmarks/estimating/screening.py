"""Measures how long it takes to screen a space: 1,000 GPTs of many shapes on up to 64 GPUs of one kind, without a GPU.

The cold run knows nothing; warm runs use the formulas that it has kept. Times are wall-clock seconds on all cores.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from placement.planning.options import ChosenPlan
from scamp_service.settings import Settings
from scamp_service.sizing.estimate import target
from scamp_service.sizing.screening import Screening, screen

TITLE = "Screening a space"
HEADER = ("cold s", "warm s", "examples", "checked", "traced alone", "case")
ABOUT = """\
Wall-clock seconds to plan random candidates at every degree (1, 2, 4, … ranks, with and without recompute and
accumulation). The cold run knows nothing; warm is the median of three runs with the formulas that the cold run found.
"Examples" are traced with a few blocks, "checked" candidates are traced whole to check the formulas, and candidates
without formulas are "traced alone"."""
NUM_WARM = 3


@dataclass(frozen=True, slots=True)
class Space:
    """A number of random candidates, and a cluster of ``count`` devices of one kind."""

    num_candidates: int
    device: str
    count: int

    def __str__(self) -> str:
        return f"{self.num_candidates} GPTs on up to {self.count} × {self.device}"


@dataclass(frozen=True, slots=True)
class Result:
    """Wall-clock seconds, numbers of traces, and the number of candidates by the ranks of their plan."""

    cold_seconds: float
    warm_seconds: float
    num_examples: int
    num_checked: int
    num_alone: int
    by_ranks: dict[str, int]

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        numbers = [self.num_examples, self.num_checked, self.num_alone]
        return [f"{self.cold_seconds:.1f}", f"{self.warm_seconds:.2f}", *map(str, numbers)]


def cases(quick: bool, seed: int) -> Sequence[Space]:
    """The one case, or a small one; ``seed`` is not used."""
    return [Space(50, "V100-16", 1)] if quick else [Space(1000, "V100-16", 64)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Cold and warm seconds of the one result."""
    (result,) = results
    return {"screen_cold_seconds": result.cold_seconds, "screen_warm_seconds": result.warm_seconds}


def measure(case: Space, seconds: float) -> Result:
    """The result of one case, on all cores; nothing stops it, so ``seconds`` is ignored."""
    source = random.Random(0)
    candidates = [draw(source) for _ in range(case.num_candidates)]
    cluster, kind = target(Settings(), case.device, case.count, None)
    with tempfile.TemporaryDirectory() as folder:

        def screened() -> tuple[Screening, float]:
            began = time.monotonic()
            found = screen("stdlib_gpt", None, candidates, cluster, Path(folder), kind)
            return found, time.monotonic() - began

        found, cold = screened()
        warm = median(screened()[1] for _ in range(NUM_WARM))
    return Result(cold, warm, found.num_examples, found.num_checked, len(found.alone), dict(_by_ranks(found)))


def draw(source: random.Random) -> dict[str, Any]:
    """Random parameters of a GPT with half a million to thirteen billion weights."""
    heads = source.choice([2, 4, 8, 16, 32])
    return {
        "depth": source.randint(2, 48),
        "width": heads * source.choice([16, 32, 64, 128]),
        "heads": heads,
        "context": source.choice([64, 128, 256, 512, 1024, 2048]),
        "batch": source.choice([64, 128, 256, 512]),
        "lr": 10 ** source.uniform(-4, -2),
    }


def _by_ranks(screening: Screening) -> Counter[str]:
    choices = [one.choice for one in screening.candidates]
    return Counter(str(choice.plan.world_size) if isinstance(choice, ChosenPlan) else "none" for choice in choices)
