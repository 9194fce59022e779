"""The model on the meta device, whatever its author does with devices and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from workloads.training.outline import outline_of


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4)])
        self.register_buffer("ones", torch.ones(4).to("cpu"))


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (lambda: Norm(), torch.float32),
        (lambda: Norm().cpu(), torch.float32),
        (lambda: Norm().to("cpu"), torch.float32),
        (lambda: Norm().to("cpu", torch.bfloat16), torch.bfloat16),
        (lambda: Norm().to(torch.zeros(1, dtype=torch.float64, device="cpu")), torch.float64),
        (lambda: Norm().half(), torch.float16),
    ],
)
def test_the_outline_stays_on_the_meta_device(build: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    workload: Any = type("Workload", (), {"build_model": lambda self: build()})()
    model = outline_of(workload)
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"} and len(tensors) == 8
    assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {dtype}
    assert torch.ones(1).device.type == "cpu"
