"""Compares predicted peaks of families of ``transformers`` and of models of torch alone with what steps allocate.

The prediction is what a user gets: through the trace process, with nothing cached. The true value is counted by
``heap.c`` in a process of its own, with one thread.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from statistics import median
from typing import Any

import numpy
import torch

from benchmarks.covering import plain
from benchmarks.covering.asked import Asked
from benchmarks.covering.asking import Answer, ask, tracked
from benchmarks.covering.models.listed import LISTED, UNAFFORDABLE
from benchmarks.estimating.measuring import heap
from benchmarks.estimating.measuring.counted import peak_over_kept, steps
from benchmarks.running.process import last_line
from benchmarks.running.results import Finding, listed
from estimators.model import MIB

BATCHES, ARITHMETIC, NUM_FAMILIES = (3, 7, 13), ("fp32", "bf16", "amp"), 50
TRACKED_EVERY = 4  # MemTracker is asked about a part of the cases, because it takes as long as all the rest
LEAST_BYTES = 1024  # of a block that counts: objects of Python and of C++ are smaller
_PLAIN = (
    ("lstm", "fp32", 3), ("lstm", "bf16", 7), ("lstm", "amp", 13), ("gru", "amp", 3), ("gru", "fp32", 7),
    ("gru", "bf16", 13), ("rnn", "fp32", 7), ("convnext", "amp", 7), ("convnext", "fp32", 13),
    ("convnext", "bf16", 3), ("resnet", "bf16", 13), ("resnet", "amp", 3), ("resnet", "fp32", 7),
    ("resnet_group_norm", "fp32", 3), ("resnet_channels_last", "amp", 3), ("unet", "fp32", 7),
    ("unet", "bf16", 13), ("unet", "amp", 3), ("unet_channels_last", "bf16", 7), ("unet_3d", "fp32", 13),
    ("conv_1d", "bf16", 13), ("positional_conv", "amp", 13), ("conv_3d", "fp32", 3), ("conv_3d", "bf16", 7),
    ("conv_3d", "amp", 13), ("encoder", "fp32", 7), ("encoder", "bf16", 13), ("encoder", "amp", 3),
    ("masked_attention", "bf16", 7), ("transformer", "amp", 7), ("checkpointed", "fp32", 13),
    ("routed_experts", "bf16", 3), ("scan", "amp", 3), ("random_masks", "amp", 7),
)  # fmt: skip
"""Models of torch alone, their arithmetic and their batches."""
TITLE = "Peaks of models that nobody chose"
HEADER = ("predicted MiB", "counted MiB", "error", "MemTracker", "case")
ABOUT = f"""\
Peaks of two real steps, in a process where every allocation of {LEAST_BYTES} bytes or more from the C library is
counted, less the memory that libraries keep when the model is gone. Smaller ones are objects of Python and C++, such as
the nodes of autograd: half a MiB for a thousand operations. {NUM_FAMILIES} families are drawn by the seed, with one of
three batches and one of three kinds of arithmetic each; the other cases are models of torch alone. `MemTracker` is
torch's own estimate of the same steps of every fourth case or so, or why it fails. A refused case is not run; its
reason is below the table."""


def cases(quick: bool, seed: int) -> Sequence[Asked]:
    """Families drawn by ``seed``, and all models of torch alone; or a small one.

    Refused families are drawn, too, so that the draw does not depend on the estimator; they are no compared cases.
    """
    if quick:
        return [Asked("plain", {"model": "mlp", "optimizer": "SGD", "batch": 3})]
    names = random.Random(seed).sample([name for name in LISTED if name not in UNAFFORDABLE], NUM_FAMILIES)
    drawn = [
        Asked(
            "models/families", {"family": name, "arithmetic": ARITHMETIC[number % 3], "batch": BATCHES[number // 3 % 3]}
        )
        for number, name in enumerate(names)
    ]
    return [*drawn, *plain_cases()]


def plain_cases() -> list[Asked]:
    """Every model of torch alone, every optimizer once, and clipping and averages of weights."""
    models = [
        Asked("plain", {"model": model, "arithmetic": arithmetic, "batch": batch, "optimizer": "AdamW"})
        for model, arithmetic, batch in _PLAIN
    ]
    models.append(Asked("plain", {"model": "bag_sparse", "arithmetic": "fp32", "batch": 7, "optimizer": "SparseAdam"}))
    models.append(Asked("plain", {"model": "embedding_sparse", "arithmetic": "fp32", "batch": 7, "optimizer": "SGD"}))
    models.append(Asked("plain", {"model": "mlp_matrices", "arithmetic": "amp", "batch": 13, "optimizer": "Muon"}))
    for number, optimizer in enumerate(o for o in plain.OPTIMIZERS if o not in ("Muon", "SparseAdam")):
        models.append(Asked("plain", {"model": "mlp", "optimizer": optimizer, "batch": BATCHES[number % 3]}))
    updates: list[dict[str, Any]] = [{"clip": "norm"}, {"clip": "value"}, {"ema": True}]
    for number, more in enumerate(updates):
        models.append(Asked("plain", {"model": "encoder", "batch": BATCHES[number % 3], **more}))
    models.append(Asked("plain", {"model": "resnet", "batch": 7, "ema": True, "clip": "norm", "optimizer": "SGD"}))
    models.append(Asked("plain", {"model": "embedding_sparse", "batch": 7, "optimizer": "SparseAdam"}))
    models.append(Asked("plain", {"model": "resnet_group_norm", "batch": 3}, "Averaged"))
    return models


@dataclass(frozen=True, slots=True)
class Result:
    """Bytes. ``refusal`` and ``tracker_failure`` say why there is no prediction; the bytes are then 0."""

    predicted: int
    measured: int
    refusal: str
    tracker_bytes: int
    tracker_failure: str
    assumptions: list[str] = field(default_factory=list)

    def error_pct(self, predicted: int | None = None) -> float:
        """Error of ``predicted`` (None: the estimator's) in percent of the measured bytes; negative: too low."""
        return 100 * ((self.predicted if predicted is None else predicted) / self.measured - 1)

    def row(self) -> list[str]:
        if self.refusal:
            return ["", "", "refused", ""]
        tracker = self.tracker_failure or f"{self.error_pct(self.tracker_bytes):+.2f} %"
        sizes = [f"{num_bytes / MIB:.1f}" for num_bytes in (self.predicted, self.measured)]
        return [*sizes, f"{self.error_pct():+.2f} %" + " bounded" * bool(self.assumptions), tracker]


def figures(results: Sequence[Result]) -> dict[str, float]:
    answered = [result for result in results if not result.refusal]
    tracked_ = [abs(result.error_pct(result.tracker_bytes)) for result in answered if not result.tracker_failure]
    values: dict[str, float] = {"coverage_cases": len(answered), "coverage_refused": len(results) - len(answered)}
    if answered:
        errors = [result.error_pct() for result in answered]
        values |= {f"coverage_{name}": value for name, value in _spread([abs(error) for error in errors]).items()}
        values["coverage_min_pct"] = min(errors)
    values["memtracker_cases"] = len(tracked_)
    return values | ({f"memtracker_{name}": value for name, value in _spread(tracked_).items()} if tracked_ else {})


def _spread(sizes: list[float]) -> dict[str, float]:
    ordered = sorted(sizes)
    return {"median_pct": median(ordered), "p95_pct": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]}


