"""Compares predicted peaks of the ranks of gangs with what real ranks on gloo allocate.

The models have depthwise, grouped, recurrent and normalising layers, and micro-batches of one to four samples: kernels
take other paths for these than for large ones.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from benchmarks.covering import divided
from benchmarks.estimating import ranks
from benchmarks.running.results import Finding, listed
from estimators.model import MIB, Plan
from workloads.function import FunctionWorkload
from workloads.protocol import Workload

Drawn = TypeVar("Drawn")
MOST_PERCENT = 3
NUM_DRAWN = 10
TITLE = "Peaks of the ranks of gangs"
HEADER = ("predicted MiB", "allocated MiB", "counted MiB", "error", "case")
ABOUT = f"""\
Peaks of real ranks on gloo, of models with depthwise, grouped, recurrent and normalising layers. Each row has the rank
with the largest error. "Allocated" is what torch's allocation hook reports of a training step, as the ranks of the
service do: it does not see what oneDNN allocates itself. "Counted" is every allocation from the C library in another
step, less the memory that libraries keep: it also has gloo's buffers and small objects. The true peak lies between the
two, and the error is the distance to the nearer one. The last {NUM_DRAWN} gangs are drawn by the seed."""


@dataclass(frozen=True)
class Gang(ranks.Planned):
    """A model of ``divided.py`` under a plan for several ranks."""

    params: dict[str, Any]
    plan: Plan

    def workload(self) -> Workload:
        return FunctionWorkload(divided.make, self.params)

    def __str__(self) -> str:
        model, *others = self.params.items()
        return " ".join([model[1], *(f"{name}={value}" for name, value in others)]) + f": {self.plan}"


def cases(quick: bool, seed: int) -> Sequence[Gang]:
    if quick:
        return [Gang(params_of("grouped", 128, size=64), Plan(1, dp_shard=2))]
    return with_drawn(list(_chosen()), draw, NUM_DRAWN, seed)


def with_drawn(chosen: Sequence[Drawn], draw: Callable[[random.Random], Drawn], num: int, seed: int) -> list[Drawn]:
    """The ``chosen`` cases and ``num`` drawn ones, each with a name of its own."""
    source, cases = random.Random(seed), {str(case): case for case in chosen}
    while len(cases) < len(chosen) + num:
        case = draw(source)
        cases.setdefault(str(case), case)
    return list(cases.values())


def params_of(model: str, width: int, **more: Any) -> dict[str, Any]:
    return {"model": model, "width": width, **more}


def _chosen() -> Iterator[Gang]:
    yield Gang(params_of("stages", 96, depth=4, size=128), Plan(1, dp_shard=4))
    yield Gang(params_of("stages", 96, depth=4, size=128), Plan(1, dp_shard=2))
    yield Gang(params_of("stages", 96, depth=4, size=96), Plan(3, dp_shard=4))
    yield Gang(params_of("convnext", 192, size=128), Plan(1, dp_shard=4))
    yield Gang(params_of("convnext", 96, size=128), Plan(4, dp_shard=2, recompute=True))
    yield Gang(params_of("convnext", 192, size=96), Plan(2, 2, tp=2))
    yield Gang(params_of("convnext", 192, size=96), Plan(2, dp_shard=2, tp=2))
    yield Gang(params_of("mobilenet", 64, size=128), Plan(1, dp_shard=2))
    yield Gang(params_of("mobilenet", 64, size=128), Plan(2, spatial=2))
    yield Gang(params_of("resnext", 256, size=128), Plan(1, dp_shard=4))
    yield Gang(params_of("resnext", 256, size=128), Plan(3, spatial=4))
    yield Gang(params_of("separable", 128, size=128), Plan(1, spatial=2))
    yield Gang(params_of("separable", 128, size=128), Plan(2, spatial=2, dp_shard=2))
    yield Gang(params_of("conformer", 384, size=256), Plan(1, dp_shard=2))
    yield Gang(params_of("conformer", 384, size=256), Plan(4, tp=4))
    yield Gang(params_of("grouped", 384, size=256), Plan(2, dp_shard=4))
    yield Gang(params_of("lstm", 512, size=96), Plan(1, dp_shard=2))
    yield Gang(params_of("lstm", 512, size=96), Plan(4, tp=2))
    yield Gang(params_of("gru", 512, size=96), Plan(2, dp_shard=4))
    yield Gang(params_of("gru", 512, size=96), Plan(3, 2, dp_shard=2, recompute=True))


def draw(source: random.Random) -> Gang:
    """A random gang of two or four ranks."""
    model, num = source.choice(divided.MODELS), source.choice([2, 4])
    params = params_of(model, source.choice([64, 128, 192, 256]), depth=source.choice([2, 3, 4]))
    params["size"] = source.choice([96, 128])
    if source.random() < 0.25:
        params["arithmetic"] = "amp"
    axes = ["dp_shard"] + ["tp"] * (model in divided.TENSOR_PARALLEL) + ["spatial"] * (model in divided.SPATIAL)
    spread: dict[str, Any] = {source.choice(axes): num}
    if source.random() < 0.3:
        spread["recompute"] = True
    return Gang(params, Plan(source.randint(1, 4), source.choice([1, 1, 2]), **spread))


@dataclass(frozen=True, slots=True)
class Result:
    """Peak bytes of each rank: predicted, by torch's allocation hook, and by ``heap.c``."""

    predicted: list[int]
    allocated: list[int]
    counted: list[int]

    @property
    def errors_pct(self) -> list[float]:
        """Distance of each rank's prediction to what is allocated and counted, in percent; negative: too low."""
        pairs = zip(self.predicted, zip(self.allocated, self.counted, strict=True), strict=True)
        return [100 * (p / min(max(p, min(ends)), max(ends)) - 1) for p, ends in pairs]

    @property
    def largest_error_pct(self) -> float:
        """The largest of the absolute errors."""
        return max(map(abs, self.errors_pct))

    @property
    def errors_by_hook_pct(self) -> list[float]:
        """Error of each rank's prediction in percent of what torch's allocation hook reports."""
        return [100 * (p / a - 1) for p, a in zip(self.predicted, self.allocated, strict=True)]

    def row(self) -> list[str]:
        worst = max(range(len(self.predicted)), key=lambda rank: abs(self.errors_pct[rank]))
        sizes = (f"{sizes[worst] / MIB:.1f}" for sizes in (self.predicted, self.allocated, self.counted))
        return [*sizes, f"{self.errors_pct[worst]:+.2f} %"]


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = [abs(error) for result in results for error in result.errors_pct]
    return {
        "conv_ranks_cases": len(results),
        "conv_ranks_max_pct": max(errors),
        "conv_ranks_median_pct": median(errors),
        "conv_ranks_by_hook_max_pct": max(abs(error) for result in results for error in result.errors_by_hook_pct),
    }


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every gang with an error of more than ``MOST_PERCENT``."""
    off = [finding for finding in findings if Result(**finding.values).largest_error_pct > MOST_PERCENT]
    return listed(off, lambda finding: ", ".join(finding.row))


def measure(case: Gang, seconds: float) -> Result:
    return compared(__name__, case, seconds)


def compared(module: str, case: ranks.Divided, seconds: float) -> Result:
    """The result of one gang whose ranks are processes of ``module``."""
    predicted = ranks.predict(case)
    pairs = [json.loads(line) for line in ranks.in_ranks(module, case, seconds)]
    return Result(predicted, [allocated for _, allocated in pairs], [counted for counted, _ in pairs])


if __name__ == "__main__":
    print(json.dumps(ranks.run_for_real(Gang.from_json(sys.argv[1]), int(sys.argv[3]), sys.argv[2], hooked=True)))
