"""Measures how long it takes to screen a space: 1,000 candidates of three workloads on up to 64 devices, without a GPU.

The cold run knows nothing; warm runs are the same screenings again. The answers for a few candidates are compared with
those of ``scamp estimate``. Times are wall-clock seconds on all cores.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from placement.model import Cluster
from placement.planning.options import ChosenPlan
from scamp_service.client import bundle_code
from scamp_service.sizing.estimate import Estimator, devices
from scamp_service.sizing.screening import Screened, Screening, screen

TITLE = "Screening a space"
HEADER = ("cold s", "warm s", "examples", "checked", "traced alone", "compared", "differences", "case")
ABOUT = """\
Wall-clock seconds to choose the plans of random candidates, GPTs, wide MLPs and 3D U-Nets, among all ways to spread
them. The cold run knows nothing; warm is the median of three runs of the same screenings again, whose answers are kept.
"Examples" are traced with a few blocks, "checked" candidates are traced whole to check the formulas, and candidates
are "traced alone" where there is no formula, under one layout or under all. "Compared" candidates were estimated by
themselves as well; "differences" counts those whose plan, memory or reason is another one."""
NUM_WARM = 3
MLP = Path(__file__).with_name("wide_mlp.py")


@dataclass(frozen=True, slots=True)
class Space:
    """Numbers of random candidates by workload, and a cluster of ``count`` virtual devices of so many MiB."""

    num_gpts: int
    num_mlps: int
    num_unets: int
    count: int
    mib: int
    num_compared: int

    def __str__(self) -> str:
        numbers = f"{self.num_gpts} GPTs, {self.num_mlps} MLPs and {self.num_unets} U-Nets"
        return f"{numbers} on up to {self.count} × {self.mib} MiB"


@dataclass(frozen=True, slots=True)
class Result:
    """Wall-clock seconds, numbers of traces, the number of candidates by the ranks of their plan, and how many of those
    compared have another answer than an estimate."""

    cold_seconds: float
    warm_seconds: float
    num_examples: int
    num_checked: int
    num_alone: int
    by_ranks: dict[str, int]
    num_compared: int
    num_differences: int

    def row(self) -> list[str]:
        """The cells of the table under ``HEADER``, without the case."""
        numbers = [self.num_examples, self.num_checked, self.num_alone, self.num_compared, self.num_differences]
        return [f"{self.cold_seconds:.1f}", f"{self.warm_seconds:.2f}", *map(str, numbers)]


def cases(quick: bool, seed: int) -> Sequence[Space]:
    """The one case, or a small one; ``seed`` is not used."""
    return [Space(30, 20, 4, 1, 1024, 2)] if quick else [Space(600, 200, 200, 64, 4096, 20)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Cold and warm seconds and the number of differences of the one result."""
    (result,) = results
    return {
        "screen_cold_seconds": result.cold_seconds,
        "screen_warm_seconds": result.warm_seconds,
        "screen_differences": result.num_differences,
    }


def measure(case: Space, seconds: float) -> Result:
    """The result of one case, on all cores; nothing stops it, so ``seconds`` is ignored."""
    cluster, drawn = devices(case.count, case.mib), list(_drawn(case))
    with tempfile.TemporaryDirectory() as folder:

        def screened() -> tuple[list[Screening], float]:
            began = time.monotonic()
            found = [screen(workload, code, some, cluster, Path(folder)) for workload, code, some in drawn]
            return found, time.monotonic() - began

        found, cold = screened()
        warm = median(screened()[1] for _ in range(NUM_WARM))
        differences = _num_differences(drawn, found, cluster, Path(folder), case.num_compared)
    return Result(
        cold,
        warm,
        sum(one.num_examples for one in found),
        sum(one.num_checked for one in found),
        sum(len(one.alone) for one in found),
        dict(sum(map(_by_ranks, found), Counter[str]())),
        case.num_compared,
        differences,
    )


_Drawn = tuple[str, bytes | None, list[dict[str, Any]]]


def _drawn(case: Space) -> Iterator[_Drawn]:
    """Yield each workload with the zip of its files and its candidates."""
    source = random.Random(0)
    yield "stdlib_gpt", None, [draw(source) for _ in range(case.num_gpts)]
    workload = f"{MLP.name}:WideMlp"
    code = bundle_code(MLP.parent / "study", workload, None)
    yield workload, code, [_mlp(source) for _ in range(case.num_mlps)]
    yield "unet3d_blobs", None, [_unet(source) for _ in range(case.num_unets)]


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


def _mlp(source: random.Random) -> dict[str, Any]:
    return {
        "depth": source.randint(2, 24),
        "width": 256 * source.randint(1, 32),
        "inputs": 64 * source.randint(1, 16),
        "batch": source.choice([64, 256, 1024]),
        "lr": 10 ** source.uniform(-4, -2),
    }


def _unet(source: random.Random) -> dict[str, Any]:
    return {
        "levels": source.choice([1, 2]),
        "width": source.choice([4, 8, 16]),
        "side": source.choice([8, 16, 32]),
        "batch": 8,
        "lr": 10 ** source.uniform(-3, -2),
    }


def _num_differences(
    drawn: Sequence[_Drawn], found: Sequence[Screening], cluster: Cluster, folder: Path, num: int
) -> int:
    """How many of ``num`` random candidates have another answer in an estimate of their own."""
    every = [(place, number) for place, (_, _, some) in enumerate(drawn) for number in range(len(some))]
    differences = 0
    for place, number in random.Random(1).sample(every, num):
        workload, code, candidates = drawn[place]
        with Estimator(workload, code, folder) as estimator:
            alone = estimator.estimate(candidates[number], cluster)
        expected = Screened(alone.params, alone.batch, alone.choice, alone.profile.assumed)
        differences += _answer(found[place].candidates[number]) != _answer(expected)
    return differences


def _answer(one: Screened) -> tuple[Any, ...]:
    chosen = one.choice if isinstance(one.choice, ChosenPlan) else None
    return (one.reason, chosen.plan, chosen.prediction.peak_bytes) if chosen else (one.reason,)


def _by_ranks(screening: Screening) -> Counter[str]:
    choices = [one.choice for one in screening.candidates]
    return Counter(str(choice.plan.world_size) if isinstance(choice, ChosenPlan) else "none" for choice in choices)
