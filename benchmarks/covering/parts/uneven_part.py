"""Compares predicted peaks with those of real ranks on gloo where no number of ranks divides the rows of a model."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.covering import uneven
from benchmarks.covering.parts import gangs_part
from benchmarks.estimating import ranks
from estimators.model import Plan
from workloads.function import FunctionWorkload
from workloads.protocol import Workload

NUM_DRAWN = 5
TITLE = "Peaks of ranks that do not divide the rows of a model"
HEADER = gangs_part.HEADER
ABOUT = f"""\
Peaks of real ranks on gloo, of models of plain layers, LSTMs and mixtures of experts with rows that no rank divides:
FSDP pads their shards, and a CPU copies their gradients. Columns and errors are as for the gangs above. Predictions are
for the rank with the largest part, so each row has the rank that needs most: the last one may have fewer rows, or none.
The last {NUM_DRAWN} gangs are drawn by the seed."""
_ROWS = {"plain": (8001, 40009), "lstm": (301, 611), "chunked_lstm": (301, 611), "experts": (5, 11)}
Result = gangs_part.Result


@dataclass(frozen=True)
class Gang(gangs_part.Gang):
    """A model of ``uneven.py`` under a plan for several ranks."""

    def workload(self) -> Workload:
        return FunctionWorkload(uneven.make, self.params)


def cases(quick: bool, seed: int) -> Sequence[Gang]:
    chosen = list(_chosen())
    if quick:
        return chosen[:1]
    source = random.Random(seed)
    return [*chosen, *(draw(source) for _ in range(NUM_DRAWN))]


def _params(model: str, rows: int, **more: Any) -> dict[str, Any]:
    return {"model": model, "rows": rows, **more}


def _chosen() -> Iterator[Gang]:
    yield Gang(_params("plain", 20011), Plan(2, dp_shard=2))
    yield Gang(_params("plain", 20011, depth=3), Plan(1, dp_shard=4))
    yield Gang(_params("plain", 20011), Plan(2, 2, dp_shard=2, reshard=False))
    yield Gang(_params("plain", 20011), Plan(2, dp_shard=2, dp_replicate=2))
    yield Gang(_params("lstm", 511, depth=2), Plan(2, dp_shard=2))
    yield Gang(_params("lstm", 511), Plan(4, dp_replicate=2))
    yield Gang(_params("chunked_lstm", 511), Plan(2, dp_shard=2))
    yield Gang(_params("chunked_lstm", 511), Plan(2, dp_replicate=2))
    yield Gang(_params("experts", 7, depth=2), Plan(2, dp_shard=2))
    yield Gang(_params("experts", 9), Plan(4, dp_shard=2, recompute=True))


def draw(source: random.Random) -> Gang:
    """A random gang of two or four ranks."""
    model, num = source.choice(list(uneven.MODELS)), source.choice([2, 2, 4])
    least, most = _ROWS[model]
    params = _params(
        model, source.randrange(least, most, 2), depth=source.choice([1, 2, 3]), size=source.choice([16, 48])
    )
    spread: dict[str, Any] = {"dp_shard": num}
    if source.random() < 0.3:
        spread["recompute"] = True
    return Gang(params, Plan(source.randint(1, 4), source.choice([1, 1, 2]), **spread))


def figures(results: Sequence[Result]) -> dict[str, float]:
    errors = [abs(error) for result in results for error in result.errors_pct]
    return {"uneven_ranks_cases": len(results), "uneven_ranks_max_pct": max(errors)}


def measure(case: Gang, seconds: float) -> Result:
    """The result of the rank that needs most; ``seconds`` limits the real run of the gang."""
    result = gangs_part.compared(__name__, case, seconds)
    largest = max(range(case.plan.world_size), key=result.counted.__getitem__)
    return Result([result.predicted[largest]], [result.allocated[largest]], [result.counted[largest]])


if __name__ == "__main__":
    print(json.dumps(ranks.run_for_real(Gang.from_json(sys.argv[1]), int(sys.argv[3]), sys.argv[2], hooked=True)))
