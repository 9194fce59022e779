"""The built-in 3D U-Net learns its volumes, also when they are divided into slabs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from estimators.model import Plan
from workloads.models.unet3d_blobs import Unet3dBlobs
from workloads.training.samples import batch_indices
from workloads.training.step import train_step


@pytest.mark.full
def test_it_learns_far_more_than_a_threshold_can_tell() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = Unet3dBlobs({})
    model, held_out = workload.build_model(), workload.eval_batch(torch.arange(16))
    optimizer = workload.optimizer(model)
    for step in range(25):
        workload.on_step(step, 25, optimizer)
        batch = workload.train_batch(batch_indices(workload.num_train, 8, step, seed=0))
        train_step(workload, model, optimizer, [batch], 1)
    with torch.no_grad():
        accuracy = float(workload.evaluate(model, held_out)["accuracy"].mean())
    volumes, blobs = held_out
    by_threshold = float(((volumes > 0) == (blobs > 0)).float().mean())
    assert 0.7 < by_threshold < 0.8 < 0.88 < accuracy


def test_half_of_the_volumes_is_blob_and_none_is_held_out_and_trained_on() -> None:
    workload = Unet3dBlobs({"side": 8})
    train, blobs = workload.train_batch(torch.arange(96))
    held_out, _ = workload.eval_batch(torch.arange(16))
    assert 0.45 < float(blobs.mean()) < 0.55
    assert not (torch.cdist(train.flatten(1), held_out.flatten(1)) == 0).any()


@pytest.mark.parametrize("levels", [1, 3])
def test_it_builds_on_the_meta_device_and_has_a_block_for_each_level_down_and_up(levels: int) -> None:
    workload = Unet3dBlobs({"levels": levels, "side": 24})
    with torch.device("meta"):
        model = workload.build_model()
        assert model(torch.zeros(2, 1, 24, 24, 24)).shape == (2, 1, 24, 24, 24)
    assert len(workload.blocks(model)) == 2 * levels


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"width": 6}, "multiple of 4"),
        ({"levels": 0}, "levels"),
        ({"side": 12, "levels": 3}, "multiple of 8"),
        ({"side": 6, "levels": 1}, "multiple of 4"),
    ],
)
def test_parameters_that_make_no_sense_say_so(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Unet3dBlobs(params)


@pytest.mark.full
def test_slabs_of_its_volumes_train_the_curve_of_one_process(ranks: Any) -> None:
    params = {"levels": 1, "side": 8}
    reference = ranks.curve(Plan(8), workload="unet3d_blobs", params=params)
    curve = ranks.curve(Plan(8, spatial=2), workload="unet3d_blobs", params=params)
    for (step, values), (expected_step, expected) in zip(curve, reference, strict=True):
        assert step == expected_step
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-5)
