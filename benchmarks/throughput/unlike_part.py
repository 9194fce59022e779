"""Times trainings on two ranks, one of them slowed down, with even and with uneven parts of the work."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.curves.forks import in_forks
from benchmarks.features.feature import Feature
from benchmarks.features.running import reports_of
from estimators.model import Plan
from placement.exact.shares import Member, Shares, best_shares

STEPS, ROUNDS = 12, 3
SLOWER = 2
DEPTH, BATCH = 8, 24
PAUSE_SECONDS = 0.01
TITLE = "Uneven parts on unlike devices"
ABOUT = f"""\
`stdlib_gpt` trains on two ranks. One stands for a device that is {SLOWER} times slower: another process stops it for
half of each {2000 * PAUSE_SECONDS:.0f} ms, which needs two idle cores. *Even*: both ranks have as many samples, or
blocks. *Uneven*: shares of the batch as the planner divides it, or the cut of a pipeline whose slower stage takes
least. Seconds of a step are medians of {ROUNDS} runs in turn; a ratio below 1 says that uneven parts are faster."""
HEADER = ("even, s", "uneven, s", "ratio", "case")


@dataclass(frozen=True)
class Case:
    """A plan with even parts of the work, and one with uneven parts."""

    even: Plan
    uneven: Plan

    def __str__(self) -> str:
        return f"{self.even} → {self.uneven}"


@dataclass(frozen=True, slots=True)
class Result:
    even_seconds: float
    uneven_seconds: float

    @property
    def ratio(self) -> float:
        return self.uneven_seconds / self.even_seconds

    def row(self) -> list[str]:
        return [f"{self.even_seconds:.3f}", f"{self.uneven_seconds:.3f}", f"{self.ratio:.2f}"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    shares = best_shares([Member(seconds, 0, 1) for seconds in (1.0, SLOWER)], BATCH)
    assert isinstance(shares, Shares)
    first = min(range(1, DEPTH), key=lambda blocks: max(blocks, SLOWER * (DEPTH - blocks)))
    return [
        Case(Plan(BATCH // 2, dp_replicate=2), Plan(max(shares.samples), dp_replicate=2, shares=shares.samples)),
        Case(Plan(3, BATCH // 3, pp=2), Plan(3, BATCH // 3, pp=2, cut=(first, DEPTH - first))),
    ][: 1 if quick else None]


def measure(case: Case, seconds: float) -> Result:
    runs = [(_step_seconds(case.even, seconds), _step_seconds(case.uneven, seconds)) for _ in range(ROUNDS)]
    even, uneven = map(median, zip(*runs, strict=True))
    return Result(even, uneven)


def _step_seconds(plan: Plan, seconds: float) -> float:
    params = {"depth": DEPTH, "width": 256, "batch": BATCH, "learning_rate": 1e-3}
    feature = Feature("GPT", "stdlib_gpt", (plan,), params)
    with tempfile.TemporaryDirectory(prefix="scamp-unlike-") as folder:
        ranks = [partial(_seconds_of_rank, feature, plan, rank, Path(folder)) for rank in range(plan.world_size)]
        answers = in_forks(ranks, seconds)
    if failed := [answer for answer in answers if not isinstance(answer, float)]:
        raise RuntimeError(f"{plan}: {failed}")
    slowest: float = max(answers)
    return slowest


def _seconds_of_rank(feature: Feature, plan: Plan, rank: int, folder: Path) -> float:
    """Median seconds of a step, which rank 0 reports."""
    if rank == 1:
        _slow_down(os.getpid())
    return reports_of(feature, plan, rank, folder, STEPS, STEPS).step_seconds


def _slow_down(pid: int) -> None:
    """Start a process that stops this one for half of the time, until it ends."""
    if os.fork():
        return
    while os.getppid() == pid:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(pid, number)
            time.sleep(PAUSE_SECONDS)
    os._exit(0)


def figures(results: Sequence[Result]) -> dict[str, float]:
    return {"mixed_trained_ratio": max(result.ratio for result in results)}
