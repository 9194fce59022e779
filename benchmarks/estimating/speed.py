"""Measures how long an estimate takes: for a known structure, for an exact replay, and for structures never seen.

Seconds are processor time. A new structure is traced in a fork of a process that has imported torch and traced a small
model, starting from the candidate's parameters, as in the service's trace process.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from estimators.memory import largest_micro_batch, predict
from estimators.model import Candidate, Layout, Plan
from estimators.peaks.allocator import replay
from estimators.trace import profile_of
from estimators.tracing.tracer import trace
from scamp_service.sizing.tracing.trace_process import TraceProcess
from scamp_service.sizing.tracing.traces import Tracer
from workloads.loading import load_workload
from workloads.sandbox.recipe import recipe_of
from workloads.sandbox.server import warm_up_tracing

GPT_1P3B = {"depth": 24, "width": 2048, "heads": 16, "context": 1024, "batch": 8}
GPT_7B = {"depth": 32, "width": 4096, "heads": 32, "context": 2048, "batch": 8}
NUM_NEW = 3
NUM_REPLAYED = 10
NUM_CACHED = 1000


class _NoCode:
    def get(self, sha256: str) -> bytes:
        raise KeyError(sha256)


TITLE = "How long an estimate takes"
HEADER = ("median s", "longest s", "case")
ABOUT = """\
Processor seconds for the peak, the reservation and the largest micro-batch of a plan whose layout was traced before
(known structure); for the replay of a GPU's caching allocator over two steps of such a plan; and for a trace of a
structure that was never seen before."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A case: ``figure`` is the key of its figure, ``words`` its name in the table."""

    figure: str
    words: str
    params: dict[str, Any]
    layout: Layout

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class Result:
    """Processor seconds of each repetition."""

    figure: str
    seconds: list[float]

    def row(self) -> list[str]:
        return [f"{median(self.seconds):.3g}", f"{max(self.seconds):.3g}"]


def cases(quick: bool, seed: int) -> Sequence[Speed]:
    every = [
        Speed("cached_ms", "known structure", {"depth": 2, "width": 64}, Layout()),
        Speed("replay_ms", "exact replay, GPT of 1.3B", GPT_1P3B, Layout()),
        Speed("new_1p3b_seconds", "new structure, GPT of 1.3B", GPT_1P3B, Layout()),
        Speed(
            "new_fsdp_7b_seconds",
            "new structure, GPT of 7B, FSDP over 8, recompute",
            GPT_7B,
            Layout(dp_shard=8, recompute=True),
        ),
    ]
    return every[:3] if quick else every


def measure(case: Speed, seconds: float) -> Result:
    """The result of one case; nothing stops a trace here, so ``seconds`` is ignored."""
    torch.set_num_threads(1)
    take = {"cached_ms": _cached, "replay_ms": _replayed}.get(case.figure, _new)
    return Result(case.figure, take(case))


def figures(results: Sequence[Result]) -> dict[str, float]:
    scale = {"cached_ms": 1e3, "replay_ms": 1e3}
    return {result.figure: scale.get(result.figure, 1) * median(result.seconds) for result in results}


def _new(case: Speed) -> list[float]:
    """Seconds measured in a new process: one that has traced before would reuse what it knows about operations."""
    command = [sys.executable, "-m", "benchmarks.estimating.speed", case.figure]
    seconds: list[float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return seconds


def _trace_new(figure: str) -> list[float]:
    case = next(case for case in cases(quick=False, seed=0) if case.figure == figure)

    def traced() -> None:
        trace(recipe_of(load_workload("stdlib_gpt", None)(case.params)), case.layout, case.params["batch"])

    warm_up_tracing()
    return [_in_fork(traced) for _ in range(NUM_NEW)]


def _replayed(case: Speed) -> list[float]:
    log = trace(recipe_of(load_workload("stdlib_gpt", None)(case.params)), case.layout, case.params["batch"]).log
    assert log is not None
    batch = case.params["batch"]
    return [_took(lambda: replay(log.run(batch), streams=log.streams(batch))) for _ in range(NUM_REPLAYED)]


def _cached(case: Speed) -> list[float]:
    params, plan, process = case.params, Plan(8), TraceProcess()
    with tempfile.TemporaryDirectory() as folder:
        tracer = Tracer(_NoCode(), Path(folder), seconds=60)
        try:
            tracer.trace(process, Candidate("stdlib_gpt", None, params), plan.layout)
        finally:
            process.end()

        def estimate() -> None:
            timed = tracer.cached(Candidate("stdlib_gpt", None, params), plan.layout)
            assert timed is not None
            profile = profile_of({plan.layout: timed})
            predict(profile, plan)
            largest_micro_batch(profile, plan.layout, 1024)

        return [_took(estimate) for _ in range(NUM_CACHED)]


def _in_fork(work: Callable[[], object]) -> float:
    """Processor seconds of ``work`` in a fork, so that its side effects on the process are gone afterwards."""
    result, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, struct.pack("d", _took(work)))
        finally:
            os._exit(0)
    os.close(write)
    with open(result, "rb") as pipe:
        (seconds,) = struct.unpack("d", pipe.read())
    os.waitpid(child, 0)
    return float(seconds)


def _took(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    print(json.dumps(_trace_new(sys.argv[1])))
