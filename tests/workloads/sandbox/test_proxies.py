"""Zero-cost proxies: values that can be computed by hand, and networks of every kind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workloads.loading import load_workload
from workloads.protocol import Workload
from workloads.refusals import WorkloadError
from workloads.sandbox.proxies import PROXIES, flops, grad_norm, jacob_cov, proxy


class Given(Workload):
    """A model of the test, that reads eight samples of four numbers."""

    num_train = num_eval = 8

    def build_model(self) -> nn.Module:
        return self.params["make"]()

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.sin(torch.arange(32.0)).reshape(8, 4)[indices]

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {}


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False))


def test_parameters_and_flops_are_those_of_the_layers() -> None:
    workload = Given({"make": linear})
    assert proxy("parameters", workload, 8, 0) == 4 * 6 + 6 * 3
    assert flops(workload, 8) == 2 * (4 * 6 + 6 * 3)


def test_grad_norm_adds_the_norms_of_the_gradients_of_all_parameters() -> None:
    torch.manual_seed(0)
    workload = Given({"make": linear})
    norm = grad_norm(workload, 8)
    torch.manual_seed(0)
    model = linear()
    workload.loss(model, workload.train_batch(torch.arange(8))).backward()
    assert norm == pytest.approx(
        sum(float(parameter.grad.norm()) for parameter in model.parameters() if parameter.grad is not None)
    )


def test_jacob_cov_is_higher_where_samples_are_told_apart() -> None:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))

    assert jacob_cov(Given({"make": wide}), 8) > jacob_cov(Given({"make": linear}), 8)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("vit_digits", {"depth": 1, "width": 32, "heads": 2}),
        ("stdlib_gpt", {"depth": 1, "width": 32, "heads": 2, "context": 16}),
        ("unet3d_blobs", {"side": 16, "width": 4, "batch": 2}),
    ],
)
def test_built_in_workloads_have_every_proxy_and_a_seed_repeats_it(name: str, params: dict[str, Any]) -> None:
    for proxy_name in PROXIES:
        workload = load_workload(name, None)(params)
        if (name, proxy_name) == ("stdlib_gpt", "jacob_cov"):
            with pytest.raises(WorkloadError, match="floating-point numbers"):
                proxy(proxy_name, workload, 2, 0)
            continue
        score = proxy(proxy_name, workload, 2, 0)
        assert score is not None and score == proxy(proxy_name, load_workload(name, None)(params), 2, 0)


def test_a_loss_that_does_not_call_its_model_has_no_correlations() -> None:
    class Around(Given):
        def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
            return nn.functional.linear(batch, next(model.parameters())).sum()

    with pytest.raises(WorkloadError, match="calls the model"):
        jacob_cov(Around({"make": linear}), 8)


def test_a_model_larger_than_memory_has_parameters_and_flops() -> None:
    workload = Given({"make": lambda: nn.Sequential(nn.Linear(4, 2**20), nn.Linear(2**20, 2**20), nn.Linear(2**20, 1))})
    assert (proxy("parameters", workload, 8, 0) or 0) > 2**40 and (proxy("flops", workload, 8, 0) or 0) > 2**41


class Turn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight).abs()


def test_complex_parameters_have_every_proxy() -> None:
    workload = Given({"make": Turn})
    assert all(math.isfinite(PROXIES[name](workload, 8)) for name in PROXIES)
