"""The workloads of the papers: their data is as they say, and they train; ``benchmarks.runtime`` has the figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.features.papers import FOLDER, PAPERS
from estimators.model import Plan
from tests.services.warm import Warm
from tests.workloads.conftest import Ranks
from workloads.loading import load_attribute, load_workload
from workloads.protocol import Workload
from workloads.training.step import train_step

TINY: dict[str, dict[str, Any]] = {
    "swin.py:SwinDigits": {"depth": 2, "width": 8, "heads": 2},
    "swinir.py:SwinIr": {"groups": 1, "width": 8, "heads": 2, "patch": 8},
    "evoformer.py:Contacts": {"depth": 1, "width": 8, "pair_width": 4, "heads": 2},
    "cosmoflow.py:Universes": {"box": 16, "side": 8, "boxes": 5, "width": 4},
    "dlrm.py:Clicks": {"visits": 600},
}


def workload_of(workload: str, **params: Any) -> Workload:
    return load_workload(workload, FOLDER)({**TINY[workload], **params})


@pytest.fixture
def ranks(tmp_path: Path, warm: Warm) -> Iterator[Ranks]:
    started = Ranks(tmp_path, warm)
    yield started
    started.close()


@pytest.mark.parametrize("name", TINY)
def test_a_step_on_the_same_samples_lowers_their_loss(name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = workload_of(name)
    model, batch = workload.build_model(), workload.train_batch(torch.arange(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    before = train_step(workload, model, optimizer, [batch], 1)
    assert train_step(workload, model, optimizer, [batch], 1) < before
    evaluated = workload.evaluate(model, workload.eval_batch(torch.arange(3)))
    values, outputs = evaluated if isinstance(evaluated, tuple) else (evaluated, ())
    assert all(len(outputs_of_rank) == 3 for outputs_of_rank in (*values.values(), *outputs))


def test_small_samples_are_parts_of_the_boxes_of_large_ones() -> None:
    large, parameters = workload_of("cosmoflow.py:Universes", side=16).train_batch(torch.tensor([2]))
    small, others = workload_of("cosmoflow.py:Universes").train_batch(torch.arange(16, 24))
    assert torch.equal(parameters.expand(8, 2), others)
    assert torch.equal(small[5, 0], large[0, 0, 8:, :8, 8:])


@pytest.mark.full
def test_slabs_of_a_sample_train_the_curve_of_one_process(ranks: Ranks) -> None:
    options: dict[str, Any] = {
        "workload": "cosmoflow.py:Universes",
        "code_dir": str(FOLDER),
        "params": {**TINY["cosmoflow.py:Universes"], "side": 16},
        "metric": "error",
    }
    single = ranks.curve(Plan(4), **options)
    for (_, values), (_, expected) in zip(ranks.curve(Plan(2, 2, spatial=2), **options), single, strict=True):
        assert values == pytest.approx(expected, abs=1e-6)


def test_a_paired_letter_is_complementary_in_most_relatives() -> None:
    letters, contacts = workload_of("evoformer.py:Contacts").train_batch(torch.arange(20))
    family, first, other = contacts.nonzero().unbind(1)
    paired = letters[family, :, first] + letters[family, :, other] == 3
    assert contacts.sum((1, 2)).tolist() == [8.0] * 20
    assert 0.85 < float(paired.float().mean()) < 1


def test_the_area_under_the_curve_is_that_of_scikit_learn() -> None:
    clicks = workload_of("dlrm.py:Clicks").train_batch(torch.arange(300))[2]
    logits = clicks + torch.randn(300, generator=torch.Generator().manual_seed(0))
    area = load_attribute("dlrm.py:area_under_curve", FOLDER)(logits, clicks)
    assert area == pytest.approx(roc_auc_score(clicks, logits))


@pytest.mark.full
def test_halves_of_weights_train_the_curve_of_sgd_in_fp32_also_in_shards(ranks: Ranks) -> None:
    params: dict[str, Any] = {**TINY["dlrm.py:Clicks"], "width": 64, "batch": 64, "lr": 0.1}
    split: dict[str, Any] = {
        "params": {**params, "optimizer": "SplitSGD", "bf16": True},
        "metric": "loss",
        "code_dir": str(FOLDER),
    }
    plain = {**split, "params": {**params, "optimizer": "SGD"}}
    expected = ranks.curve(Plan(64), workload="dlrm.py:Clicks", **plain)
    for plan in (Plan(64), Plan(32, dp_shard=2)):
        curve = ranks.curve(plan, workload="dlrm.py:Clicks", **split)
        losses, of_fp32 = ([values["loss"] for _, values in each] for each in (curve, expected))
        assert losses == pytest.approx(of_fp32, rel=1e-2)


def test_a_bicubic_enlargement_gains_nothing_over_itself() -> None:
    workload = workload_of("swinir.py:SwinIr", patch=24)
    small, bicubic, true, image = workload.eval_batch(torch.arange(workload.num_eval))
    errors = (bicubic - true).square().mean((1, 2))
    metrics = workload.summarize((errors, errors, image))
    assert metrics["gain_db"] == 0 and 25 < metrics["bicubic_psnr"] < 35
    assert small.shape[1:] == (24, 24)
    assert bicubic.shape[1:] == true.shape[1:] == (48, 48)


def test_every_workload_is_checked_under_all_plans_that_need_nothing_of_a_model() -> None:
    assert sum(len(workload.plans) for workload in PAPERS) >= 60
    assert {plan.batch for workload in PAPERS for plan in workload.plans} == {8}
