"""Compares the estimator's answer to "does it fit?" with real steps under a limit that the operating system enforces.

A rank is warmed up as in the service, and forked for every cap: as a new rank, and as a used one that has run the same
model before. How the run ends is compared with two decisions: by the traced peak alone, and by the peak plus margin,
which is what the service reserves. Gangs are left out, as their ranks need extra memory (``GANG_MARGIN_BYTES``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.curves.forks import CRASHED, in_forks
from benchmarks.estimating.case import Case, Steps
from benchmarks.running.process import last_line
from estimators.memory import predict
from estimators.model import MIB, Plan
from estimators.profile import ModelProfile
from estimators.tracing.tracer import trace
from workloads.parallel.apply import apply_plan
from workloads.sandbox.recipe import recipe_of
from workloads.training.memory import budget
from workloads.training.step import train_step
from workloads.training.warm_up import warm_up

TITLE = "Does it fit?"
CAPS_PERCENT = (90, 94, 97, 100, 103, 106, 110)  # of the traced peak; one more run has the reserved memory as its cap
BAND_PERCENT = 3  # closer to the peak than this, memory outside tensors decides
NUM_STEPS = 3
CPU = torch.device("cpu")
HEADER = ("peak MiB", "reserved MiB", *(f"{percent} %" for percent in CAPS_PERCENT), "as reserved", "case")
ABOUT = f"""\
{NUM_STEPS} real steps of one rank under `RLIMIT_DATA`. The caps are percentages of the traced peak and, in the last
column, the memory that the service would reserve (the peak plus 6 % and 4 MiB). "Fits" and "dies" say how the run
ended. A used rank has run the same model before, so it already holds all memory that libraries keep permanently. A new
rank gets that memory in its first step, like the ranks of the service (docs/decisions/0009-settled-baseline.md).

By the peak alone, the estimator says that a model fits if its peak is at most the cap; **bold** cells show where that
was wrong. `oom_right_pct` is the share of right decisions at caps {BAND_PERCENT} % or more from the peak. Of these,
`oom_missed` counts those that said "fits" and died; `oom_inside_missed` counts the same at caps nearer to the peak. By
the reserved memory, which is how the service decides, every run counts: `oom_reserved_missed` said "fits" and died,
`oom_reserved_needless` said "does not fit" and lived. `new` or `used` in a name means only those ranks."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A case on a new rank, or on one that has run the same model before."""

    case: Case
    used: bool

    def __str__(self) -> str:
        return f"{self.case}, {'used' if self.used else 'new'} rank"


def cases(quick: bool, seed: int) -> Sequence[Rank]:
    if quick:
        return [Rank(Case("vit_digits", 64, {"depth": 4, "width": 96}), used=True)]
    return [Rank(case, used) for case in MODELS for used in (False, True)]


# Peaks of 50 to 200 MiB, so that a run takes a second or two.
MODELS = [
    Case("vit_digits", 64, {"depth": 6, "width": 128}),
    Case("vit_digits", 64, {"depth": 8, "width": 256}, recompute=True),
    Case("vit_digits", 32, {"depth": 4, "width": 192, "patch": 1}, num_micro_batches=2),
    Case("stdlib_gpt", 16, {"depth": 4, "width": 256, "context": 128}),
    Case("stdlib_gpt", 8, {"depth": 6, "width": 384, "context": 128}, recompute=True),
    Case("stdlib_gpt", 4, {"depth": 4, "width": 320, "context": 256}, num_micro_batches=4),
    Case("gpt", 2, {"depth": 3, "width": 384, "context": 128}),
    Case("gpt", 4, {"depth": 4, "width": 256, "context": 128}, optimizer="foreach", num_micro_batches=2),
    Case("vit", 4, {"depth": 6, "width": 192}, optimizer="sgd"),
    Case("swin", 2, {"width": 32, "depths": [2, 2, 2]}),
    Case("swin", 4, {"width": 64, "depths": [2, 2]}, recompute=True),
    Case("unet", 2, {"width": 16, "side": 96}),
    Case("unet", 4, {"width": 8, "side": 128}, optimizer="momentum"),
    Case("dlrm", 1024, {"rows": 20_000}),
    Case("dlrm", 4096, {"rows": 10_000}, optimizer="sgd", num_micro_batches=2),
    Case("hf_gpt2", 2, {"depth": 4, "width": 256, "context": 128}),
    Case("hf_llama", 2, {"depth": 4, "width": 256, "context": 128}, recompute=True),
]


