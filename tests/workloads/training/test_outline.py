"""The model of a workload, and its outline on the meta device, whatever its author does with devices and dtypes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from workloads.refusals import WrongResult
from workloads.training.outline import model_of, outline_of


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


class Holder:
    """A workload that holds modules of its own. ``kept`` are those that ``build_model`` makes beside the model."""

    def __init__(self, **kept: Callable[[nn.Module], Any]) -> None:
        self.kept = kept
        self.teacher = nn.Linear(4, 4)

    def build_model(self) -> nn.Module:
        model = Norm()
        for name, make in self.kept.items():
            setattr(self, name, make(model))
        return model


@pytest.mark.parametrize(
    "make",
    [lambda model: copy.deepcopy(model), lambda model: [nn.Linear(4, 4)], lambda model: {"ema": nn.BatchNorm1d(4)}],
)
def test_a_module_that_is_made_beside_the_model_is_refused(make: Callable[[nn.Module], Any]) -> None:
    workload: Any = Holder(reference=make)
    with pytest.raises(WrongResult, match=r"self\.reference of the workload, which is no part"):
        model_of(workload)


def test_a_workload_may_hold_its_model_and_what_it_has_made_before() -> None:
    workload: Any = Holder(
        model=lambda model: model, layers=lambda model: list(model.children()), criterion=lambda _: nn.MSELoss()
    )
    assert model_of(workload) is workload.model
