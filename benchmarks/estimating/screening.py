"""Measures how long it takes to screen a space: 1,000 candidates of three workloads on up to 64 devices, without a GPU.

The cold run knows nothing; warm runs are the same screenings again. The answers for random candidates are compared with
the plans that are chosen for them by their own traces. Times are wall-clock seconds on all cores. Processor seconds of
the cold run say how long it would take on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from estimators.model import MIB
from placement.model import Cluster
from placement.option import NoPlan
from placement.planning.answers import ChosenPlan
from scamp_service.sizing.estimate import Estimator, equal_devices
from scamp_service.sizing.screen.screened import Screened, Screening
from scamp_service.sizing.screen.screening import screen
from scamp_service.sizing.tracing.options import Tracing
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.study.user_code.bundling import bundle_code

TITLE = "Screening a space"
HEADER = (
    "cold s",
    "cold CPU s",
    "warm s",
    "examples",
    "checked",
    "may be cheaper",
    "compared",
    "same plan",
    "MiB",
    "case",
)
ABOUT = """\
Wall-clock seconds to choose the plans of random candidates, GPTs, wide MLPs and 3D U-Nets, among all ways to spread
them. The cold run knows nothing; warm is the median of three runs of the same screenings again, whose answers are kept.
"Cold CPU" are the processor seconds of the cold run, in all processes. "Examples" are traced with a few blocks, and
"checked" candidates are traced whole to check the formulas. Candidates that "may be cheaper" on a plan whose memory
formulas cannot predict say so. For "compared" candidates the plan was chosen by their own traces as well; of these,
"same plan" counts the equal plans, and "MiB" is the largest difference of what equal plans reserve."""
NUM_WARM = 3
MLP = Path(__file__).with_name("wide_mlp.py")


@dataclass(frozen=True, slots=True)
class Space:
    """Numbers of random candidates by workload, and a cluster of ``count`` virtual devices of this many MiB.

    ``seed`` draws the candidates, and those of them to compare.
    """

    num_gpts: int
    num_mlps: int
    num_unets: int
    count: int
    mib: int
    num_compared: int
    seed: int

    def __str__(self) -> str:
        numbers = f"{self.num_gpts} GPTs, {self.num_mlps} MLPs and {self.num_unets} U-Nets"
        return f"{numbers} on up to {self.count} × {self.mib} MiB"


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds, numbers of traces, the number of candidates by the ranks of their plan, and how the answers compare.

    ``num_same`` of ``num_compared`` candidates have the plan of their own traces; these plans reserve up to
    ``difference_mib`` more or less. ``num_silent`` have another plan and do not say that there may be a cheaper one.
    ``differences`` are the other plans in words.
    """

    cold_seconds: float
    cold_cpu_seconds: float
    warm_seconds: float
    num_examples: int
    num_checked: int
    num_traced: int
    num_may_be_cheaper: int
    by_ranks: dict[str, int]
    num_compared: int
    num_same: int
    num_silent: int
    difference_mib: int
    differences: list[str]

    def row(self) -> list[str]:
        numbers = [self.num_examples, self.num_checked, self.num_may_be_cheaper, self.num_compared, self.num_same]
        times = [f"{self.cold_seconds:.1f}", f"{self.cold_cpu_seconds:.1f}", f"{self.warm_seconds:.2f}"]
        return [*times, *map(str, numbers), str(self.difference_mib)]


def cases(quick: bool, seed: int) -> Sequence[Space]:
    return [Space(30, 20, 4, 1, 1024, 2, seed)] if quick else [Space(600, 200, 200, 64, 4096, 60, seed)]


def figures(results: Sequence[Result]) -> dict[str, float]:
    (result,) = results
    return {
        "screen_cold_seconds": result.cold_seconds,
        "screen_cold_cpu_seconds": result.cold_cpu_seconds,
        "screen_warm_seconds": result.warm_seconds,
        "screen_may_be_cheaper": result.num_may_be_cheaper,
        "screen_same_plans": result.num_same / max(1, result.num_compared),
        "screen_silent_differences": result.num_silent,
        "screen_difference_mib": result.difference_mib,
    }


