"""A step frees the terms of its loss before the backward pass has ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from workloads.function import FunctionWorkload
from workloads.training.step import train_step


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "huber_loss"])
def test_the_terms_of_a_loss_are_gone_when_its_backward_pass_has_begun(name: str) -> None:
    gone: list[bool] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        output = model(x)
        value = getattr(functional, name)(output, torch.ones_like(output))
        memory = StorageWeakRef(value.untyped_storage())
        output.register_hook(lambda gradient: gone.append(memory.expired()))
        return value

    def model_and_inputs() -> tuple[Any, ...]:
        return nn.Linear(4, 1000), lambda num: torch.ones(num, 4), loss

    workload = FunctionWorkload(model_and_inputs, {})
    model = workload.build_model()
    batches = (workload.train_batch(torch.arange(2)) for _ in range(2))
    train_step(workload, model, workload.optimizer(model), batches, 2)
    assert gone == [True, True]


def test_a_sum_over_unequal_micro_batches_trains_as_their_mean_at_once() -> None:
    targets = torch.tensor([0, -100, -100, -100, 1, 2, 0, 1])
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = batch
        return functional.cross_entropy(model(x), y, reduction="sum", ignore_index=-100), (y >= 0).sum()

    def model_and_inputs() -> tuple[Any, ...]:
        return nn.Linear(4, 3), lambda num: inputs[:num], loss

    workload = FunctionWorkload(model_and_inputs, {})
    model, plain = workload.build_model(), nn.Linear(4, 3)
    plain.load_state_dict(model.state_dict())
    batches = zip(inputs.split(4), targets.split(4), strict=True)
    mean = train_step(workload, model, torch.optim.SGD(model.parameters(), lr=1.0), batches, 2)
    expected = functional.cross_entropy(plain(inputs), targets, ignore_index=-100)
    expected.backward()
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    assert mean.item() == pytest.approx(expected.item())
    torch.testing.assert_close(model.weight, plain.weight)
