"""Ranks compute in bf16 and hold parameters in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from estimators.model import Layout
from estimators.tracing.fake_gang import fake_mesh
from workloads.parallel.apply import apply_plan
from workloads.parallel.mixed_precision import MixedPrecision
from workloads.refusals import WorkloadError

BF16, FP32 = torch.bfloat16, torch.float32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 4)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen += [x.dtype, self.layer.weight.dtype]
        output: Tensor = x + self.layer(self.norm(x))
        return output


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(4, 3)
        self.head_again = self.head

    def forward(self, x: Tensor, *, fails: bool = False) -> Tensor:
        for block in self.blocks:
            x = block(x)
        if fails:
            raise ValueError(self.head.weight.dtype)
        output: Tensor = self.head(x) + self.head_again(x)
        return output


@pytest.mark.parametrize("layout", [Layout(), Layout(recompute=True)], ids=str)
def test_one_rank_computes_in_bf16_and_holds_fp32(layout: Layout) -> None:
    model = Model()
    weights = list(model.parameters())
    apply_plan(model, list(model.blocks), layout, None, MixedPrecision())
    output = model(torch.ones(2, 4))
    assert output.dtype == FP32 and output.grad_fn is not None
    output.sum().backward()
    assert {dtype for block in model.blocks for dtype in block.seen} == {BF16}  # type: ignore[union-attr]
    assert all(parameter is weight for parameter, weight in zip(model.parameters(), weights, strict=True))
    assert {weight.grad.dtype for weight in weights if weight.grad is not None} == {FP32}
    assert all(weight.grad is not None for weight in weights)


def test_parameters_come_back_after_an_error() -> None:
    model = apply_plan(Model(), [], Layout(), None, MixedPrecision())
    with pytest.raises(ValueError, match=r"torch\.bfloat16"):
        model(torch.ones(2, 4), fails=True)
    assert {parameter.dtype for parameter in model.parameters()} == {FP32}
    assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())


def test_fsdp_gathers_bf16_and_adds_up_gradients_as_the_user_says() -> None:
    layout, model = Layout(dp_shard=2), Model()
    with fake_mesh(layout) as mesh:
        apply_plan(model, list(model.blocks), layout, mesh, MixedPrecision(reduce=FP32))
        assert isinstance(model, FSDPModule)
        states: list[Any] = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
        policies = [state._mp_policy for state in states]
        assert {(policy.param_dtype, policy.reduce_dtype) for policy in policies} == {(BF16, FP32)}
        assert [policy.output_dtype for policy in policies] == [FP32, None, None]


def test_complex_parameters_keep_their_imaginary_parts() -> None:
    model = nn.Module()
    model.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    layout, words = (
        Layout(dp_shard=2),
        "bf16-params casts turn, a parameter of complex numbers, whose imaginary parts FSDP would",
    )
    with fake_mesh(layout) as mesh, pytest.raises(WorkloadError, match=words):
        apply_plan(model, [], layout, mesh, MixedPrecision(BF16))