def measure(case: Space, seconds: float) -> Result:
    """The result of one case, on all cores; nothing stops it, so ``seconds`` is ignored."""
    cluster, drawn = equal_devices(case.count, case.mib), list(_drawn(case))
    with tempfile.TemporaryDirectory() as folder:

        def screened() -> tuple[list[Screening], float, float]:
            began, used = time.monotonic(), _processor_seconds()
            with TracePool() as pool:
                screenings = [screen(*arguments, cluster, Tracing(Path(folder), pool=pool)) for arguments in drawn]
            return screenings, time.monotonic() - began, _processor_seconds() - used

        screenings, cold, cold_cpu = screened()
        print(f"cold: {cold:.1f} s, {cold_cpu:.1f} s of processors", flush=True)
        warm = median(screened()[1] for _ in range(NUM_WARM))
        pairs = list(_compared(drawn, screenings, cluster, Path(folder), case))
    mismatches = [(candidate, alone) for candidate, alone in pairs if _plan(candidate.choice) != _plan(alone)]
    every = [candidate for screening in screenings for candidate in screening.candidates]
    return Result(
        cold,
        cold_cpu,
        warm,
        sum(screening.num_examples for screening in screenings),
        sum(screening.num_checked for screening in screenings),
        sum(bool(candidate.traced) for candidate in every),
        sum(candidate.may_be_cheaper for candidate in every),
        dict(sum(map(_by_ranks, screenings), Counter[str]())),
        len(pairs),
        len(pairs) - len(mismatches),
        sum(not candidate.may_be_cheaper for candidate, _ in mismatches),
        max((_difference_mib(candidate.choice, alone) for candidate, alone in pairs), default=0),
        [
            f"{json.dumps(dict(candidate.params))}: {candidate.reason} / {alone.reason}"
            for candidate, alone in mismatches
        ],
    )


_Drawn = tuple[str, bytes | None, list[dict[str, Any]]]


def _drawn(case: Space) -> Iterator[_Drawn]:
    """Yield each workload with the zip of its files and its candidates."""
    source = random.Random(case.seed)
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


def _compared(
    drawn: Sequence[_Drawn], screenings: Sequence[Screening], cluster: Cluster, folder: Path, case: Space
) -> Iterator[tuple[Screened, ChosenPlan | NoPlan]]:
    """Yield random candidates, each with the plan that is chosen by its own traces."""
    every = [(place, number) for place, (_, _, points) in enumerate(drawn) for number in range(len(points))]
    for place, number in random.Random(f"compared {case.seed}").sample(every, case.num_compared):
        workload, code, candidates = drawn[place]
        with Estimator(workload, code, Tracing(folder)) as estimator:
            yield screenings[place].candidates[number], estimator.plan(candidates[number], cluster)


def _plan(choice: ChosenPlan | NoPlan | None) -> object:
    return choice.plan if isinstance(choice, ChosenPlan) else None


def _difference_mib(first: ChosenPlan | NoPlan | None, other: ChosenPlan | NoPlan) -> int:
    """Difference of what a rank reserves under the same plan; 0 for other plans."""
    if not (isinstance(first, ChosenPlan) and isinstance(other, ChosenPlan) and first.plan == other.plan):
        return 0
    peaks = [choice.prediction.peak_bytes for choice in (first, other)]
    return -(-abs(peaks[0] - peaks[1]) // MIB)


def _processor_seconds() -> float:
    """Seconds of processors that this process has used, and its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _by_ranks(screening: Screening) -> Counter[str]:
    choices = [candidate.choice for candidate in screening.candidates]
    return Counter(str(choice.plan.world_size) if isinstance(choice, ChosenPlan) else "none" for choice in choices)
