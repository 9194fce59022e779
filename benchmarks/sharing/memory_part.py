"""Memory of a pack against that of its members in processes of their own, and against what is predicted for it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.estimating.measuring import heap
from benchmarks.estimating.measuring.counted import peak_over_kept
from benchmarks.running.process import last_line
from benchmarks.sharing.drawn import FOLDER, WORKLOAD, job_of, together
from estimators.model import MIB, Layout
from estimators.tracing.tracer import trace
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of

TITLE = "Memory"
HEADER = ("predicted MiB", "together MiB", "error", "alone MiB", "together / alone", "case")
ABOUT = """\
The most bytes that a training has allocated from the C library at once, as counted by a library that is loaded before
it, less what is kept when it has ended. *Alone*: the sum over a process for each member. *Predicted*: the frozen
weights once, and for each member the peak of its trace without them. Joining and the first passes, which are compared
with passes alone, count. MKL's buffers for each thread are switched off here: a rank has its own before its budget
begins, and a pack some more for each member."""
NUM, STEPS, BATCH = 8, 4, 4


@dataclass(frozen=True)
class Case:
    """A pack of adapters of a model of this width."""

    width: int

    def __str__(self) -> str:
        return f"{NUM} adapters, width {self.width}"

    def params(self, number: int) -> dict[str, Any]:
        return {"rank": 4, "batch": BATCH, "lr": 1e-3 * (1 + number), "steps": STEPS, "width": self.width}


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes: predicted for the pack, of the pack, and of all members alone."""

    predicted_bytes: int
    together_bytes: int
    alone_bytes: int

    @property
    def ratio(self) -> float:
        return self.together_bytes / self.alone_bytes

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted_bytes / self.together_bytes - 1)

    def row(self) -> list[str]:
        predicted, measured, alone = (
            f"{num_bytes / MIB:.1f}" for num_bytes in (self.predicted_bytes, self.together_bytes, self.alone_bytes)
        )
        return [predicted, measured, f"{self.error_pct:+.1f} %", alone, f"{self.ratio:.2f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(256)] if quick else [Case(512), Case(1024)]


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    if not results:
        return {}
    return {
        "pack_memory_ratio": max(result.ratio for result in results),
        "pack_peak_max_pct": max((result.error_pct for result in results), key=abs),
    }


def measure(case: Case, seconds: float) -> Result:
    with heap.counting() as counter:
        environment = {**counter, "MKL_DISABLE_FAST_MM": "1"}

        def counted(numbers: Sequence[int]) -> int:
            request = json.dumps([case.width, list(numbers)])
            return int(last_line("-m", __name__, request, seconds=seconds, **environment))

        return Result(_predicted(case), counted(range(NUM)), sum(counted([number]) for number in range(NUM)))


def _predicted(case: Case) -> int:
    traced = trace(recipe_of(load_workload(WORKLOAD, FOLDER)(case.params(0))), Layout(), BATCH)
    return traced.frozen_bytes + NUM * (traced.curve.peak_bytes(BATCH) - traced.frozen_bytes)


def _trained(width: int, numbers: Sequence[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        heap.forget_peak()
        together([job_of(number, Case(width).params(number), Path(folder), STEPS) for number in numbers], {})


def run_for_real(width: int, numbers: Sequence[int]) -> int:
    """Peak bytes of these members in this process, which has trained a small one before."""
    return peak_over_kept(partial(_trained, 64, [NUM]), partial(_trained, width, numbers))


if __name__ == "__main__":
    print(run_for_real(*json.loads(sys.argv[1])))
