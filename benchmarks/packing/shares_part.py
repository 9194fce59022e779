"""Compares the makespans of studies with and without unlike shares, on two kinds of GPUs that are too few each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from benchmarks.packing.costs import draw
from benchmarks.packing.mixed_part import KINDS, SPEEDS, devices_of
from placement.exact.shares import Member, Shares, best_shares
from placement.model import Cluster, Shape
from placement.packing.packer import pack
from placement.simulation.progress import Domains
from placement.simulation.schedule import Job, ScheduleOptions, schedule

SEEDS = 10
NEEDED = 8

TITLE = "Unlike shares of the batch on V100-16 and T4"
HEADER = ("mean", "spread", "least", "most", "gangs", "trials")
ABOUT = f"""\
Makespans with unlike shares over those without, for {SEEDS} seeds: mean, standard deviation, extremes, and how many
gangs take shares. Trials are those of the tables above, with shares in whole samples by the speed of data sheets. Every
trial needs {NEEDED} devices of a cluster of {NEEDED // 2} V100-16 and {NEEDED // 2} T4, so all gangs have both kinds:
there studies take shares (`placement/exact/traced_shares.py`). A step is as slow as its slowest rank, messages
included. Where each kind has enough devices studies offer no shares: offered to 4 to 200 trials on 16 of each, they
changed no makespan by 0.1 % (2026-11-26), because `pack` keeps both kinds busy."""


@dataclass(frozen=True)
class Case:
    """Drawn studies of so many trials."""

    num_trials: int
    seed: int

    def __str__(self) -> str:
        return f"{self.num_trials}"


@dataclass(frozen=True, slots=True)
class Result:
    """Makespans with shares over those without, and the gangs that took shares."""

    ratios: list[float]
    num_taken: int

    def row(self) -> list[str]:
        figures = fmean(self.ratios), pstdev(self.ratios), min(self.ratios), max(self.ratios)
        return [*(f"{figure:.3f}" for figure in figures), str(self.num_taken)]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(4 if quick else 16, seed)]


def measure(case: Case, seconds: float) -> Result:
    """Simulate the studies with and without shares; ``seconds`` is not used."""
    ratios, num_taken = [], 0
    for seed in range(case.seed, case.seed + SEEDS):
        gangs = [
            (trial.static, unlike(trial.static, trial.static.seconds or 0.0, trial.batch))
            for trial in draw(seed, case.num_trials)
        ]
        shared, equal = (
            _makespan([Job(f"{n}", (pair[way] or pair[0],)) for n, pair in enumerate(gangs)]) for way in (1, 0)
        )
        ratios.append(shared / equal)
        num_taken += sum(shares is not None for _, shares in gangs)
    return Result(ratios, num_taken)


def _makespan(jobs: Sequence[Job]) -> float:
    devices = devices_of(1, NEEDED // 2)
    speeds = {device.id: SPEEDS[device.kind] for device in devices}
    return schedule(jobs, Cluster(tuple(devices)), pack, ScheduleOptions(domains=Domains({}, speeds))).makespan


def unlike(shape: Shape, seconds: float, batch: int) -> Shape | None:
    """The shape with half of its ranks on each kind, of ``seconds`` on one kind; None if its batch is too small."""
    fast, slow = (Member(1 / SPEEDS[kind], 0, 0) for kind in KINDS)
    num = shape.num_ranks
    shares = best_shares([fast] * (num // 2) + [slow] * (num - num // 2), batch) if num > 1 else None
    if not isinstance(shares, Shares) or len(set(shares.samples)) == 1:
        return None
    waiting = seconds * (shape.communication_share or 0.0)
    all_seconds = waiting + (seconds - waiting) * shares.seconds / (batch / num)
    # Speeds of devices slow the slower ranks down by their share of the largest one.
    largest = max(shares.samples)
    alone = waiting + (seconds - waiting) * largest / (batch / num)
    assert alone <= all_seconds * (1 + 1e-9)
    mibs = (shape.mib_per_rank,) * num
    return replace(shape, seconds=alone, communication_share=waiting / alone, mibs=mibs, samples=shares.samples)


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Mean ratio where no kind has enough devices."""
    return {"shares_needed_ratio": fmean(ratio for result in results for ratio in result.ratios)}