@dataclass(frozen=True, slots=True)
class Result:
    """Runs under each of ``caps`` (bytes). ``ends`` has "" for a run that took all steps, else the error's name."""

    peak_bytes: int
    reserved_bytes: int
    caps: list[int]
    ends: list[str]
    used: bool

    def row(self) -> list[str]:
        sizes = [f"{num_bytes / MIB:.1f}" for num_bytes in (self.peak_bytes, self.reserved_bytes)]
        needs = [self.peak_bytes] * len(CAPS_PERCENT) + [self.reserved_bytes]
        runs = zip(needs, self.caps, self.ends, strict=True)
        return sizes + [f"**{_word(end)}**" if (need <= cap) == bool(end) else _word(end) for need, cap, end in runs]


def _word(end: str) -> str:
    return {"": "fits", "OutOfMemory": "dies"}.get(end, end)


def measure(rank: Rank, seconds: float) -> Result:
    case = rank.case
    traced = trace(recipe_of(case.workload()), case.layout, case.batch)
    profile = ModelProfile(traced.structure, traced.num_params, traced.state_bytes, {case.layout: traced.curve})
    need = predict(profile, Plan(case.batch, case.num_micro_batches, recompute=case.recompute))
    reserved_bytes = need.reserved_mib * MIB
    caps = [-(-need.peak_bytes * percent // 100) for percent in CAPS_PERCENT] + [reserved_bytes]
    order = json.dumps({"case": case.to_json(), "caps": caps, "used": rank.used})
    ends = json.loads(last_line("-m", "benchmarks.estimating.oom", order, seconds=seconds))
    return Result(need.peak_bytes, reserved_bytes, caps, ends, rank.used)


def figures(results: Sequence[Result]) -> dict[str, float]:
    groups = {
        "oom": results,
        "oom_new": [result for result in results if not result.used],
        "oom_used": [result for result in results if result.used],
    }
    counts = {group: _count(members) for group, members in groups.items() if members}
    return {f"{group}_{name}": value for group, values in counts.items() for name, value in values.items()}


def _count(results: Sequence[Result]) -> dict[str, float]:
    inside: list[tuple[bool, bool]] = []  # (whether it is predicted to fit, whether it does)
    outside: list[tuple[bool, bool]] = []
    reserved: list[tuple[bool, bool]] = []
    for result in results:
        lived = [not end for end in result.ends]
        reserved += [(result.reserved_bytes <= cap, well) for cap, well in zip(result.caps, lived, strict=True)]
        for percent, cap, well in zip(CAPS_PERCENT, result.caps, lived, strict=False):  # without the last, an easy cap
            (outside if abs(percent - 100) >= BAND_PERCENT else inside).append((result.peak_bytes <= cap, well))
    return {
        "cases": len(results),
        "decisions": len(outside),
        "right_pct": 100 * sum(says_fits == lived for says_fits, lived in outside) / len(outside),
        "missed": _missed(outside),
        "inside_decisions": len(inside),
        "inside_missed": _missed(inside),
        "reserved_decisions": len(reserved),
        "reserved_missed": _missed(reserved),
        "reserved_needless": sum(lived and not says_fits for says_fits, lived in reserved),
    }


def _missed(decisions: Sequence[tuple[bool, bool]]) -> int:
    """Number of decisions, pairs of (said to fit, lived), that said "fits" and died."""
    return sum(says_fits and not lived for says_fits, lived in decisions)


def run_under(case: Steps, caps: Sequence[int], used: bool) -> list[str]:
    """How a few steps end under each cap. Every run is a fork of this process, which runs steps first if ``used``."""
    torch.set_num_threads(1)
    workload = case.workload()
    warm_up(CPU, None)
    workload.build_model()
    workload.train_batch(torch.arange(1))  # reads the data set, as in workloads.training.runtime
    if used and (end := _end_of(case, None)):
        raise RuntimeError(f"the steps failed without a limit, with {end}: fix the model first")
    ends = [in_forks([partial(_end_of, case, cap)], 3600.0)[0] for cap in caps]
    return ["crashes" if end == CRASHED else end for end in ends]


def _end_of(case: Steps, cap_bytes: int | None) -> str:
    baseline = budget.baseline(CPU)
    workload = case.workload()
    model = workload.build_model()
    apply_plan(model, workload.blocks(model), case.layout, None)
    optimizer = workload.optimizer(model)
    try:
        with budget.enforce(CPU, baseline, cap_bytes) as held:
            for step in range(NUM_STEPS):
                workload.on_step(step, NUM_STEPS, optimizer)
                batches = (workload.train_batch(torch.arange(case.batch)) for _ in range(case.num_micro_batches))
                with held.settling():
                    train_step(workload, model, optimizer, batches, case.num_micro_batches)
    except Exception as error:
        return type(error).__name__
    return ""


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    print(json.dumps(run_under(Case.from_json(request["case"]), request["caps"], request["used"])))
