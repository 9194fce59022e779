"""How long gangs of a whole node wait while enough devices are idle on several, with and without moves of others."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scamp_service.control.decide import preempt
from scamp_service.settings import Settings
from scamp_service.simulation.outcome import Simulated
from scamp_service.simulation.replay import ReplayOptions, Submitted, simulate
from scamp_service.sizing.cluster_file import cluster_named
from scamp_service.study.spec import StudySpec

NODES, PER_NODE = 4, 4
NUM_GANGS, AT_ONCE = 6, 2
GANG_STEPS, STEPS = 3_000_000, (1e6, 3e7)
TITLE = f"Space: {NODES} nodes with {PER_NODE} GPUs, gangs of {PER_NODE} beside trials of 1"
HEADER = ("waits without s", "waits with s", "makespan without h", "with h", "moves", "studies")
ABOUT = f"""\
Ten studies of two small trials, with steps drawn from a logarithmic range, and one of {NUM_GANGS} gangs that need
{PER_NODE} GPUs each; at most {AT_ONCE} gangs run at once. The controller of the service runs all of them in virtual
time, one gang on each GPU. "Waits" are the seconds in which as many GPUs are idle as a gang needs, and none starts,
since they are on several nodes. "With": small trials move to idle GPUs of other nodes, and a gang then has a node to
itself; each move counts as 20 s at least. The rule was written with seeds 0 to 3, and others judge it."""


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of waits and of makespans, without and with moves, and how many moves there were."""

    waits: tuple[float, float]
    makespans: tuple[float, float]
    num_moves: int

    def row(self) -> list[str]:
        hours = [f"{seconds / 3600:.2f}" for seconds in self.makespans]
        return [*(f"{seconds:.0f}" for seconds in self.waits), *hours, str(self.num_moves)]


@dataclass(frozen=True, slots=True)
class Case:
    """Studies that a seed draws."""

    seed: int

    def __str__(self) -> str:
        return f"seed {self.seed}"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(seed + 4 + n) for n in range(1 if quick else 8)]


def measure(case: Case, seconds: float) -> Result:
    """Simulate the studies with and without moves; ``seconds`` is not used."""
    studies = draw(case.seed)
    with _without_moves():
        before = _simulated(studies)
    after = _simulated(studies)
    waits = fragmented_seconds(before), fragmented_seconds(after)
    return Result(waits, (before.makespan, after.makespan), len(after.spans) - len(before.spans))


def draw(seed: int) -> Sequence[Submitted]:
    """Small studies and one of gangs."""
    source, (low, high) = random.Random(seed), map(math.log, STEPS)
    small = [_study(2, round(math.exp(source.uniform(low, high))), {"micro_batch": 16}) for _ in range(10)]
    gangs = _study(NUM_GANGS, GANG_STEPS, {"micro_batch": 4, "dp_shard": PER_NODE}, max_concurrent=AT_ONCE)
    return [Submitted(study) for study in (*small, gangs)]


def _study(trials: int, steps: int, plan: dict[str, int], **budget: Any) -> StudySpec:
    fields = {
        "name": "space",
        "workload": "vit_digits",
        "objective": {"metric": "accuracy"},
        "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
        "fixed": {"depth": 2, "width": 32, "batch": 16},
        "search": {"sampler": "random"},
        "stopping": {"rule": "none"},
        "plan": plan,
        "budget": {"trials": trials, "steps": steps, "report_every": steps // 10, **budget},
    }
    return StudySpec.model_validate(fields)


@cache
def _profiles() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="scamp-space-")


def _simulated(studies: Sequence[Submitted]) -> Simulated:
    options = ReplayOptions(Path(_profiles().name), max_gangs_per_device=1)
    simulated = simulate(studies, cluster_named(f"{NODES}x{PER_NODE}xA100-80", Settings()), options)
    assert not simulated.why_unfinished, simulated.why_unfinished
    return simulated


@contextmanager
def _without_moves() -> Iterator[None]:
    with patch.object(preempt, "_moved", lambda *_: ()):
        yield


def fragmented_seconds(simulated: Simulated) -> float:
    """Seconds in which enough devices for a gang are idle, another one may run, and none does."""
    gangs = [span for span in simulated.spans if len(span.devices) == PER_NODE]
    times = sorted({time for span in simulated.spans for time in (span.start, span.end)})
    waits = 0.0
    for now, then in itertools.pairwise(times):
        busy = sum(len(span.devices) for span in simulated.spans if span.start <= now < span.end)
        begun = sum(gang.start <= now for gang in gangs)
        running = sum(gang.start <= now < gang.end for gang in gangs)
        if NODES * PER_NODE - busy >= PER_NODE and begun < NUM_GANGS and running < AT_ONCE:
            waits += then - now
    return waits


def figures(results: Sequence[Result]) -> dict[str, float]:
    without, with_moves = (sum(waits) for waits in zip(*(result.waits for result in results), strict=True))
    before, after = (sum(ends) for ends in zip(*(result.makespans for result in results), strict=True))
    return {"fragmented_wait_ratio": with_moves / without, "fragmented_makespan_ratio": after / before}
