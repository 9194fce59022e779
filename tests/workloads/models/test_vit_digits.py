"""The built-in ViT learns the digits, and refuses parameters that make no sense."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from workloads.models.vit_digits import VitDigits, _digits
from workloads.training.samples import batch_indices
from workloads.training.step import train_step


def accuracy_after(steps: int, params: dict[str, Any]) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = VitDigits(params)
    model = workload.build_model()
    optimizer = workload.optimizer(model)
    for step in range(steps):
        workload.on_step(step, steps, optimizer)
        batch = workload.train_batch(batch_indices(workload.num_train, 64, step, seed=0))
        train_step(workload, model, optimizer, [batch], 1)
    with torch.no_grad():
        return float(workload.evaluate(model, workload.eval_batch(torch.arange(360)))["accuracy"].mean())


@pytest.mark.parametrize("name", ["lr", "weight_decay", "depth"])
def test_a_parameter_that_is_no_number_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number, got None"):
        VitDigits({name: None})


@pytest.mark.full
def test_a_small_model_learns_the_digits_in_a_hundred_steps() -> None:
    assert accuracy_after(100, {"depth": 2, "width": 32, "lr": 4e-3}) > 0.95


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_one_model_for_each_patch_builds_on_the_meta_device(patch: int) -> None:
    workload = VitDigits({"patch": patch, "depth": 3})
    with torch.device("meta"):
        model = workload.build_model()
        assert model(torch.zeros(5, 8, 8)).shape == (5, 10)
    assert len(workload.blocks(model)) == 3


def test_the_data_are_those_of_scikit_learn() -> None:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    assert torch.equal(_digits()[0], ((images - images.mean()) / images.std())[order])
    assert torch.equal(_digits()[1], torch.tensor(digits.target)[order])


def test_the_split_is_fixed_and_has_no_sample_twice() -> None:
    workload = VitDigits({})
    assert (workload.num_train, workload.num_eval) == (1437, 360)
    train, _ = workload.train_batch(torch.arange(1437))
    held_out, labels = workload.eval_batch(torch.arange(360))
    assert not (torch.cdist(train.flatten(1), held_out.flatten(1)) == 0).any()
    assert torch.bincount(labels).min() > 20


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"patch": 3}, "patch"),
        ({"width": 30, "heads": 4}, "multiple"),
        ({"depth": 0}, "positive"),
        ({"dropout": 1}, "dropout"),
    ],
)
def test_parameters_that_make_no_sense_say_so(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        VitDigits(params)
