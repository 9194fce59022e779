"""Changes of whole batches are the same under every plan, and memory is predicted for the largest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from estimators.model import Layout, Plan
from estimators.tracing.tracer import trace
from workloads.loading import load_workload
from workloads.sandbox.batch_check import why_whole
from workloads.sandbox.recipe import recipe_of
from workloads.training.data.batch_transform import Transform, varies

SCALES = """
import torch
from torch import nn
from torch.nn import functional
from workloads.protocol import Workload


class Scales(Workload):
    num_train = num_eval = 16
    sizes = (8, 16, 32)

    def build_model(self):
        layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.0), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(8, 2))

    def train_batch(self, indices):
        return torch.linspace(-1, 1, 16 * 768).view(16, 3, 16, 16)[indices], indices % 2

    eval_batch = train_batch

    def batch_transform(self, batch, generator, step):
        pictures, labels = batch
        torch.rand(1)  # which changes no dropout
        size = self.sizes[int(torch.randint(len(self.sizes), (1,), generator=generator))]
        return functional.interpolate(pictures, size), labels

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        return {"loss": functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}


class Always(Scales):
    sizes = (32,)


class Later(Scales):
    def batch_transform(self, batch, generator, step):
        return functional.interpolate(batch[0], 32 if step > 100 else 8), batch[1]


class Named(Later):
    def largest_batch(self, batch):
        return functional.interpolate(batch[0], 32), batch[1]


class Mixed(Scales):
    def batch_transform(self, batch, generator, step):
        return batch[0] * 0.5 + batch[0].flip(0) * 0.5, batch[1]
"""
PLANS = [Plan(2, num_micro_batches=2), Plan(2, dp_shard=2), Plan(1, num_micro_batches=2, dp_replicate=2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scales")
    (made / "scales.py").write_text(SCALES)
    return made


@pytest.mark.full
def test_the_curve_does_not_depend_on_micro_batches_ranks_and_a_resume(ranks: Any, folder: Path) -> None:
    options = {"workload": "scales.py:Scales", "code_dir": str(folder), "params": {"batch": 4}, "metric": "loss"}
    single = ranks.curve(Plan(4), 6, checkpoint_root=str(folder / "kept"), **options)
    curves = [ranks.curve(plan, 6, **options) for plan in PLANS]
    curves.append(
        [*single[:1], *ranks.curve(Plan(4), 6, resume_step=2, **options, checkpoint_root=str(folder / "kept"))]
    )
    for curve in curves:
        assert [step for step, _ in curve] == [2, 4, 6]
        for (_, values), (_, expected) in zip(curve, single, strict=True):
            assert values == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("name", "is_uneven"), [("Scales", True), ("Named", True), ("Always", False)])
def test_memory_is_predicted_for_the_largest_batch(folder: Path, name: str, is_uneven: bool) -> None:
    workload, always = (load_workload(f"scales.py:{each}", folder)({}) for each in (name, "Always"))
    peaks = [trace(recipe_of(each), Layout(), 4).curve.peak_bytes(4) for each in (workload, always)]
    assert peaks[0] == peaks[1] and varies(workload) is is_uneven


def test_a_batch_beyond_the_prediction_is_said_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, num_lines in (("Later", 1), ("Named", 0)):
        workload = load_workload(f"scales.py:{name}", folder)({})
        transform, batch = Transform(workload, 0), workload.train_batch(torch.arange(2))
        sizes = [transform(batch, step)[0].shape[-1] for step in (0, 200, 201)]
        lines = capsys.readouterr().out.splitlines()
        assert sizes == [8, 32, 32] and len(lines) == num_lines
        assert not lines or "of 6,146 numbers in step 201, but memory was predicted for 386: return the" in lines[0]


def test_a_change_that_mixes_samples_keeps_the_batch_whole(folder: Path) -> None:
    assert why_whole(load_workload("scales.py:Scales", folder)({})) == ""
    assert why_whole(load_workload("scales.py:Mixed", folder)({})) != ""
