"""Asks for estimates of models that nobody has seen before: of ScaMP as a user gets them, and of torch's MemTracker."""

from __future__ import annotations

import atexit
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

import torch

from benchmarks.covering.asked import Asked
from benchmarks.curves.forks import CRASHED, HANGS, in_forks, limited
from benchmarks.estimating.measuring.tracker import tracked_peak_bytes
from estimators.model import Candidate, Layout
from estimators.tracing.tracer import trace
from scamp_service.settings import ROOT
from scamp_service.sizing.tracing.trace_process import TraceFailed, TraceProcess
from scamp_service.sizing.tracing.traces import Tracer
from scamp_service.study.user_code.bundling import bundle_code
from workloads.sandbox.recipe import recipe_of

SECONDS = 60  # of processor time for one estimate


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes of the predicted peak of tensors, or 0 and the first line of the ``refusal``; ``assumptions`` bound an
    answer. ``objects`` are bytes of autograd's objects beyond the tensors."""

    predicted: int
    wall_seconds: float
    cpu_seconds: float
    refusal: str
    assumptions: list[str] = field(default_factory=list)
    objects: int = 0


def ask(case: Asked) -> Answer:
    """ScaMP's answer, through the sandbox of a warm trace process, with nothing cached."""
    process, code = _process(), _bundled(case.path)
    candidate = Candidate(case.path, sha256(code).hexdigest(), case.params)
    with tempfile.TemporaryDirectory() as folder:
        tracer = Tracer(_Code(code), Path(folder), SECONDS)
        began, spent = time.monotonic(), _cpu_seconds(process)
        try:
            traced = tracer.trace(process, candidate, Layout())
        except TraceFailed as failed:
            reason = (failed.reason.splitlines() or ["no reason"])[0]
            return Answer(0, time.monotonic() - began, _cpu_seconds(process) - spent, reason)
        wall, cpu = time.monotonic() - began, _cpu_seconds(process) - spent
    return Answer(traced.curve.peak_bytes(case.batch), wall, cpu, "", list(traced.assumptions), traced.object_bytes)


class _Code:
    """The one zip of user files that a tracer asks for."""

    def __init__(self, code: bytes) -> None:
        self._code = code

    def get(self, sha256: str) -> bytes:
        return self._code


@cache
def _bundled(path: str) -> bytes:
    """The zip of a workload's file, as ``scamp estimate`` sends it from the root of the repository."""
    code = bundle_code(ROOT / "study", path, None)
    assert code is not None
    return code


@cache
def _process() -> TraceProcess:
    """A trace process that has warmed up."""
    process = TraceProcess()
    atexit.register(process.end)
    process.ask({"ask": "load", "workload": "stdlib_gpt", "code_zip": None, "code_dir": None}, SECONDS)
    return process


def _cpu_seconds(process: TraceProcess) -> float:
    """Processor seconds of the trace process and of its forks that have ended."""
    times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def tracked(case: Asked) -> Answer:
    """The answer of torch's ``MemTracker``, in a fork of this process and with the same limit of processor time."""
    said = _in_fork(lambda: json.dumps(asdict(_track(case))))
    return Answer(**json.loads(said)) if said else Answer(0, SECONDS, SECONDS, f"fails: more than {SECONDS} s")


def where_refused(case: Asked) -> str:
    """The line of the model's code at which a trace in a fork of this process fails; "" if it does not fail there."""
    return _in_fork(lambda: _failing_line(case))


def _failing_line(case: Asked) -> str:
    torch.set_num_threads(1)
    try:
        trace(recipe_of(case.workload()), Layout(), case.batch)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next(
            (f for f in reversed(frames) if "/transformers/" in f.filename or "/covering/" in f.filename), frames[-1]
        )
        return f"{'/'.join(Path(last.filename).parts[-2:])}:{last.lineno}: {last.line}"
    return ""


def _in_fork(work: Callable[[], str]) -> str:
    """Calls ``work`` in a fork of this process and returns its answer, or "" if it takes too long there."""
    (answer,) = in_forks([partial(limited, work, SECONDS)], 4 * SECONDS)  # MemTracker may wait for a lock that it holds
    return "" if answer in (HANGS, CRASHED) else answer


def _track(case: Asked) -> Answer:
    torch.set_num_threads(1)
    began, spent = time.monotonic(), time.process_time()
    refusal, peak = "", 0
    try:
        peak = tracked_peak_bytes(case)
    except Exception as error:  # any kind: a failure of the tracker is a result
        refusal = f"fails: {type(error).__name__}"
    return Answer(peak, time.monotonic() - began, time.process_time() - spent, refusal)
