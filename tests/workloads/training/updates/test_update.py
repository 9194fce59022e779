"""Optimizers that a candidate cannot have are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from scamp import SplitSGD
from workloads.protocol import Workload
from workloads.refusals import WorkloadError
from workloads.training.updates.update import expect_reduction, make_optimizer


class Words(Workload):
    num_train = num_eval = default_batch = 8

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(4, 2, sparse=self.params["sparse"]), nn.Linear(2, 2))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return torch.zeros(())

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=self.params["momentum"])


def made(**params: Any) -> torch.optim.Optimizer:
    workload = Words(params)
    return make_optimizer(workload, workload.build_model(), Layout(), None, 1)


def test_a_momentum_of_sparse_gradients_is_refused_as_it_grows_with_every_step() -> None:
    with pytest.raises(WorkloadError, match=r"the gradients of 0 are sparse, and the momentum .* use momentum=0, "):
        made(sparse=True, momentum=0.9)
    for params in ({"sparse": True, "momentum": 0.0}, {"sparse": False, "momentum": 0.9}):
        assert isinstance(made(**params), torch.optim.SGD)


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Rprop])
def test_optimizers_that_need_whole_parameters_are_refused_where_ranks_have_parts(kind: Any) -> None:
    class Whole(Words):
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            optimizer: torch.optim.Optimizer = kind(model.parameters())
            return optimizer

    workload = Whole({"sparse": False})
    for layout in (Layout(dp_shard=2), Layout(tp=2)):
        with pytest.raises(WorkloadError, match=f"{kind.__name__} updates whole parameters, .* ZeRO-1"):
            make_optimizer(workload, workload.build_model(), layout, None, 1)


def test_adasum_does_not_combine_halves_of_weights() -> None:
    class Halves(Words):
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return SplitSGD(model.parameters())

    workload = Halves({"sparse": False, "reduce": "adasum"})
    with pytest.raises(WorkloadError, match=r"combine the upper ones alone: use reduce: mean, or torch\.optim\.SGD"):
        make_optimizer(workload, workload.build_model(), Layout(dp_replicate=2, adasum=True), None, 1)


def test_plans_combine_updates_as_the_candidate_asks() -> None:
    adasum, plain = Layout(dp_replicate=2, adasum=True), Layout(dp_replicate=2)
    expect_reduction(Words({"reduce": "adasum"}), adasum)
    expect_reduction(Words({}), plain)
    with pytest.raises(WorkloadError, match=r"asks for Adasum over 2 whole replicas .*, and the plan is replicate2$"):
        expect_reduction(Words({"reduce": "adasum"}), plain)
    with pytest.raises(WorkloadError, match=r"asks for reduce: mean, and the plan is replicate2\+adasum"):
        expect_reduction(Words({}), adasum)


def test_an_optimizer_has_parameters_of_the_model_alone() -> None:
    class Others(Words):
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            others = {"another": self.build_model(), "more": nn.ModuleList([model, nn.Linear(3, 1)])}
            return torch.optim.SGD(others[self.params["others"]].parameters(), lr=0.1)

    for others, words in (("another", r"3 parameters of shape \[4, 2\], \[2, 2\], \[2\] that Seq"), ("more", "2 para")):
        workload = Others({"sparse": False, "others": others})
        with pytest.raises(WorkloadError, match=f"trains {words}.*not in checkpoints"):
            make_optimizer(workload, workload.build_model(), Layout(), None, 1)
