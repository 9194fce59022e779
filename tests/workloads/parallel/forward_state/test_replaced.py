"""Copies of modules whose passes a plan has changed compute by their own weights, or are refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from workloads.parallel.forward_state.replaced import ReplacedForward
from workloads.parallel.forward_state.state import forward_state
from workloads.parallel.mixed_precision import compute_in
from workloads.parallel.recompute import recomputed
from workloads.refusals import WorkloadError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, points: Tensor, scale: float = 1.0) -> Tensor:
        return scale * self.layer(points).tanh()


def recompute(model: nn.Sequential) -> None:
    for block in model:
        block.forward = recomputed(block, forward_state(model), selective=False)


def cast(model: nn.Sequential) -> None:
    compute_in(model, list(model), torch.bfloat16)


@pytest.mark.parametrize("change", [recompute, cast], ids=lambda change: change.__name__)
def test_a_copy_computes_by_its_own_weights(change: Callable[[nn.Sequential], None]) -> None:
    model, points = nn.Sequential(Block(), Block()), torch.randn(3, 4)
    change(model)
    teacher = deepcopy(model)
    before = model(points).detach()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(teacher(points), before) and not model(points).any()
    teacher(points).sum().backward()
    assert all(parameter.grad is not None for parameter in teacher.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_copy_of_a_part_is_refused() -> None:
    block = Block()
    block.forward = ReplacedForward(block.forward, block.forward, "tp=1")  # type: ignore[method-assign]
    with pytest.raises(WorkloadError, match=r"make it in build_model, .* or use plans with tp=1"):
        deepcopy(nn.Sequential(block))


def test_models_see_the_signature_of_the_method_that_was_replaced() -> None:
    block = Block()
    recompute(nn.Sequential(block))
    assert [*inspect.signature(block.forward).parameters] == ["points", "scale"]
