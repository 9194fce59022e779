"""Trains workloads of the papers on one rank until they show what the paper says of them.

Their data and metrics are described in the files in ``examples/papers``. That every plan trains the same is another
part (``benchmarks.features.features_part``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.curves.forks import in_forks
from benchmarks.features.papers import FOLDER
from benchmarks.features.running import Reports
from estimators.model import Candidate, Plan
from workloads.refusals import explain
from workloads.training.attempt.job import TrainingJob
from workloads.training.runtime import train

TITLE = "Trainings of the papers"
ABOUT = """\
Each row is one training on one rank, with the value of a metric on held-out data before and after it. *SwinIR*: dB of
PSNR above bicubic interpolation, the mean over four photographs that it was not trained on. *CosmoFlow*: mean absolute
error of two parameters of a density field as a share of their ranges; samples of both sizes are cut out of the same
boxes, and a step has the same number of voxels. *DLRM*: area under the ROC curve above that of a logistic regression on
the dense features and on the rate of clicks of each category, which is the stronger of the simple baselines.
*Evoformer*: share of the four likeliest pairs of positions that are contacts. *Swin*: accuracy. *M6*: share
of words of a caption that it finds, less that of the most frequent word of each place."""
HEADER = ("before", "after", "steps", "case")


@dataclass(frozen=True)
class Case:
    """A training of a workload, and the metric that counts."""

    name: str
    workload: str
    metric: str
    batch: int
    steps: int
    params: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Result:
    """Values of the case's metric on held-out samples, before and after ``steps`` steps."""

    name: str
    before: float
    after: float
    steps: int

    def row(self) -> list[str]:
        return [f"{self.before:.4f}", f"{self.after:.4f}", str(self.steps)]


SWINIR, COSMOFLOW, SMALL, DLRM = "SwinIR", "CosmoFlow, 32³", "CosmoFlow, 8³", "DLRM"


def cases(quick: bool, seed: int) -> Sequence[Case]:
    """Each paper's training; a quick run has fewer steps, samples and channels."""
    steps, num_boxes = (10, 16) if quick else (200, 240)
    fields = {"boxes": num_boxes, "width": 4, "lr": 5e-3}
    trainings = [
        Case(SWINIR, "swinir.py:SwinIr", "gain_db", 8, 20 if quick else 300, {"groups": 1} if quick else {}),
        Case(COSMOFLOW, "cosmoflow.py:Universes", "error", 8, steps, fields),
        Case(SMALL, "cosmoflow.py:Universes", "error", 8 * 4**3, steps, {**fields, "side": 8}),
        Case(DLRM, "dlrm.py:Clicks", "auc_gain", 512, 20 if quick else 160),
    ]
    if quick:
        return trainings
    recycled = [
        Case(f"Evoformer, {num} recycles", "evoformer.py:Contacts", "precision", 16, 40, {"lr": 4e-3, "recycles": num})
        for num in (0, 2)
    ]
    captions = Case("M6", "m6.py:Captions", "gain", 64, 200)
    return [*trainings, *recycled, captions, Case("Swin", "swin.py:SwinDigits", "accuracy", 64, 60, {"width": 32})]


def measure(case: Case, seconds: float) -> Result:
    """Train the case in a fork. Raises ``RuntimeError`` with the words of a failure."""
    (answer,) = in_forks([partial(_trained, case)], seconds)
    if not isinstance(answer, dict) or "error" in answer:
        raise RuntimeError(answer["error"] if isinstance(answer, dict) else answer)
    return Result(case.name, answer["before"], answer["after"], case.steps)


def figures(results: Sequence[Result]) -> dict[str, float]:
    """The figures that the papers' claims are judged by, as far as their trainings have run."""
    after = {result.name: result.after for result in results}
    values = {"swinir_gain_db": after.get(SWINIR), "dlrm_auc_gain": after.get(DLRM)}
    if COSMOFLOW in after and SMALL in after:
        values["cosmoflow_error_ratio"] = after[COSMOFLOW] / after[SMALL]
    return {name: value for name, value in values.items() if value is not None}


def _trained(case: Case) -> dict[str, Any]:
    """{"before": value, "after": value} of the metric; {"error": …} if the training fails."""
    torch.set_num_threads(1)
    values = []
    try:
        with tempfile.TemporaryDirectory(prefix="scamp-papers-") as folder:
            for steps in (0, case.steps):
                reports = Reports()
                train(_job(case, steps, Path(folder)), 0, 1, None, reports)
                values.append(reports.values[-1][case.metric])
    except BaseException as error:
        return {"error": explain(error, FOLDER, in_training=True)}
    return {"before": values[0], "after": values[1]}


def _job(case: Case, steps: int, folder: Path) -> TrainingJob:
    return TrainingJob(
        candidate=Candidate(case.workload, None, dict(case.params)),
        code_dir=FOLDER,
        plan=Plan(case.batch),
        seed=1,
        steps=steps,
        report_every=max(1, steps),
        budget_bytes=None,
        checkpoint_root=folder / str(steps),
        trial_id=1,
        resume=None,
        metrics=[case.metric],
    )
