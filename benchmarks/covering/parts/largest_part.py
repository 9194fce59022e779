"""Runs the largest micro-batch that the estimator says fits, under a limit that the operating system enforces.

The models are those of ``plain.py``. The answer is the one by which the service plans, margin included. A rank is
warmed up as in the service and forked, and trains a few steps under ``RLIMIT_DATA``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.covering.asked import Asked
from benchmarks.estimating.oom import NUM_STEPS, run_under
from benchmarks.running.process import last_line
from benchmarks.running.results import Finding, listed
from estimators.memory import largest_micro_batch, predict
from estimators.model import MIB, Layout, Plan
from estimators.trace import profile_of
from estimators.tracing.tracer import trace
from workloads.sandbox.recipe import recipe_of

TRACED_BATCH = 32
TITLE = "The largest micro-batch that fits"
HEADER = ("limit MiB", "largest", "reserved MiB", "end", "case")
ABOUT = f"""\
The largest micro-batch that the estimator says fits into a limit, margin included, from a trace of {TRACED_BATCH}
samples. {NUM_STEPS} real steps of it run in a new rank under `RLIMIT_DATA`. `largest_fits_pct` is the share that took
all steps. Of peaks that do not lie on lines, only powers of two are considered."""


@dataclass(frozen=True)
class Limited:
    """A model of ``plain.py`` (``params``; its batch is not used), and a limit in MiB."""

    params: dict[str, Any]
    limit_mib: int

    def asked(self, batch: int) -> Asked:
        """The model with this many samples in a micro-batch."""
        return Asked("plain", {**self.params, "batch": batch})

    def __str__(self) -> str:
        return f"{self.asked(0)}".replace(" batch=0", "") + f" in {self.limit_mib} MiB"


def cases(quick: bool, seed: int) -> Sequence[Limited]:
    return _CASES[:1] if quick else _CASES


def _limited(model: str, limit_mib: int, **more: Any) -> Limited:
    return Limited({"model": model, **more}, limit_mib)


_CASES = [
    _limited("mlp", 200, optimizer="SGD"),
    _limited("lstm", 256),
    _limited("lstm", 256, arithmetic="bf16", optimizer="SGD"),
    _limited("gru", 300),
    _limited("rnn", 300),
    _limited("convnext", 300),
    _limited("convnext", 200, optimizer="RMSprop", clip="norm"),
    _limited("resnet", 300, ema=True),
    _limited("resnet_group_norm", 300),
    _limited("resnet_channels_last", 300),
    _limited("unet_channels_last", 300),
    _limited("conv_1d", 300),
    _limited("positional_conv", 400),
    _limited("conv_3d", 300),
    _limited("encoder", 300),
    _limited("encoder", 300, arithmetic="amp", ema=True),
    _limited("transformer", 300),
    _limited("masked_attention", 250, clip="value"),
    _limited("checkpointed", 300, arithmetic="bf16"),
    _limited("embedding_sparse", 200, optimizer="SparseAdam"),
    _limited("bag_sparse", 200, optimizer="SparseAdam"),
]


@dataclass(frozen=True, slots=True)
class Result:
    """``largest`` samples need ``reserved_mib``; 0 if none fits. ``end`` is "" if the run took all steps, else why not.

    The refusal of an estimate is an ``end``, too.
    """

    limit_mib: int
    largest: int
    reserved_mib: int
    end: str

    def row(self) -> list[str]:
        return [str(self.limit_mib), str(self.largest), str(self.reserved_mib), self.end or "fits"]


def figures(results: Sequence[Result]) -> dict[str, float]:
    fit = sum(result.largest > 0 and not result.end for result in results)
    return {"largest_cases": len(results), "largest_fits_pct": 100 * fit / len(results)}


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every case that did not run to its end."""
    return listed(findings, lambda finding: finding.values["end"])


def measure(case: Limited, seconds: float) -> Result:
    traced = trace(recipe_of(case.asked(TRACED_BATCH).workload()), Layout(), TRACED_BATCH)
    profile = profile_of({Layout(): traced})
    largest = largest_micro_batch(profile, Layout(), case.limit_mib)
    if not largest:
        return Result(case.limit_mib, 0, 0, "none fits")
    reserved = predict(profile, Plan(largest)).reserved_mib
    order = [case.asked(largest).to_json(), str(case.limit_mib * MIB)]
    (end,) = json.loads(last_line("-m", __name__, *order, seconds=seconds))
    return Result(case.limit_mib, largest, reserved, end)


if __name__ == "__main__":
    print(json.dumps(run_under(Asked.from_json(sys.argv[1]), [int(sys.argv[2])], used=False)))