def notes(findings: Sequence[Finding]) -> list[str]:
    """Every refused case with its reason."""
    return listed(findings, lambda finding: finding.values["refusal"])


def measure(case: Asked, seconds: float) -> Result:
    answer = ask(case)
    if answer.refusal:
        return Result(0, 0, answer.refusal, 0, "not asked")
    counted = counted_peak(case, seconds)
    is_tracked = int.from_bytes(sha256(case.to_json().encode()).digest()[:2], "big") % TRACKED_EVERY == 0
    other = tracked(case) if is_tracked else Answer(0, 0.0, 0.0, "not asked")
    return Result(answer.predicted, counted, answer.refusal, other.predicted, other.refusal, answer.assumptions)


def counted_peak(case: Asked, seconds: float) -> int:
    """Peak bytes of a few real steps in another process, within ``seconds``."""
    with heap.counting(LEAST_BYTES) as environment:
        return int(
            last_line("-m", "benchmarks.covering.parts.peaks_part", case.to_json(), seconds=seconds, **environment)
        )


def run_for_real(case: Asked) -> int:
    """Peak bytes of a few steps of the model, after the same steps have warmed up this process."""

    def seeded() -> None:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        steps(case.workload(), case.batch)

    return peak_over_kept(seeded, partial(seeded))


if __name__ == "__main__":
    print(run_for_real(Asked.from_json(sys.argv[1])))
